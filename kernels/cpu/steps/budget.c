/* Limits the experts that groups of rows use: ranks the experts for each group, lists the best, and
 * lets each row of the group use listed experts only (MoE-Spec, sections 3.2 and 3.3). */
#include "kernels/cpu/route_choice.h"
#include "kernels/cpu/steps/steps.h"

#include <string.h>

enum { LIST_WORDS = LIMIT_EXPERTS / 64 };

struct budget {
	struct cpu_queue *q;
	const struct step_budget *step;
	const struct budget_group *group;
	uint64_t in[LIST_WORDS]; /* one bit per listed expert */
};

static bool listed(const struct budget *b, uint32_t e)
{
	return b->in[e / 64] >> e % 64 & 1;
}

/* g of a row: the scores that route left, or the softmax of its products where the rule makes no
 * scores of all experts (equation 1). */
static const float *gates_of(const struct budget *b, uint32_t row, float *scratch)
{
	const struct step_route *route = &b->step->route;
	const float *score = floats_at(&route->scores, row);

	if (route->rule.gating == GATING_SOFTMAX || route->rule.gating == GATING_SIGMOID)
		return score;
	memcpy(scratch, score, route->n_experts * sizeof(*scratch));
	b->q->kernels->softmax(scratch, route->n_experts);
	return scratch;
}

/* Equation 5. */
static void rank_by_router(struct budget *b, uint16_t *list)
{
	const struct budget_group *group = b->group;
	uint32_t n = b->step->route.n_experts;
	double sum[LIMIT_EXPERTS];
	float scratch[LIMIT_EXPERTS];

	memset(sum, 0, n * sizeof(*sum));
	for (uint32_t t = group->first; t < group->first + group->n; t++) {
		const float *g = gates_of(b, t, scratch);
		for (uint32_t e = 0; e < n; e++)
			sum[e] += (double)g[e];
	}
	route_list(sum, n, group->experts, b->in, list);
}

/* Equation 4. */
static void rank_by_uses(struct budget *b, uint16_t *list)
{
	double uses[LIMIT_EXPERTS];

	for (uint32_t e = 0; e < b->step->route.n_experts; e++)
		uses[e] = (double)b->group->uses[e];
	route_list(uses, b->step->route.n_experts, b->group->experts, b->in, list);
}

/* Makes g_e * E_e of one row's results, and their sum over the experts that it chose. */
static void scale_outputs(const struct budget *b, uint32_t t)
{
	const struct step_budget *step = b->step;
	const struct budget_group *group = b->group;
	uint32_t n = step->route.n_experts, width = step->width;
	const uint16_t *chosen = (const uint16_t *)row_at(&step->route.chosen, group->first + t);
	float scratch[LIMIT_EXPERTS], *rest = floats_at(&group->rest, t);
	const float *g = gates_of(b, group->first + t, scratch);

	for (uint32_t e = 0; e < n; e++) {
		float *y = floats_at(&group->outputs, (size_t)t * n + e);
		const float *bias = step->bias ? step->bias + e * step->bias_stride : NULL;
		for (uint32_t i = 0; i < width; i++)
			y[i] = g[e] * (bias ? y[i] + bias[i] : y[i]);
	}
	memset(rest, 0, width * sizeof(*rest));
	for (uint32_t j = 0; j < step->route.n_used; j++) {
		const float *y = floats_at(&group->outputs, (size_t)t * n + chosen[j]);
		for (uint32_t i = 0; i < width; i++)
			rest[i] += y[i];
	}
}

/* What would still be missing with expert e. */
static double error_with(const struct budget *b, uint32_t e)
{
	const struct budget_group *group = b->group;
	double sum = 0;

	for (uint32_t t = 0; t < group->n; t++) {
		const float *rest = floats_at(&group->rest, t);
		const float *y =
			floats_at(&group->outputs, (size_t)t * b->step->route.n_experts + e);
		for (uint32_t i = 0; i < b->step->width; i++) {
			float d = rest[i] - y[i];
			sum += (double)d * (double)d;
		}
	}
	return sum;
}

