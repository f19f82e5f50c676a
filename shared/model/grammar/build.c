/* From a builder's rules to a compiled grammar. */
#include "shared/model/grammar/tables.h"

#include <stdlib.h>
#include <string.h>

enum {
	INLINE_COST =
		64, /* rules that take up to this many states are put in the place of their calls */
	INLINE_HEIGHT = 32, /* how deep such rules may be within such rules */
};

struct build {
	struct rules *builder;
	struct grammar *grammar;
	uint8_t *nullable, *inlined;
	uint32_t *cost, *height; /* of inlined rules */
};

static bool nullable(const struct build *build, uint32_t expr)
{
	const struct rules *b = build->builder;
	const struct expr *e = &b->exprs[expr];
	bool any = false;

	switch ((enum expr_kind)e->kind) {
	case EXPR_KIND_EMPTY:
		return true;
	case EXPR_KIND_NEVER:
	case EXPR_KIND_RANGE:
	case EXPR_KIND_BYTES:
		return false;
	case EXPR_KIND_RULE:
		return build->nullable[e->first];
	case EXPR_KIND_REPEAT:
		return e->min == 0 || nullable(build, e->first);
	case EXPR_KIND_SEQ:
	case EXPR_KIND_AND:
		for (uint32_t i = 0; i < e->n; i++)
			if (!nullable(build, b->kids[e->first + i]))
				return false;
		return true;
	case EXPR_KIND_ALT:
		for (uint32_t i = 0; i < e->n && !any; i++)
			any = nullable(build, b->kids[e->first + i]);
		return any;
	case EXPR_KIND_BUT:
		return nullable(build, b->kids[e->first]) &&
		       !nullable(build, b->kids[e->first + 1]);
	case EXPR_KIND_GRAPH:
		/* No front end makes a graph that matches the empty text. */
		return false;
	}
	return false;
}

static void find_nullable(struct build *build)
{
	for (bool again = true; again;) {
		again = false;
		for (uint32_t i = build->builder->n_rules; i-- > 0;)
			if (!build->nullable[i] && nullable(build, build->builder->rules[i].expr)) {
				build->nullable[i] = 1;
				again = true;
			}
	}
}

/* The states that an expression takes with the rules that it names; INLINE_COST + 1 if there are
 * more, or if one of the rules is not inlined. *height: how deep rules are within it. */
static uint32_t inline_cost(const struct build *build, uint32_t expr, uint32_t *height)
{
	const struct rules *b = build->builder;
	const struct expr *e = &b->exprs[expr];
	uint32_t cost = 0;

	if (e->cost > INLINE_COST)
		return INLINE_COST + 1;
	switch ((enum expr_kind)e->kind) {
	case EXPR_KIND_RULE:
		if (!build->inlined[e->first])
			return INLINE_COST + 1;
		if (build->height[e->first] >= *height)
			*height = build->height[e->first] + 1;
		return build->cost[e->first];
	case EXPR_KIND_REPEAT:
		cost = inline_cost(build, e->first, height) *
		       (e->max == EXPR_MANY ? e->min + 1 : e->max);
		break;
	case EXPR_KIND_SEQ:
	case EXPR_KIND_ALT:
	case EXPR_KIND_AND:
	case EXPR_KIND_BUT:
		for (uint32_t i = 0; i < e->n && cost <= INLINE_COST; i++)
			cost += inline_cost(build, b->kids[e->first + i], height);
		break;
	case EXPR_KIND_GRAPH:
		for (uint32_t i = 0; i < e->n && cost <= INLINE_COST; i++)
			cost += inline_cost(build, b->arcs[e->first + i].expr, height);
		break;
	default:
		cost = e->cost;
	}
	return cost > INLINE_COST ? INLINE_COST + 1 : cost;
}

/* Rules that call themselves are never inlined: for that, all rules that they name would have to be
 * inlined before. */
static void find_inlined(struct build *build)
{
	for (uint32_t round = 0; round < INLINE_HEIGHT; round++)
		for (uint32_t i = build->builder->n_rules; i-- > 1;) {
			const struct rule *rule = &build->builder->rules[i];
			uint32_t height = 0;

			if (build->inlined[i] || rule->whole)
				continue;
			build->cost[i] = inline_cost(build, rule->expr, &height);
			build->height[i] = height;
			build->inlined[i] = build->cost[i] <= INLINE_COST && height < INLINE_HEIGHT;
		}
}

static void lower_rule(struct build *build, uint32_t rule)
{
	struct automaton *a = &build->grammar->automaton;
	struct nfa nfa = {
		.builder = build->builder, .nullable = build->nullable, .inlined = build->inlined};
	uint32_t start = nfa_state(&nfa), end;

	end = nfa_lower(&nfa, build->builder->rules[rule].expr, start);
	build->grammar->rules[rule].start = automaton_add(a, &nfa, start, end, false);
	nfa_exit(&nfa);
}

