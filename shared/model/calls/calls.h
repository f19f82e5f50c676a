/*
 * What a model writes besides its answer: thoughts, and calls of functions, in the notation that
 * its chat template teaches.
 *
 *	Hermes		<tool_call>{"name": "f", "arguments": {...}}</tool_call>; also Qwen 2.5
 *			and 3
 *	Qwen3-Coder	<tool_call><function=f><parameter=x>...</parameter></function></tool_call>
 *	GLM		<tool_call>f<arg_key>x</arg_key><arg_value>...</arg_value></tool_call>
 *	harmony		<|channel|>commentary to=functions.f<|message|>{...}<|call|>; GPT-OSS
 *	DeepSeek	<|tool_calls_begin|> and the like, with wide bars
 *	Mistral		[TOOL_CALLS]f[ARGS]{...}, or
 *			[TOOL_CALLS][{"name": "f", "arguments": {...}}]
 *	Llama		{"name": "f", "parameters": {...}}
 *
 * A parser takes the text of an answer in pieces, with the text of its control tokens, and calls a
 * sink with what it finds. That depends only on the whole text, not on where the pieces end. A call
 * begins when it names a function that was offered and its arguments begin. From then on its
 * arguments are reported as they arrive. If they break off or are not JSON, the call has them as
 * far as they go. Text that looks like a call but is none is part of the content, byte for byte.
 *
 * The gateway uses this (services/gateway/parse.c, plan.c). The other functions are pure. A parser
 * may be used on any thread, by one at a time.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum calls_notation {
	CALLS_NONE, /* the template teaches no notation that is known */
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
	/* The older of two ways to write it: a name before JSON in a fence (DeepSeek V3 and R1), or
	 * a list (the first of Mistral's). */
	bool old;
	/* what stands around thoughts at the beginning; NULL: there are none, or they are
	 * harmony's */
	const char *think, *think_end;
};

/* Finds the format that a chat template with this source teaches. */
void calls_detect(const char *source, size_t bytes, struct calls_format *format);

/* Called with what the parser finds. The texts are borrowed until the function returns. Only the
 * name of a call ends with a NUL. */
struct calls_sink {
	void *arg;
	void (*content)(void *arg, const char *text, size_t bytes);
	void (*thought)(void *arg, const char *text, size_t bytes);
	/* A call begins. */
	void (*call)(void *arg, const char *name);
	/* The next bytes of its arguments, a JSON object; if the model wrote JSON, with its
	 * spelling. */
	void (*arguments)(void *arg, const char *text, size_t bytes);
	/* They end. */
	void (*call_end)(void *arg);
};

struct calls_parser;

/* tools: as in a request, borrowed until calls_free; NULL or empty: calls are not looked for.
 * thinking: the prompt ends within a thought. Returns NULL when memory is exhausted. */
struct calls_parser *calls_new(const struct calls_format *format, const json_t *tools,
	bool thinking, const struct calls_sink *sink);
void calls_free(struct calls_parser **parser);
/* Takes the next piece. False: memory is exhausted, and the parser reports nothing more. */
bool calls_feed(struct calls_parser *parser, const char *text, size_t bytes);
/* Call when the text has ended: reports what was held back. False: as above. */
bool calls_finish(struct calls_parser *parser);

/* The function of that name among the tools, {"name": ..., "parameters": ...}. Borrowed; NULL:
 * there is none. */
const json_t *calls_function(const json_t *tools, const char *name);

/* What an answer with calls may be; made into the source of a grammar (shared/model/grammar,
 * parts). */
struct calls_rules {
	const struct calls_format *format;
	const json_t *tools;
	const char *only; /* the one function that must be called; NULL: any */
	bool required; /* the answer must contain a call */
	bool parallel; /* it may contain several */
	bool thinking; /* as in calls_new */
	/* the part of a grammar that an answer without calls must match; NULL: any text */
	const json_t *content;
};
/* A new reference. NULL: `why` says what cannot be done, or is empty when memory is exhausted. */
json_t *calls_grammar(const struct calls_rules *rules, char why[static 200]);
