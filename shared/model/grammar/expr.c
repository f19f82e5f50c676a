#include "shared/model/grammar/expr.h"

#include "shared/model/grammar/grammar.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t rules_fail(struct rules *builder, int code, const char *format, ...)
{
	va_list args;

	if (builder->rc != 0)
		return EXPR_NEVER;
	builder->rc = -code;
	va_start(args, format);
	vsnprintf(builder->err.text, sizeof(builder->err.text), format, args);
	va_end(args);
	return EXPR_NEVER;
}

bool rules_grow(struct rules *builder, void *array, uint32_t *capacity, uint32_t n, size_t each)
{
	void *old, *more;

	if (n < *capacity)
		return true;
	uint32_t want = *capacity < 32 ? 32 : *capacity;
	while (want <= n)
		want *= 2;
	memcpy(&old, array, sizeof(old));
	more = want > GRAMMAR_PARTS_MAX * 2u ? NULL : realloc(old, want * each);
	if (want > GRAMMAR_PARTS_MAX * 2u)
		rules_fail(builder, E2BIG, "the grammar is too large: more than %d parts",
			GRAMMAR_PARTS_MAX);
	else if (more == NULL)
		rules_fail(builder, ENOMEM, "no memory for the grammar");
	if (more == NULL)
		return false;
	memcpy(array, &more, sizeof(more));
	*capacity = want;
	return true;
}

enum {
	COST_MOST = 1 << 30,
	REPEAT_COST = 2048, /* a repetition that takes more states calls a rule each time */
};

static uint32_t cost_sum(uint64_t a, uint64_t b)
{
	return a + b < COST_MOST ? (uint32_t)(a + b) : COST_MOST;
}

static uint32_t cost_times(uint32_t cost, uint32_t times)
{
	uint64_t product = (uint64_t)cost * times;

	return product < COST_MOST ? (uint32_t)product : COST_MOST;
}

static uint32_t add(struct rules *builder, struct expr expr)
{
	if (builder->rc != 0 || !rules_grow(builder, &builder->exprs, &builder->exprs_capacity,
					builder->n_exprs, sizeof(*builder->exprs)))
		return EXPR_NEVER;
	builder->exprs[builder->n_exprs] = expr;
	return builder->n_exprs++;
}

void rules_init(struct rules *builder)
{
	memset(builder, 0, sizeof(*builder));
	add(builder, (struct expr){.kind = EXPR_KIND_NEVER});
	add(builder, (struct expr){.kind = EXPR_KIND_EMPTY});
	rules_add(builder, "root", strlen("root"));
}

void rules_exit(struct rules *builder)
{
	for (uint32_t i = 0; i < builder->n_rules; i++)
		free(builder->rules[i].name);
	free(builder->exprs);
	free(builder->kids);
	free(builder->bytes);
	free(builder->arcs);
	free(builder->rules);
	memset(builder, 0, sizeof(*builder));
}

uint32_t expr_range(struct rules *builder, uint8_t lo, uint8_t hi)
{
	if (lo > hi)
		return EXPR_NEVER;
	return add(builder, (struct expr){.kind = EXPR_KIND_RANGE, .lo = lo, .hi = hi, .cost = 1});
}

uint32_t expr_bytes(struct rules *builder, const void *bytes, size_t n)
{
	struct expr expr = {.kind = EXPR_KIND_BYTES,
		.first = builder->n_bytes,
		.n = (uint32_t)n,
		.cost = (uint32_t)n};

	if (n == 0)
		return EXPR_EMPTY;
	if (n > GRAMMAR_PARTS_MAX || !rules_grow(builder, &builder->bytes, &builder->bytes_capacity,
					     builder->n_bytes + (uint32_t)n, 1))
		return rules_fail(builder, E2BIG, "a text of the grammar is too long");
	memcpy(builder->bytes + builder->n_bytes, bytes, n);
	builder->n_bytes += (uint32_t)n;
	return add(builder, expr);
}

uint32_t expr_text(struct rules *builder, const char *text)
{
	return expr_bytes(builder, text, strlen(text));
}

static uint32_t family(struct rules *builder, enum expr_kind kind, const uint32_t *kids, uint32_t n)
{
	struct expr expr = {.kind = (uint8_t)kind, .first = builder->n_kids, .n = n};

	if (builder->rc != 0 || !rules_grow(builder, &builder->kids, &builder->kids_capacity,
					builder->n_kids + n, sizeof(*builder->kids)))
		return EXPR_NEVER;
	memcpy(builder->kids + builder->n_kids, kids, n * sizeof(*kids));
	for (uint32_t i = 0; i < n; i++)
		expr.cost = cost_sum(expr.cost, builder->exprs[kids[i]].cost);
	builder->n_kids += n;
	return add(builder, expr);
}

uint32_t expr_seq(struct rules *builder, const uint32_t *kids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (kids[i] == EXPR_NEVER)
			return EXPR_NEVER;
	if (n == 0)
		return EXPR_EMPTY;
	return n == 1 ? kids[0] : family(builder, EXPR_KIND_SEQ, kids, n);
}