/* Lowers the root, the rules that it calls, those that these call, and so on. */
static void lower_all(struct build *build)
{
	struct grammar *g = build->grammar;

	automaton_close(&g->automaton, build->builder, false);
	for (uint32_t i = 0; i < g->n_rules; i++)
		g->rules[i].start = RULE_UNUSED;
	lower_rule(build, 0);
	for (uint32_t i = 0; i < g->automaton.n_calls && build->builder->rc == 0; i++) {
		uint32_t rule = g->automaton.calls[i].rule;

		if (g->rules[rule].start == RULE_UNUSED)
			lower_rule(build, rule);
	}
}

/* Finds the states from which their rule can end, going back from the ends. The edge of a call
 * counts once the called rule can end too. */
struct ends {
	const struct grammar *g;
	uint32_t *first, *next; /* edges that lead to a state: first bytes, then calls */
	uint32_t *from; /* of each edge */
	uint32_t *waiting, *waits_next; /* edges of calls that wait for a rule */
	uint32_t *work, n_work;
	uint8_t *can; /* [n_states] */
	uint8_t *rule_can;
};
#define NO_EDGE UINT32_MAX

static void ends_reach(struct ends *e, uint32_t state)
{
	if (e->can[state])
		return;
	e->can[state] = 1;
	e->work[e->n_work++] = state;
}

static void ends_edge(struct ends *e, uint32_t edge)
{
	const struct automaton *a = &e->g->automaton;

	if (edge >= a->n_bytes) {
		uint32_t rule = a->calls[edge - a->n_bytes].rule;

		if (!e->rule_can[rule]) {
			e->waits_next[edge - a->n_bytes] = e->waiting[rule];
			e->waiting[rule] = edge;
			return;
		}
	}
	ends_reach(e, e->from[edge]);
}

static void ends_state(struct ends *e, uint32_t state, const uint32_t *rule_of_start)
{
	const struct automaton *a = &e->g->automaton;

	for (uint32_t edge = e->first[state]; edge != NO_EDGE; edge = e->next[edge])
		ends_edge(e, edge);
	uint32_t rule = rule_of_start[state];
	if (rule == RULE_UNUSED || e->rule_can[rule])
		return;
	e->rule_can[rule] = 1;
	for (uint32_t edge = e->waiting[rule]; edge != NO_EDGE;
		edge = e->waits_next[edge - a->n_bytes])
		ends_reach(e, e->from[edge]);
}

static void ends_find(struct ends *e, uint32_t *rule_of_start)
{
	const struct automaton *a = &e->g->automaton;

	memset(rule_of_start, 0xFF, a->n_states * sizeof(*rule_of_start));
	memset(e->first, 0xFF, a->n_states * sizeof(*e->first));
	memset(e->waiting, 0xFF, e->g->n_rules * sizeof(*e->waiting));
	for (uint32_t i = 0; i < e->g->n_rules; i++)
		if (e->g->rules[i].start != RULE_UNUSED)
			rule_of_start[e->g->rules[i].start] = i;
	for (uint32_t s = 0; s < a->n_states; s++) {
		for (uint32_t i = a->states[s].first_bytes; i < a->states[s + 1].first_bytes; i++) {
			e->from[i] = s;
			e->next[i] = e->first[a->bytes[i].to];
			e->first[a->bytes[i].to] = i;
		}
		for (uint32_t i = a->states[s].first_call; i < a->states[s + 1].first_call; i++) {
			uint32_t edge = a->n_bytes + i;

			e->from[edge] = s;
			e->next[edge] = e->first[a->calls[i].to];
			e->first[a->calls[i].to] = edge;
		}
		if (a->states[s].final)
			ends_reach(e, s);
	}
	while (e->n_work > 0)
		ends_state(e, e->work[--e->n_work], rule_of_start);
}

/* Removes the edges after which nothing can end. */
static void drop_edges(struct automaton *a, const struct ends *e)
{
	uint32_t n_bytes = 0, n_calls = 0, bytes = 0, calls = 0;

	for (uint32_t s = 0; s < a->n_states; s++) {
		uint32_t last_bytes = a->states[s + 1].first_bytes,
			 last_call = a->states[s + 1].first_call;

		a->states[s].first_bytes = n_bytes;
		a->states[s].first_call = n_calls;
		for (; bytes < last_bytes; bytes++)
			if (e->can[a->bytes[bytes].to])
				a->bytes[n_bytes++] = a->bytes[bytes];
		for (; calls < last_call; calls++)
			if (e->can[a->calls[calls].to] && e->rule_can[a->calls[calls].rule])
				a->calls[n_calls++] = a->calls[calls];
	}
	a->states[a->n_states].first_bytes = a->n_bytes = n_bytes;
	a->states[a->n_states].first_call = a->n_calls = n_calls;
}

