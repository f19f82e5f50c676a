/* A compiled grammar, for the files of this directory. */
#pragma once

#include "shared/model/grammar/automaton.h"
#include "shared/model/grammar/grammar.h"

#include <jansson.h>

/* The state that stands for the end of the text. */
enum { STATE_END = 0 };
#define RULE_UNUSED UINT32_MAX

struct grammar_rule {
	uint32_t start; /* its first state; RULE_UNUSED: nothing calls it */
	/* At the beginning of a rule, only rules of larger rank are called. */
	uint32_t rank;
};

struct grammar {
	/* The end can be reached from every state. Its bytes are classes: all bytes that no edge
	 * tells apart form one. */
	struct automaton automaton;
	struct grammar_rule *rules; /* [n_rules]; rule 0 is the root */
	uint32_t *by_rank; /* [n_rules] */
	uint32_t n_rules;
	/* the class of a byte, and the first byte of a class */
	uint8_t class_of[256], first_of[256];
	uint32_t n_classes;
};

/* Whether nothing follows in the state's rule, so that a call from here replaces the rule. */
static inline bool state_is_last(const struct automaton *a, uint32_t state)
{
	return a->states[state].final &&
	       a->states[state].first_bytes == a->states[state + 1].first_bytes &&
	       a->states[state].first_call == a->states[state + 1].first_call;
}

/* The front ends: write the builder's rules from the source. */
void grammar_read_gbnf(struct rules *builder, const char *source, size_t bytes);
void grammar_read_schema(struct rules *builder, const char *source, size_t bytes);
void grammar_read_parts(struct rules *builder, const char *source, size_t bytes);
void grammar_read_object(struct rules *builder);
/* The expression of a schema that is part of a grammar; root is borrowed for the call. */
uint32_t grammar_schema_expr(struct rules *builder, const json_t *root);
/* Compiles the builder's rules. */
int grammar_build(struct rules *builder, struct grammar **out, struct error *err);
