/*
 * What a model writes beside its answer: thoughts, and calls of functions, in the notation that its chat template teaches.
 *
 *	Hermes		<tool_call>{"name": "f", "arguments": {...}}</tool_call>; Qwen 2.5 and 3 too
 *	Qwen3-Coder	<tool_call><function=f><parameter=x>...</parameter></function></tool_call>
 *	GLM		<tool_call>f<arg_key>x</arg_key><arg_value>...</arg_value></tool_call>
 *	harmony		<|channel|>commentary to=functions.f<|message|>{...}<|call|>; GPT-OSS
 *	DeepSeek	<|tool_calls_begin|> and the like, with wide bars
 *	Mistral		[TOOL_CALLS]f[ARGS]{...}, or [TOOL_CALLS][{"name": "f", "arguments": {...}}]
 *	Llama		{"name": "f", "parameters": {...}}
 *
 * A parser takes the text of an answer in pieces, with that of its control tokens. What it gives depends on the whole text alone, not on
 * where the pieces end. A call comes as a whole, when it is complete and names a function that was offered; what is no such call is
 * part of the content, byte for byte. One thread at a time.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum calls_notation {
	CALLS_NONE, /* the template has none that is known */
	CALLS_HERMES,
	CALLS_QWEN,
	CALLS_GLM,
	CALLS_HARMONY,
	CALLS_DEEPSEEK,
	CALLS_MISTRAL,
	CALLS_LLAMA,
};

struct calls_format {
	enum calls_notation notation;
	/* How a model with several ways to write it does: a name before JSON in a fence (DeepSeek V3 and R1), a list (Mistral's
	 * first). */
	bool old;
	const char *think,
		*think_end; /* around thoughts at the beginning; NULL: it has none, or they are harmony's */
};

/* Of the source of a chat template. */
void calls_detect(const char *source, size_t bytes, struct calls_format *format);

/* What the parser finds. The texts are borrowed for the call, and not ended by NUL, but for a call's, which are. */
struct calls_sink {
	void *arg;
	void (*content)(void *arg, const char *text, size_t bytes);
	void (*thought)(void *arg, const char *text, size_t bytes);
	/* arguments: a JSON object, spelled as the model spelled it where it wrote JSON. */
	void (*call)(void *arg, const char *name, const char *arguments);
};

struct calls_parser;

/* tools: as in a request, borrowed until calls_free; NULL or empty: no calls are looked for. thinking: the prompt ends within a
 * thought. NULL without memory. */
struct calls_parser *calls_new(const struct calls_format *format, const json_t *tools,
	bool thinking, const struct calls_sink *sink);
void calls_free(struct calls_parser **parser);
/* False: no memory; the parser gives nothing more. */
bool calls_feed(struct calls_parser *parser, const char *text, size_t bytes);
/* The text ends here. */
bool calls_finish(struct calls_parser *parser);

/* The function of that name among the tools, {"name": ..., "parameters": ...}; NULL: there is none. */
const json_t *calls_function(const json_t *tools, const char *name);

/* What an answer with calls may be, as the source of a grammar (shared/model/grammar, parts). */
struct calls_rules {
	const struct calls_format *format;
	const json_t *tools;
	const char *only; /* the one function that must be called; NULL: any */
	bool required; /* calls must come */
	bool parallel; /* more than one may */
	bool thinking; /* as in calls_new */
	const json_t *content; /* a part: what an answer without calls must be; NULL: any text */
};
/* A new reference; NULL without memory, or where *why says what cannot be done. */
json_t *calls_grammar(const struct calls_rules *rules, char why[static 200]);
