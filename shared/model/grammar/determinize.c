/* The subset construction: a state of the result is the set of states to which a text may have led.
 * If there would be too many sets, each state of the original becomes a state, and one byte may
 * lead to several. */
#include "shared/model/grammar/automaton.h"

#include "shared/model/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

enum {
	SETS_PER_STATE =
		4, /* more sets than this many times the states, and SETS_SPARE, are too many */
	SETS_SPARE = 1024,
	POOL_MAX = 1 << 24, /* members of all sets */
};

struct set {
	uint32_t first, n, hash;
	bool final;
};

struct subsets {
	const struct nfa *nfa;
	struct rules *builder;
	struct automaton *out;
	uint32_t start, end;
	uint32_t *pool;
	uint32_t n_pool, pool_capacity;
	struct set *sets;
	uint32_t n_sets, sets_capacity;
	uint32_t *table; /* open addressing: index of a set, plus one */
	uint32_t slots;
	uint32_t *mark; /* [n_states] of the NFA: the last closure that reached it */
	uint32_t *work, n_work; /* [n_states] the closure in progress */
	uint32_t epoch;
	uint32_t *targets, n_targets, targets_capacity;
	bool too_many;
};

void automaton_exit(struct automaton *automaton)
{
	free(automaton->states);
	free(automaton->bytes);
	free(automaton->calls);
	memset(automaton, 0, sizeof(*automaton));
}

void automaton_close(struct automaton *automaton, struct rules *builder, bool final)
{
	if (automaton->n_states >= GRAMMAR_STATES_MAX)
		rules_fail(builder, E2BIG, "the grammar is too large: more than %d states",
			GRAMMAR_STATES_MAX);
	if (builder->rc != 0 ||
		!rules_grow(builder, &automaton->states, &automaton->states_capacity,
			automaton->n_states + 1, sizeof(*automaton->states)))
		return;
	if (automaton->n_states == 0)
		automaton->states[0] = (struct auto_state){0};
	automaton->states[automaton->n_states++].final = final;
	automaton->states[automaton->n_states] = (struct auto_state){
		.first_bytes = automaton->n_bytes, .first_call = automaton->n_calls};
}

static void add_bytes(struct subsets *s, uint8_t lo, uint8_t hi, uint32_t to)
{
	struct automaton *out = s->out;
	uint32_t first = out->n_states > 0 ? out->states[out->n_states].first_bytes : 0;
	struct auto_bytes *last = out->n_bytes > first ? &out->bytes[out->n_bytes - 1] : NULL;

	if (last != NULL && last->to == to && last->hi + 1 == lo) {
		last->hi = hi;
		return;
	}
	if (rules_grow(s->builder, &out->bytes, &out->bytes_capacity, out->n_bytes,
		    sizeof(*out->bytes)))
		out->bytes[out->n_bytes++] = (struct auto_bytes){lo, hi, to};
}

