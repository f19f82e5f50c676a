/*
 * Constrained output. A JSON schema, a regular expression or a grammar in GBNF (llama.cpp's
 * notation) says what a text may be; it is compiled to one automaton over bytes. Rules call each
 * other, so it is a push-down automaton; within a rule it is deterministic where that does not take
 * too many states. matcher.h follows a text through it, vocab.h makes masks of tokens.
 *
 * A compiled grammar is read-only, so any number of threads may use it. It depends on its source
 * alone, not on a model.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stddef.h>
#include <stdint.h>

/* The numbers are part of messages and pages: the order must not change. */
enum grammar_kind {
	GRAMMAR_NONE = 0,
	GRAMMAR_JSON_SCHEMA,
	GRAMMAR_JSON_OBJECT, /* any JSON object; its source is empty */
	GRAMMAR_REGEX,
	GRAMMAR_GBNF,
	GRAMMAR_PARTS, /* composed of others; see below */
	GRAMMAR_KINDS
};
/* "none", "json-schema", "json-object", "regex", "gbnf", "parts", NULL. */
extern const char *const grammar_kind_names[];

/*
 * GRAMMAR_PARTS: fixed texts with values between them, as function calls are written. Its source is
 * a part, which is a JSON value:
 *
 *   "text"                               this text
 *   {"schema": SCHEMA}                   a value that matches a JSON schema
 *   {"regex": "..."}                     a text that matches a regular expression
 *   {"control": "<|end|>"}               this control token, or its text in ordinary tokens
 *   {"until": "text"}                    any text that does not contain this one
 *   {"sequence": [PART, ...]}            the parts one after the other
 *   {"choice": [PART, ...]}              one of the parts
 *   {"repeat": PART, "min": 0, "max": 7} the part min to max times, or more without "max"
 *
 * "name" in addition to "schema" or "regex" says in error messages what the part is for.
 */
/* A byte before and after the text of a control token; no other text contains it. */
#define GRAMMAR_CONTROL 0xFF

enum {
	GRAMMAR_PARTS_MAX =
		1
		<< 20, /* expressions, or bytes of literals, of the source once it has been read */
	GRAMMAR_STATES_MAX = 1 << 18, /* of the automata of all rules together */
	GRAMMAR_REPEAT_MAX = 100000, /* the count of a repetition */
	GRAMMAR_NESTING_MAX = 128, /* brackets within brackets in the source */
	/* rules within rules in a text; a text that needs more is not matched */
	GRAMMAR_DEPTH_MAX = 1024,
	/* ways to read a text at the same time; a text that needs more is not matched */
	GRAMMAR_FRAMES_MAX = 4096,
};

struct grammar;

/* -EINVAL: the source is wrong, or uses what is not supported; the message begins with the place:
 * "line 2, column 7: ..." (GBNF), "byte 7: ..." (a regular expression), "#/properties/a: ..." (a
 * schema; "line 2, column 7: ..." if it is no JSON). -E2BIG: one of the limits above. -ENOMEM. */
int grammar_compile(enum grammar_kind kind, const char *source, size_t bytes, struct grammar **out,
	struct error *err);
void grammar_free(struct grammar **grammar);

/* A digest of kind and source. */
uint64_t grammar_digest(enum grammar_kind kind, const char *source, size_t bytes);
