#include "shared/model/calls/calls.h"

#include <string.h>

static bool has(const char *source, size_t bytes, const char *word)
{
	return memmem(source, bytes, word, strlen(word)) != NULL;
}

void calls_detect(const char *source, size_t bytes, struct calls_format *format)
{
	static const struct {
		enum calls_notation notation;
		const char *word, *too; /* the source must contain both */
	} known[] = {
		{CALLS_HARMONY, "<|channel|>", "<|message|>"},
		{CALLS_DEEPSEEK, "<\uff5ctool\u2581call\u2581begin\uff5c>", ""},
		{CALLS_MISTRAL, "[TOOL_CALLS]", ""},
		{CALLS_GLM, "<arg_key>", "<tool_call>"},
		{CALLS_QWEN, "<function=", "<tool_call>"},
		{CALLS_HERMES, "<tool_call>", ""},
		{CALLS_LLAMA, "<|start_header_id|>", "\"parameters\""},
		{CALLS_LLAMA, "<|python_tag|>", ""},
	};

	*format = (struct calls_format){.notation = CALLS_NONE};
	for (size_t i = 0; i < sizeof known / sizeof known[0] && !format->notation; i++)
		if (has(source, bytes, known[i].word) && has(source, bytes, known[i].too))
			format->notation = known[i].notation;
	format->old = format->notation == CALLS_DEEPSEEK ? has(source, bytes, "```json")
							 : !has(source, bytes, "[ARGS]");
	if (format->notation == CALLS_HARMONY)
		return;
	if (has(source, bytes, "</think>")) {
		format->think = "<think>";
		format->think_end = "</think>";
	} else if (has(source, bytes, "[/THINK]")) {
		format->think = "[THINK]";
		format->think_end = "[/THINK]";
	}
}
