/*
 * Automata over bytes and calls of rules: from expressions (lower.c) to states with epsilon edges, and from those to
 * states without (determinize.c), deterministic unless that takes too many. Used while a grammar is compiled. One thread.
 */
#pragma once

#include "shared/model/grammar/expr.h"

enum nfa_kind { NFA_EPSILON, NFA_BYTES, NFA_CALL };

struct nfa_edge {
	uint8_t kind, lo, hi;
	uint32_t to, rule;
	int32_t next; /* of the same state; -1: none */
};

/* With epsilon edges. */
struct nfa {
	struct rules *builder; /* borrowed: limits and failures are its */
	const uint8_t *nullable; /* [n_rules] 1: the rule matches the empty text */
	const uint8_t *inlined; /* [n_rules] 1: the rule is lowered where it is called */
	struct nfa_edge *edges;
	uint32_t n_edges, edges_capacity;
	int32_t *first; /* of each state, its newest edge */
	uint32_t n_states, states_capacity;
	uint32_t depth; /* automata within automata */
};

void nfa_exit(struct nfa *nfa);
uint32_t nfa_state(struct nfa *nfa);
void nfa_add(struct nfa *nfa, uint32_t from, struct nfa_edge edge);
/* The expression, from that state on; the state where it ends. */
uint32_t nfa_lower(struct nfa *nfa, uint32_t expr, uint32_t from);

struct auto_bytes {
	uint8_t lo, hi;
	uint32_t to;
};
struct auto_call {
	uint32_t rule, to;
};
struct auto_state {
	uint32_t first_bytes, first_call; /* up to the next state's */
	bool final;
};

/* Without epsilon edges. States of several rules follow each other. */
struct automaton {
	struct auto_state *states; /* [n_states + 1] */
	struct auto_bytes *bytes;
	struct auto_call *calls;
	uint32_t n_states, n_bytes, n_calls;
	uint32_t states_capacity, bytes_capacity, calls_capacity;
};

void automaton_exit(struct automaton *automaton);
/* Adds what leads from start to end; the index of its first state. strict: it fails where it cannot be deterministic. */
uint32_t automaton_add(struct automaton *automaton, const struct nfa *nfa, uint32_t start,
	uint32_t end, bool strict);
/* State i is closed: what is added to bytes and calls from now on belongs to i + 1. */
void automaton_close(struct automaton *automaton, struct rules *builder, bool final);
