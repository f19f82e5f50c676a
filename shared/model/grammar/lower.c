#include "shared/model/grammar/automaton.h"

#include "shared/model/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

enum {
	NFA_EDGES_MAX = 4 * GRAMMAR_STATES_MAX, /* of one rule */
	AUTOMATA_WITHIN = 32,
};

void nfa_exit(struct nfa *nfa)
{
	free(nfa->edges);
	free(nfa->first);
	nfa->edges = NULL;
	nfa->first = NULL;
	nfa->n_edges = nfa->edges_capacity = nfa->n_states = nfa->states_capacity = 0;
}

uint32_t nfa_state(struct nfa *nfa)
{
	if (nfa->builder->rc != 0)
		return 0;
	if (nfa->n_states >= NFA_EDGES_MAX) {
		rules_fail(nfa->builder, E2BIG,
			"the grammar is too large: rule of more than %d states", NFA_EDGES_MAX);
		return 0;
	}
	if (!rules_grow(nfa->builder, &nfa->first, &nfa->states_capacity, nfa->n_states,
		    sizeof(*nfa->first)))
		return 0;
	nfa->first[nfa->n_states] = -1;
	return nfa->n_states++;
}

void nfa_add(struct nfa *nfa, uint32_t from, struct nfa_edge edge)
{
	if (nfa->builder->rc != 0)
		return;
	if (nfa->n_edges >= NFA_EDGES_MAX) {
		rules_fail(nfa->builder, E2BIG,
			"the grammar is too large: rule of more than %d edges", NFA_EDGES_MAX);
		return;
	}
	if (!rules_grow(nfa->builder, &nfa->edges, &nfa->edges_capacity, nfa->n_edges,
		    sizeof(*nfa->edges)))
		return;
	edge.next = nfa->first[from];
	nfa->first[from] = (int32_t)nfa->n_edges;
	nfa->edges[nfa->n_edges++] = edge;
}

static void epsilon(struct nfa *nfa, uint32_t from, uint32_t to)
{
	nfa_add(nfa, from, (struct nfa_edge){.kind = NFA_EPSILON, .to = to});
}

static uint32_t range(struct nfa *nfa, uint32_t from, uint8_t lo, uint8_t hi)
{
	uint32_t to = nfa_state(nfa);

	nfa_add(nfa, from, (struct nfa_edge){.kind = NFA_BYTES, .lo = lo, .hi = hi, .to = to});
	return to;
}

static uint32_t call(struct nfa *nfa, uint32_t from, uint32_t rule)
{
	if (nfa->inlined[rule] && nfa->depth < AUTOMATA_WITHIN) {
		nfa->depth++;
		uint32_t end = nfa_lower(nfa, nfa->builder->rules[rule].expr, from);
		nfa->depth--;
		return end;
	}
	uint32_t to = nfa_state(nfa);
	nfa_add(nfa, from, (struct nfa_edge){.kind = NFA_CALL, .rule = rule, .to = to});
	if (nfa->nullable[rule])
		epsilon(nfa, from, to);
	return to;
}

static uint32_t repeat(struct nfa *nfa, const struct expr *expr, uint32_t from)
{
	uint32_t end, loop, at = from;

	for (uint32_t i = 0; i < expr->min && nfa->builder->rc == 0; i++)
		at = nfa_lower(nfa, expr->first, at);
	if (expr->max == EXPR_MANY) {
		loop = nfa_state(nfa);
		epsilon(nfa, at, loop);
		epsilon(nfa, nfa_lower(nfa, expr->first, loop), loop);
		end = nfa_state(nfa);
		epsilon(nfa, loop, end);
		return end;
	}
	end = nfa_state(nfa);
	for (uint32_t i = expr->min; i < expr->max && nfa->builder->rc == 0; i++) {
		epsilon(nfa, at, end);
		at = nfa_lower(nfa, expr->first, at);
	}
	epsilon(nfa, at, end);
	return end;
}

static uint32_t graph(struct nfa *nfa, const struct expr *expr, uint32_t from)
{
	uint32_t base = nfa->n_states;

	for (uint32_t i = 0; i < expr->min; i++)
		nfa_state(nfa);
	if (nfa->builder->rc != 0)
		return 0;
	epsilon(nfa, from, base);
	for (uint32_t i = 0; i < expr->n && nfa->builder->rc == 0; i++) {
		struct expr_arc arc = nfa->builder->arcs[expr->first + i];

		epsilon(nfa, nfa_lower(nfa, arc.expr, base + arc.from), base + arc.to);
	}
	return base + 1;
}

/* Two automata that run side by side, as states of the automaton that is made of both. */
struct product {
	struct nfa *nfa;
	struct automaton both[2];
	bool but;
	uint32_t end;
	/* Pairs of states, of which the second may be DEAD; open addressing. */
	struct pair {
		uint32_t a, b, state;
	} * pairs;
	uint32_t n_pairs, capacity;
	uint32_t *table;
	uint32_t mask;
};
#define DEAD UINT32_MAX

static bool rehash(struct product *product)
{
	uint32_t slots = product->mask == 0 ? 256 : (product->mask + 1) * 2;
	uint32_t *table = calloc(slots, sizeof(*table));

	if (table == NULL) {
		rules_fail(product->nfa->builder, ENOMEM, "no memory for the grammar");
		return false;
	}
	free(product->table);
	product->table = table;
	product->mask = slots - 1;
	for (uint32_t i = 0; i < product->n_pairs; i++) {
		const struct pair *pair = &product->pairs[i];
		uint32_t at = (pair->a * 2654435761u ^ pair->b * 40503u) & product->mask;

		while (table[at] != 0)
			at = (at + 1) & product->mask;
		table[at] = i + 1;
	}
	return true;
}