/* Equation 6. */
static void rank_by_oracle(struct budget *b, uint16_t *list)
{
	const struct budget_group *group = b->group;
	uint32_t n = b->step->route.n_experts, width = b->step->width;

	for (uint32_t t = 0; t < group->n; t++)
		scale_outputs(b, t);
	for (uint32_t i = 0; i < group->experts; i++) {
		uint32_t best = n;
		double least = 0;
		for (uint32_t e = 0; e < n; e++) {
			double error = listed(b, e) ? 0 : error_with(b, e);
			if (!listed(b, e) && (best == n || error < least)) {
				best = e;
				least = error;
			}
		}
		b->in[best / 64] |= UINT64_C(1) << best % 64;
		list[i] = (uint16_t)best;
		for (uint32_t t = 0; t < group->n; t++) {
			float *rest = floats_at(&group->rest, t);
			const float *y = floats_at(&group->outputs, (size_t)t * n + best);
			for (uint32_t d = 0; d < width; d++)
				rest[d] -= y[d];
		}
	}
}

/* Equations 7 and 8. */
static void cover_row(void *arg, uint32_t item, uint32_t thread)
{
	const struct budget *b = arg;
	const struct step_route *route = &b->step->route;
	uint32_t t = b->group->first + item, k = route->n_used;
	uint16_t *chosen = (uint16_t *)row_at(&route->chosen, t);
	float *weights = floats_at(&route->weights, t);
	bool affected = false;

	for (uint32_t j = 0; j < k; j++)
		affected |= !listed(b, chosen[j]);
	if (!affected)
		return;
	++*(uint32_t *)row_at(&b->step->affected, t);
	if (b->group->coverage == BUDGET_SUBSTITUTION) {
		route_within(route, b->q->kernels, floats_at(&route->scores, t), b->in,
			b->q->selection + (size_t)thread * b->q->limits.n_experts, chosen, weights);
		return;
	}
	for (uint32_t j = 0; j < k; j++)
		if (!listed(b, chosen[j])) {
			chosen[j] |= ROUTE_DROPPED;
			weights[j] = 0;
		}
}

static void limit(
	struct cpu_queue *q, const struct step_budget *step, const struct budget_group *of)
{
	static void (*const rank[BUDGET_RANKINGS])(struct budget * b, uint16_t * list) = {
		[BUDGET_ROUTER] = rank_by_router,
		[BUDGET_STATIC] = rank_by_uses,
		[BUDGET_ORACLE] = rank_by_oracle,
	};
	struct budget b = {.q = q, .step = step, .group = of};
	uint16_t list[LIMIT_EXPERTS];

	assert(of->experts > 0 && of->experts <= step->route.n_experts);
	rank[of->ranking](&b, list);
	if (of->list.buffer)
		memcpy(place_at(of->list), list, of->experts * sizeof(*list));
	work_items(
		q, of->n, (size_t)of->n * step->route.n_experts * 2 * sizeof(float), cover_row, &b);
}

/* Takes the marks away. Combining multiplies the rows of such places by 0: zeros are sure to be
 * finite. */
static void clear_dropped(const struct step_budget *step, uint32_t t)
{
	uint32_t k = step->route.n_used;
	uint16_t *chosen = (uint16_t *)row_at(&step->route.chosen, t);

	for (uint32_t j = 0; j < k; j++) {
		if (!(chosen[j] & ROUTE_DROPPED))
			continue;
		chosen[j] &= (uint16_t)~ROUTE_DROPPED;
		memset(floats_at(&step->y, (size_t)t * k + j), 0, step->width * sizeof(float));
	}
}

void cpu_budget(struct queue *queue, const struct step_budget *step)
{
	struct cpu_queue *q = cpu_queue(queue);

	for (uint32_t i = 0; i < step->n; i++)
		limit(q, step, &step->of[i]);
	route_order(q, &step->route);
	for (uint32_t i = 0; i < step->n; i++)
		for (uint32_t t = 0; t < step->of[i].n; t++)
			clear_dropped(step, step->of[i].first + t);
}