static void drop_endless(struct build *build)
{
	struct grammar *g = build->grammar;
	struct automaton *a = &g->automaton;
	size_t n_edges = (size_t)a->n_bytes + a->n_calls + 1, n = a->n_states;
	uint32_t *memory =
		malloc((2 * n_edges + 3 * n + g->n_rules + a->n_calls) * sizeof(*memory));
	uint8_t *flags = calloc(n + g->n_rules, 1);
	struct ends e = {.g = g};

	if (memory != NULL && flags != NULL) {
		e.next = memory;
		e.from = e.next + n_edges;
		e.first = e.from + n_edges;
		e.work = e.first + n;
		e.waiting = e.work + 2 * n;
		e.waits_next = e.waiting + g->n_rules;
		e.can = flags;
		e.rule_can = flags + n;
		ends_find(&e, e.work + n);
		if (!e.can[g->rules[0].start])
			rules_fail(build->builder, EINVAL, "the grammar matches no text");
		else
			drop_edges(a, &e);
	} else {
		rules_fail(build->builder, ENOMEM, "no memory for the grammar");
	}
	free(memory);
	free(flags);
}

/* Ranks the rules: callers at a rule's beginning first. A rule that is left over calls itself
 * there. */
static void rank_rules(struct build *build)
{
	struct grammar *g = build->grammar;
	const struct automaton *a = &g->automaton;
	uint32_t *callers = calloc(g->n_rules, sizeof(*callers)), n = 0, n_used = 0;

	if (callers == NULL) {
		rules_fail(build->builder, ENOMEM, "no memory for the grammar");
		return;
	}
/* NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared cannot stand in parentheses. */
#define EACH_START_CALL(rule, call)                                              \
	if (g->rules[rule].start != RULE_UNUSED)                                 \
		for (uint32_t call = a->states[g->rules[rule].start].first_call; \
			call < a->states[g->rules[rule].start + 1].first_call; call++)
	/* NOLINTEND(bugprone-macro-parentheses) */
	for (uint32_t i = 0; i < g->n_rules; i++)
		EACH_START_CALL(i, call)
	callers[a->calls[call].rule]++;
	for (uint32_t i = 0; i < g->n_rules; i++) {
		n_used += g->rules[i].start != RULE_UNUSED;
		if (g->rules[i].start != RULE_UNUSED && callers[i] == 0)
			g->by_rank[n++] = i;
	}
	for (uint32_t i = 0; i < n; i++) {
		g->rules[g->by_rank[i]].rank = i;
		EACH_START_CALL(g->by_rank[i], call)
		if (--callers[a->calls[call].rule] == 0)
			g->by_rank[n++] = a->calls[call].rule;
	}
#undef EACH_START_CALL
	for (uint32_t i = 0; i < g->n_rules && n < n_used; i++)
		if (callers[i] > 0)
			rules_fail(build->builder, EINVAL,
				"rule \"%.64s\" begins with itself, or with a rule that does: left "
				"recursion is not supported",
				build->builder->rules[i].name);
	free(callers);
}

/* Numbers the classes in the order of their bytes, so that the bytes of an edge are also a range of
 * classes. */
static void find_classes(struct grammar *g)
{
	struct automaton *a = &g->automaton;
	bool cut[257] = {false};

	for (uint32_t i = 0; i < a->n_bytes; i++)
		cut[a->bytes[i].lo] = cut[a->bytes[i].hi + 1] = true;
	cut[0] = true;
	for (uint32_t byte = 0; byte < 256; byte++) {
		if (cut[byte])
			g->first_of[g->n_classes++] = (uint8_t)byte;
		g->class_of[byte] = (uint8_t)(g->n_classes - 1);
	}
	for (uint32_t i = 0; i < a->n_bytes; i++) {
		a->bytes[i].lo = g->class_of[a->bytes[i].lo];
		a->bytes[i].hi = g->class_of[a->bytes[i].hi];
	}
}

static bool make_room(struct build *build)
{
	uint32_t n = build->builder->n_rules;
	struct grammar *g = calloc(1, sizeof(*g));

	build->grammar = g;
	build->nullable = calloc(n, 2);
	build->cost = calloc(n, 2 * sizeof(*build->cost));
	if (g == NULL || build->nullable == NULL || build->cost == NULL)
		return false;
	build->inlined = build->nullable + n;
	build->height = build->cost + n;
	g->n_rules = n;
	g->rules = calloc(n, sizeof(*g->rules));
	g->by_rank = calloc(n, sizeof(*g->by_rank));
	return g->rules != NULL && g->by_rank != NULL;
}

int grammar_build(struct rules *builder, struct grammar **out, struct error *err)
{
	struct build build = {.builder = builder};

	if (!make_room(&build))
		rules_fail(builder, ENOMEM, "no memory for the grammar");
	if (builder->rc == 0) {
		find_nullable(&build);
		find_inlined(&build);
		lower_all(&build);
	}
	if (builder->rc == 0)
		drop_endless(&build);
	if (builder->rc == 0)
		rank_rules(&build);
	free(build.nullable);
	free(build.cost);
	if (builder->rc != 0) {
		grammar_free(&build.grammar);
		if (err != NULL)
			*err = builder->err;
		return builder->rc;
	}
	find_classes(build.grammar);
	*out = build.grammar;
	return 0;
}

void grammar_free(struct grammar **grammar)
{
	if (*grammar == NULL)
		return;
	automaton_exit(&(*grammar)->automaton);
	free((*grammar)->rules);
	free((*grammar)->by_rank);
	free(*grammar);
	*grammar = NULL;
}