static uint32_t pair_state(struct product *product, uint32_t a, uint32_t b)
{
	if ((product->n_pairs + 1) * 2 > product->mask && !rehash(product))
		return 0;
	uint32_t at = (a * 2654435761u ^ b * 40503u) & product->mask;
	for (; product->table[at] != 0; at = (at + 1) & product->mask) {
		const struct pair *pair = &product->pairs[product->table[at] - 1];

		if (pair->a == a && pair->b == b)
			return pair->state;
	}
	uint32_t state = nfa_state(product->nfa);
	if (!rules_grow(product->nfa->builder, &product->pairs, &product->capacity,
		    product->n_pairs, sizeof(*product->pairs)))
		return 0;
	product->pairs[product->n_pairs++] = (struct pair){a, b, state};
	product->table[at] = product->n_pairs;
	return state;
}

/* Where a byte leads, and the last byte up to which all lead there. */
static uint32_t target(const struct automaton *of, uint32_t state, uint32_t byte, uint32_t *last)
{
	*last = 255;
	if (state == DEAD)
		return DEAD;
	for (uint32_t i = of->states[state].first_bytes; i < of->states[state + 1].first_bytes;
		i++) {
		const struct auto_bytes *edge = &of->bytes[i];

		if (byte < edge->lo) {
			*last = *last < edge->lo - 1u ? *last : edge->lo - 1u;
		} else if (byte <= edge->hi) {
			*last = edge->hi;
			return edge->to;
		}
	}
	return DEAD;
}

static void expand(struct product *product, struct pair pair)
{
	const struct automaton *both = product->both;
	bool b_final = pair.b != DEAD && both[1].states[pair.b].final;

	if (both[0].states[pair.a].final && b_final != product->but)
		epsilon(product->nfa, pair.state, product->end);
	for (uint32_t byte = 0, last; byte < 256; byte = last + 1) {
		uint32_t other, a = target(&both[0], pair.a, byte, &last),
				b = target(&both[1], pair.b, byte, &other);

		last = other < last ? other : last;
		if (a == DEAD || (b == DEAD && !product->but))
			continue;
		nfa_add(product->nfa, pair.state,
			(struct nfa_edge){.kind = NFA_BYTES,
				.lo = (uint8_t)byte,
				.hi = (uint8_t)last,
				.to = pair_state(product, a, b)});
	}
}

static uint32_t product_of(struct nfa *nfa, const struct expr *expr, uint32_t from)
{
	struct product product = {.nfa = nfa, .but = expr->kind == EXPR_KIND_BUT};
	uint32_t start[2] = {0, 0}, first = expr->first;

	if (nfa->depth >= AUTOMATA_WITHIN)
		return rules_fail(nfa->builder, E2BIG,
			"the grammar combines more than %d conditions on one text",
			AUTOMATA_WITHIN);
	for (uint32_t i = 0; i < 2 && nfa->builder->rc == 0; i++) {
		struct nfa part = {.builder = nfa->builder,
			.nullable = nfa->nullable,
			.inlined = nfa->inlined,
			.depth = nfa->depth + 1};
		uint32_t begin = nfa_state(&part),
			 end = nfa_lower(&part, nfa->builder->kids[first + i], begin);

		start[i] = automaton_add(&product.both[i], &part, begin, end, true);
		if (nfa->builder->rc == 0 && product.both[i].n_calls > 0)
			rules_fail(nfa->builder, EINVAL,
				"a condition on a text is not a regular expression");
		nfa_exit(&part);
	}
	product.end = nfa_state(nfa);
	if (nfa->builder->rc == 0)
		epsilon(nfa, from, pair_state(&product, start[0], start[1]));
	for (uint32_t i = 0; i < product.n_pairs && nfa->builder->rc == 0; i++)
		expand(&product, product.pairs[i]);
	automaton_exit(&product.both[0]);
	automaton_exit(&product.both[1]);
	free(product.pairs);
	free(product.table);
	return product.end;
}

uint32_t nfa_lower(struct nfa *nfa, uint32_t expr, uint32_t from)
{
	struct rules *builder = nfa->builder;
	struct expr e = builder->exprs[expr];
	uint32_t at = from, end;

	if (builder->rc != 0)
		return 0;
	switch ((enum expr_kind)e.kind) {
	case EXPR_KIND_NEVER:
		return nfa_state(nfa);
	case EXPR_KIND_EMPTY:
		return from;
	case EXPR_KIND_RANGE:
		return range(nfa, from, e.lo, e.hi);
	case EXPR_KIND_BYTES:
		for (uint32_t i = 0; i < e.n; i++) {
			uint8_t byte = builder->bytes[e.first + i];
			at = range(nfa, at, byte, byte);
		}
		return at;
	case EXPR_KIND_SEQ:
		for (uint32_t i = 0; i < e.n; i++)
			at = nfa_lower(nfa, builder->kids[e.first + i], at);
		return at;
	case EXPR_KIND_ALT:
		end = nfa_state(nfa);
		for (uint32_t i = 0; i < e.n; i++)
			epsilon(nfa, nfa_lower(nfa, builder->kids[e.first + i], from), end);
		return end;
	case EXPR_KIND_REPEAT:
		return repeat(nfa, &e, from);
	case EXPR_KIND_RULE:
		return call(nfa, from, e.first);
	case EXPR_KIND_AND:
	case EXPR_KIND_BUT:
		return product_of(nfa, &e, from);
	case EXPR_KIND_GRAPH:
		return graph(nfa, &e, from);
	}
	return from;
}
