/* A compiled grammar, for the files of this room. */
#pragma once

#include "shared/model/grammar/automaton.h"
#include "shared/model/grammar/grammar.h"

#include <jansson.h>

/* The state that stands for the end of the text. */
enum { STATE_END = 0 };
#define RULE_UNUSED UINT32_MAX

struct grammar_rule {
	uint32_t start; /* its first state; RULE_UNUSED: nothing calls it */
	/* A rule is called at the beginning of rules of smaller rank only. */
	uint32_t rank;
};

struct grammar {
	/* From every state the end can be reached. Bytes are classes: those that no edge tells apart are one. */
	struct automaton automaton;
	struct grammar_rule *rules; /* [n_rules]; rule 0 is the root */
	uint32_t *by_rank; /* [n_rules] */
	uint32_t n_rules;
	uint8_t class_of[256], first_of[256]; /* the class of a byte; the first byte of a class */
	uint32_t n_classes;
};

/* Nothing follows in the state's rule: to call from here is to go on as the rule itself. */
static inline bool state_is_last(const struct automaton *a, uint32_t state)
{
	return a->states[state].final &&
	       a->states[state].first_bytes == a->states[state + 1].first_bytes &&
	       a->states[state].first_call == a->states[state + 1].first_call;
}

/* What the front ends do: write the builder's rules from the source. */
void grammar_read_gbnf(struct rules *builder, const char *source, size_t bytes);
void grammar_read_schema(struct rules *builder, const char *source, size_t bytes);
void grammar_read_parts(struct rules *builder, const char *source, size_t bytes);
void grammar_read_object(struct rules *builder);
/* A schema that is a part of the grammar; root is borrowed for the call. */
uint32_t grammar_schema_expr(struct rules *builder, const json_t *root);
/* Compiles what the builder has. */
int grammar_build(struct rules *builder, struct grammar **out, struct error *err);