static void add_call(struct subsets *s, uint32_t rule, uint32_t to)
{
	struct automaton *out = s->out;

	if (rules_grow(s->builder, &out->calls, &out->calls_capacity, out->n_calls,
		    sizeof(*out->calls)))
		out->calls[out->n_calls++] = (struct auto_call){rule, to};
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void reach(struct subsets *s, uint32_t state)
{
	if (s->mark[state] == s->epoch)
		return;
	s->mark[state] = s->epoch;
	s->work[s->n_work++] = state;
}

/* The closure of s->targets, at the end of the pool: the states to which they lead that have edges
 * other than epsilon. */
static struct set closure(struct subsets *s)
{
	struct set set = {.first = s->n_pool};

	s->epoch++;
	s->n_work = 0;
	for (uint32_t i = 0; i < s->n_targets; i++)
		reach(s, s->targets[i]);
	for (uint32_t i = 0; i < s->n_work; i++) {
		/* No edge leads to the start. It is part of the set with which a rule begins, so
		 * that no later set equals that one. */
		bool counts = s->work[i] == s->end || s->work[i] == s->start;

		for (int32_t at = s->nfa->first[s->work[i]]; at >= 0; at = s->nfa->edges[at].next) {
			if (s->nfa->edges[at].kind == NFA_EPSILON)
				reach(s, s->nfa->edges[at].to);
			else
				counts = true;
		}
		if (!counts)
			continue;
		if (!rules_grow(
			    s->builder, &s->pool, &s->pool_capacity, s->n_pool, sizeof(*s->pool)))
			return set;
		s->pool[s->n_pool++] = s->work[i];
		set.final |= s->work[i] == s->end;
	}
	set.n = s->n_pool - set.first;
	if (set.n > 1)
		qsort(s->pool + set.first, set.n, sizeof(*s->pool), by_number);
	for (uint32_t i = 0; i < set.n; i++)
		set.hash = (set.hash ^ s->pool[set.first + i]) * 0x9E3779B1u;
	set.hash ^= set.hash >> 15;
	return set;
}

static bool grow_table(struct subsets *s)
{
	uint32_t slots = s->slots == 0 ? 64 : s->slots * 2;
	uint32_t *table = calloc(slots, sizeof(*table));

	if (table == NULL) {
		rules_fail(s->builder, ENOMEM, "no memory for the grammar");
		return false;
	}
	for (uint32_t i = 0; i < s->n_sets; i++) {
		uint32_t at = s->sets[i].hash & (slots - 1);

		while (table[at] != 0)
			at = (at + 1) & (slots - 1);
		table[at] = i + 1;
	}
	free(s->table);
	s->table = table;
	s->slots = slots;
	return true;
}

/* The number of the set to which s->targets lead. */
static uint32_t set_of(struct subsets *s)
{
	struct set set = closure(s);

	if (s->builder->rc != 0 || (s->n_sets * 2 >= s->slots && !grow_table(s)))
		return 0;
	uint32_t at = set.hash & (s->slots - 1);
	for (; s->table[at] != 0; at = (at + 1) & (s->slots - 1)) {
		const struct set *old = &s->sets[s->table[at] - 1];

		if (old->hash == set.hash && old->n == set.n &&
			memcmp(s->pool + old->first, s->pool + set.first,
				set.n * sizeof(*s->pool)) == 0) {
			s->n_pool = set.first;
			return s->table[at] - 1;
		}
	}
	if (!rules_grow(s->builder, &s->sets, &s->sets_capacity, s->n_sets, sizeof(*s->sets)))
		return 0;
	s->sets[s->n_sets++] = set;
	s->table[at] = s->n_sets;
	s->too_many |=
		s->n_sets > SETS_PER_STATE * s->nfa->n_states + SETS_SPARE || s->n_pool > POOL_MAX;
	return s->n_sets - 1;
}

static void target(struct subsets *s, uint32_t state)
{
	if (rules_grow(s->builder, &s->targets, &s->targets_capacity, s->n_targets,
		    sizeof(*s->targets)))
		s->targets[s->n_targets++] = state;
}

/* Visits each edge of the members of a set that is not epsilon. */
#define EACH_EDGE(s, set, edge)                                                              \
	for (uint32_t member = 0; member < (set).n; member++)                                \
		for (int32_t at = (s)->nfa->first[(s)->pool[(set).first + member]]; at >= 0; \
			at = (s)->nfa->edges[at].next)                                       \
			if (((edge) = &(s)->nfa->edges[at])->kind != NFA_EPSILON)

static void expand_bytes(struct subsets *s, struct set set, uint32_t base)
{
	const struct nfa_edge *edge;
	bool cut[257] = {false};

	EACH_EDGE(s, set, edge)
	if (edge->kind == NFA_BYTES)
		cut[edge->lo] = cut[edge->hi + 1] = true;
	for (uint32_t lo = 0, hi; lo < 256; lo = hi + 1) {
		for (hi = lo; hi < 255 && !cut[hi + 1];)
			hi++;
		s->n_targets = 0;
		EACH_EDGE(s, set, edge)
		if (edge->kind == NFA_BYTES && edge->lo <= lo && hi <= edge->hi)
			target(s, edge->to);
		if (s->n_targets > 0)
			add_bytes(s, (uint8_t)lo, (uint8_t)hi, base + set_of(s));
	}
}

static void expand_calls(struct subsets *s, struct set set, uint32_t base)
{
	const struct nfa_edge *edge;
	uint32_t rule, before = 0;
	bool any;

	/* Rules by rising number, each once. */
	do {
		any = false;
		rule = UINT32_MAX;
		EACH_EDGE(s, set, edge)
		if (edge->kind == NFA_CALL && edge->rule >= before && edge->rule < rule) {
			rule = edge->rule;
			any = true;
		}
		if (!any)
			break;
		s->n_targets = 0;
		EACH_EDGE(s, set, edge)
		if (edge->kind == NFA_CALL && edge->rule == rule)
			target(s, edge->to);
		add_call(s, rule, base + set_of(s));
		before = rule + 1;
	} while (s->builder->rc == 0);
}

static void deterministic(struct subsets *s)
{
	uint32_t base = s->out->n_states;

	s->n_targets = 0;
	target(s, s->start);
	set_of(s);
	for (uint32_t i = 0; i < s->n_sets && s->builder->rc == 0 && !s->too_many; i++) {
		expand_bytes(s, s->sets[i], base);
		expand_calls(s, s->sets[i], base);
		automaton_close(s->out, s->builder, s->sets[i].final);
	}
}

/* Copies the NFA without making it deterministic. State 0 is its beginning; state i + 1 is state i
 * of the NFA. */
static void as_it_is(struct subsets *s)
{
	uint32_t base = s->out->n_states, empty = s->n_pool;

	for (uint32_t i = 0; i <= s->nfa->n_states && s->builder->rc == 0; i++) {
		uint32_t state = i == 0 ? s->start : i - 1;
		struct set set;
		bool final;

		s->n_pool = empty;
		s->n_targets = 0;
		target(s, state);
		set = closure(s);
		final = set.final;
		for (uint32_t member = 0; member < set.n; member++)
			for (int32_t at = s->nfa->first[s->pool[set.first + member]]; at >= 0;
				at = s->nfa->edges[at].next) {
				const struct nfa_edge *edge = &s->nfa->edges[at];

				if (edge->kind == NFA_BYTES)
					add_bytes(s, edge->lo, edge->hi, base + 1 + edge->to);
				else if (edge->kind == NFA_CALL)
					add_call(s, edge->rule, base + 1 + edge->to);
			}
		automaton_close(s->out, s->builder, final);
	}
}

uint32_t automaton_add(struct automaton *automaton, const struct nfa *nfa, uint32_t start,
	uint32_t end, bool strict)
{
	struct subsets s = {
		.nfa = nfa, .builder = nfa->builder, .out = automaton, .start = start, .end = end};
	uint32_t base = automaton->n_states, n_bytes = automaton->n_bytes,
		 n_calls = automaton->n_calls;

	if (nfa->builder->rc != 0)
		return 0;
	s.mark = calloc(nfa->n_states, sizeof(*s.mark));
	s.work = calloc(nfa->n_states, sizeof(*s.work));
	if (s.mark == NULL || s.work == NULL)
		rules_fail(nfa->builder, ENOMEM, "no memory for the grammar");
	else
		deterministic(&s);
	if (s.too_many && nfa->builder->rc == 0) {
		automaton->n_states = base;
		automaton->n_bytes = n_bytes;
		automaton->n_calls = n_calls;
		if (strict)
			rules_fail(nfa->builder, E2BIG,
				"a condition on a text takes more than %u states", s.n_sets);
		else
			as_it_is(&s);
	}
	free(s.mark);
	free(s.work);
	free(s.pool);
	free(s.sets);
	free(s.table);
	free(s.targets);
	return base;
}
