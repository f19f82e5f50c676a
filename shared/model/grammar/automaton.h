/*
 * Automata over bytes and calls of rules. lower.c makes states with epsilon edges from expressions;
 * determinize.c makes states without them, deterministic ones unless that takes too many. Used
 * while a grammar is compiled, by one thread.
 */
#pragma once

#include "shared/model/grammar/expr.h"

enum nfa_kind { NFA_EPSILON, NFA_BYTES, NFA_CALL };

struct nfa_edge {
	uint8_t kind, lo, hi;
	uint32_t to, rule;
	int32_t next; /* the next edge of the same state; -1: none */
};

/* An automaton with epsilon edges. */
struct nfa {
	struct rules *builder; /* borrowed; its limits hold, and it records failures */
	const uint8_t *nullable; /* [n_rules] 1: the rule matches the empty text */
	const uint8_t *inlined; /* [n_rules] 1: the rule is put in the place of its calls */
	struct nfa_edge *edges;
	uint32_t n_edges, edges_capacity;
	int32_t *first; /* for each state, its newest edge */
	uint32_t n_states, states_capacity;
	uint32_t depth; /* how deep automata are nested now */
};

void nfa_exit(struct nfa *nfa);
uint32_t nfa_state(struct nfa *nfa);
void nfa_add(struct nfa *nfa, uint32_t from, struct nfa_edge edge);
/* Adds the expression, beginning in state `from`. Returns the state in which it ends. */
uint32_t nfa_lower(struct nfa *nfa, uint32_t expr, uint32_t from);

struct auto_bytes {
	uint8_t lo, hi;
	uint32_t to;
};
struct auto_call {
	uint32_t rule, to;
};
struct auto_state {
	/* index of the first; they end where the next state's begin */
	uint32_t first_bytes, first_call;
	bool final;
};

/* An automaton without epsilon edges. States of several rules follow one another. */
struct automaton {
	struct auto_state *states; /* [n_states + 1] */
	struct auto_bytes *bytes;
	struct auto_call *calls;
	uint32_t n_states, n_bytes, n_calls;
	uint32_t states_capacity, bytes_capacity, calls_capacity;
};

void automaton_exit(struct automaton *automaton);
/* Adds the part of the nfa that leads from start to end. Returns the index of its first state.
 * strict: fails if that cannot be deterministic. */
uint32_t automaton_add(struct automaton *automaton, const struct nfa *nfa, uint32_t start,
	uint32_t end, bool strict);
/* Closes state i: what is added to bytes and calls from now on belongs to i + 1. */
void automaton_close(struct automaton *automaton, struct rules *builder, bool final);
