/* Any JSON as the tools of a request: the first byte says the notation, the second what is asked for. Where the gateway takes the tools,
 * they become a grammar that compiles, or there is a sentence that says why not. */
#include "services/gateway/tools.h"
#include "shared/model/calls/calls.h"
#include "shared/model/grammar/grammar.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void compile(json_t *parts)
{
	char *source = json_dumps(parts, JSON_COMPACT);
	struct grammar *grammar;
	struct error err = {""};

	if (!source)
		abort();
	if (grammar_compile(GRAMMAR_PARTS, source, strlen(source), &grammar, &err) == 0)
		grammar_free(&grammar);
	else if (!err.text[0])
		abort();
	free(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct calls_format format = {.think = "<think>", .think_end = "</think>"};
	struct fault fault = {0};
	char why[200] = "";

	if (bytes < 2 || bytes > 16384)
		return 0;
	json_t *tools = json_loadb((const char *)data + 2, bytes - 2, 0, NULL);
	if (!tools || !tools_check(tools, &fault)) {
		json_decref(tools);
		return 0;
	}
	format.notation = (enum calls_notation)(data[0] % (CALLS_LLAMA + 1));
	format.old = data[0] & 32;
	if (data[0] & 64)
		format.think = format.think_end = NULL;
	struct calls_rules rules = {.format = &format,
		.tools = tools,
		.required = data[1] & 1,
		.parallel = data[1] & 2,
		.thinking = data[0] & 128};
	json_t *parts = calls_grammar(&rules, why);
	if (parts)
		compile(parts);
	else if (!why[0] && format.notation != CALLS_NONE)
		abort();
	json_decref(parts);
	json_decref(tools);
	return 0;
}
