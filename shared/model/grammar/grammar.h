/*
 * Constrained output: what a text may be, as a JSON schema, a regular expression or a grammar in GBNF (llama.cpp's notation),
 * compiled to one automaton over bytes. Rules call each other, so it is a push-down automaton; within a rule it is
 * deterministic where that does not cost too many states. matcher.h follows a text through it, vocab.h makes masks of tokens.
 *
 * A compiled grammar is read-only: any number of threads may use it. It depends on its source alone, not on the model.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stddef.h>
#include <stdint.h>

/* The numbers travel in messages and pages: their order never changes. */
enum grammar_kind {
	GRAMMAR_NONE = 0,
	GRAMMAR_JSON_SCHEMA,
	GRAMMAR_JSON_OBJECT, /* any JSON object; its source is empty */
	GRAMMAR_REGEX,
	GRAMMAR_GBNF,
	GRAMMAR_PARTS, /* put together from others; see below */
	GRAMMAR_KINDS
};
/* "none", "json-schema", "json-object", "regex", "gbnf", "parts", NULL. */
extern const char *const grammar_kind_names[];

/*
 * GRAMMAR_PARTS: texts between which there are values, as calls of functions are written. Its source is a JSON value, a part:
 *
 *	"text"				this text
 *	{"schema": SCHEMA}		a value that matches a JSON schema
 *	{"regex": "..."}		a text that matches a regular expression
 *	{"control": "<|end|>"}		this control token; or its text, in models where it is none
 *	{"until": "text"}		any text that does not have this one in it
 *	{"sequence": [PART, ...]}	one behind the other
 *	{"choice": [PART, ...]}		one of them
 *	{"repeat": PART, "min": 0, "max": 7}	as often; without "max" as often as one likes
 *
 * "name" beside "schema" or "regex" says in errors what it is for.
 */
/* In front of a control token's text, and behind it: no text has this byte. */
#define GRAMMAR_CONTROL 0xFF

enum {
	GRAMMAR_PARTS_MAX =
		1
		<< 20, /* expressions, or bytes of literals, in the source when it has been read */
	GRAMMAR_STATES_MAX = 1 << 18, /* of the automata of all rules together */
	GRAMMAR_REPEAT_MAX = 100000, /* a repetition's count */
	GRAMMAR_NESTING_MAX = 128, /* brackets within brackets, in the source */
	GRAMMAR_DEPTH_MAX = 1024, /* rules within rules, in a text: a deeper one is not matched */
	GRAMMAR_FRAMES_MAX =
		4096, /* ways to read a text at once: a text with more is not matched */
};

struct grammar;

/* -EINVAL: the source is wrong, or says what is not supported; the message begins with where: "line 2, column 7: ..." (GBNF),
 * "byte 7: ..." (a regular expression), "#/properties/a: ..." (a schema; "line 2, column 7: ..." where it is no JSON).
 * -E2BIG: a limit above. -ENOMEM. */
int grammar_compile(enum grammar_kind kind, const char *source, size_t bytes, struct grammar **out,
	struct error *err);
void grammar_free(struct grammar **grammar);

/* Of kind and source. */
uint64_t grammar_digest(enum grammar_kind kind, const char *source, size_t bytes);