uint32_t expr_alt(struct rules *builder, const uint32_t *kids, uint32_t n)
{
	if (n == 0)
		return EXPR_NEVER;
	return n == 1 ? kids[0] : family(builder, EXPR_KIND_ALT, kids, n);
}

uint32_t expr_seq2(struct rules *builder, uint32_t a, uint32_t b)
{
	if (a == EXPR_EMPTY || b == EXPR_EMPTY)
		return a == EXPR_EMPTY ? b : a;
	return expr_seq(builder, (uint32_t[]){a, b}, 2);
}

uint32_t expr_alt2(struct rules *builder, uint32_t a, uint32_t b)
{
	if (a == EXPR_NEVER || b == EXPR_NEVER)
		return a == EXPR_NEVER ? b : a;
	return expr_alt(builder, (uint32_t[]){a, b}, 2);
}

uint32_t expr_repeat(struct rules *builder, uint32_t kid, uint32_t min, uint32_t max)
{
	if (min > max)
		return EXPR_NEVER;
	if (kid == EXPR_NEVER)
		return min == 0 ? EXPR_EMPTY : EXPR_NEVER;
	if (kid == EXPR_EMPTY || max == 0)
		return EXPR_EMPTY;
	if (min == 1 && max == 1)
		return kid;
	if (min > GRAMMAR_REPEAT_MAX || (max != EXPR_MANY && max > GRAMMAR_REPEAT_MAX))
		return rules_fail(builder, E2BIG, "a repetition counts to %u; at most %d",
			max != EXPR_MANY ? max : min, GRAMMAR_REPEAT_MAX);
	uint32_t times = max != EXPR_MANY ? max : min + 1, cost = builder->exprs[kid].cost;
	if (!builder->regular && cost > 4 && cost_times(cost, times) > REPEAT_COST) {
		uint32_t rule = rules_add(builder, "repeated", strlen("repeated"));

		rules_define(builder, rule, kid);
		builder->rules[rule].whole = true;
		kid = expr_rule(builder, rule);
		cost = 1;
	}
	return add(builder, (struct expr){.kind = EXPR_KIND_REPEAT,
				    .first = kid,
				    .min = min,
				    .max = max,
				    .cost = cost_times(cost, times)});
}

uint32_t expr_optional(struct rules *builder, uint32_t kid)
{
	return expr_repeat(builder, kid, 0, 1);
}

uint32_t expr_and(struct rules *builder, uint32_t a, uint32_t b)
{
	return family(builder, EXPR_KIND_AND, (uint32_t[]){a, b}, 2);
}

uint32_t expr_but(struct rules *builder, uint32_t a, uint32_t b)
{
	return b == EXPR_NEVER ? a : family(builder, EXPR_KIND_BUT, (uint32_t[]){a, b}, 2);
}

uint32_t expr_rule(struct rules *builder, uint32_t rule)
{
	return add(builder, (struct expr){.kind = EXPR_KIND_RULE, .first = rule, .cost = 1});
}

uint32_t expr_graph(
	struct rules *builder, uint32_t n_states, const struct expr_arc *arcs, uint32_t n)
{
	struct expr expr = {
		.kind = EXPR_KIND_GRAPH, .first = builder->n_arcs, .n = n, .min = n_states};

	if (builder->rc != 0 || !rules_grow(builder, &builder->arcs, &builder->arcs_capacity,
					builder->n_arcs + n, sizeof(*builder->arcs)))
		return EXPR_NEVER;
	memcpy(builder->arcs + builder->n_arcs, arcs, n * sizeof(*arcs));
	for (uint32_t i = 0; i < n; i++)
		expr.cost = cost_sum(expr.cost, builder->exprs[arcs[i].expr].cost);
	builder->n_arcs += n;
	return add(builder, expr);
}

uint32_t rules_add(struct rules *builder, const char *name, size_t bytes)
{
	if (builder->rc != 0 || !rules_grow(builder, &builder->rules, &builder->rules_capacity,
					builder->n_rules, sizeof(*builder->rules)))
		return 0;
	char *copy = strndup(name, bytes);
	if (copy == NULL) {
		rules_fail(builder, ENOMEM, "no memory for the grammar");
		return 0;
	}
	builder->rules[builder->n_rules] = (struct rule){.name = copy};
	return builder->n_rules++;
}

void rules_define(struct rules *builder, uint32_t rule, uint32_t expr)
{
	if (rule >= builder->n_rules)
		return;
	builder->rules[rule].expr = expr;
	builder->rules[rule].defined = true;
}

void expr_list_add(struct rules *builder, struct expr_list *list, uint32_t expr)
{
	if (builder->rc == 0 &&
		rules_grow(builder, &list->items, &list->capacity, list->n, sizeof(*list->items)))
		list->items[list->n++] = expr;
}

uint32_t expr_list_seq(struct rules *builder, struct expr_list *list)
{
	uint32_t expr = expr_seq(builder, list->items, list->n);

	free(list->items);
	*list = (struct expr_list){0};
	return expr;
}

uint32_t expr_list_alt(struct rules *builder, struct expr_list *list)
{
	uint32_t expr = expr_alt(builder, list->items, list->n);

	free(list->items);
	*list = (struct expr_list){0};
	return expr;
}
