/* Chooses the experts of each row, and their weights. There are always k distinct ones, even when
 * scores are NaN. */
#include "kernels/cpu/route_choice.h"
#include "kernels/cpu/steps/steps.h"

#include <string.h>

/* Group-limited routing: scores outside the best groups become -inf. With a selection bias, or with
 * sigmoid scores, a group counts as much as its two best together (DeepSeek-V3, arXiv 2412.19437,
 * section 2.1.2); with softmax, as its best (DeepSeek-V2, arXiv 2405.04434, section 2.2.2). masked:
 * scores may be -inf, and a group that has only one other counts as much as that. */
static inline void limit_groups(const struct step_route *step, bool two, bool masked, float *score)
{
	const struct routing_config *r = &step->rule;
	uint32_t size = step->n_experts / r->n_groups;
	float group_score[LIMIT_EXPERTS / 2], best[LIMIT_EXPERTS / 2] = {0};
	uint16_t chosen[LIMIT_EXPERTS / 2] = {0};
	bool kept[LIMIT_EXPERTS / 2] = {false};
	for (uint32_t g = 0; g < r->n_groups; g++) {
		group_score[g] = route_group_score(score + (size_t)g * size, size, two, masked);
	}
	route_choose(group_score, r->n_groups, r->n_groups_used, chosen, best);
	for (uint32_t i = 0; i < r->n_groups_used; i++)
		kept[chosen[i]] = true;
	for (uint32_t e = 0; e < step->n_experts; e++) {
		if (!kept[e / size])
			score[e] = -__builtin_inff();
	}
}

/* Sparsemixer as Phi-3.5-MoE uses it in inference (GRIN, arXiv 2409.12136): two choices, one after
 * the other. Each takes the greatest logit that is left, weighted by a softmax over the logits
 * within a share of it. The weights need not sum to 1. */
static void sparsemix(const struct kernels *kernels, uint32_t n, const float *logits,
	float *scratch, uint16_t *chosen, float *weights)
{
	uint32_t first = UINT32_MAX;
	for (uint32_t j = 0; j < 2; j++) {
		uint32_t best = route_best_left(logits, n, first);
		for (uint32_t e = 0; e < n; e++)
			scratch[e] = e == first || route_far(logits[e], logits[best])
					     ? -__builtin_inff()
					     : logits[e];
		kernels->softmax(scratch, n);
		chosen[j] = (uint16_t)best;
		weights[j] = scratch[best];
		first = best;
	}
}

/* Chooses experts by their scores; weights become the scores of the chosen ones, in descending
 * order. */
static void choose_experts(const struct step_route *step, const struct kernels *kernels,
	const float *score, float *scratch, uint16_t *chosen, float *weights)
{
	const float *bias = step->selection_bias;
	uint32_t n = step->n_experts, k = step->n_used;
	if (!bias && step->rule.n_groups == 1) {
		route_choose(score, n, k, chosen, weights);
		return;
	}
	memcpy(scratch, score, n * sizeof(*scratch));
	if (bias)
		kernels->add(scratch, bias, n);
	if (step->rule.n_groups > 1)
		limit_groups(step, bias || step->rule.gating == GATING_SIGMOID, false, scratch);
	route_choose(scratch, n, k, chosen, weights);
	for (uint32_t j = 0; j < k; j++)
		weights[j] = score[chosen[j]];
	route_sort(chosen, weights, k);
}

/* Makes weights of the scores of the k chosen experts. */
static inline void weigh(
	const struct step_route *step, const struct kernels *kernels, float *weights, uint32_t k)
{
	const struct routing_config *r = &step->rule;

	if (r->gating == GATING_TOP_SOFTMAX)
		kernels->softmax(weights, k);
	if (r->norm) {
		/* The addend is lost in rounding, except for sigmoids that are all 0. */
		float sum = 0;
		for (uint32_t j = 0; j < k; j++)
			sum += weights[j];
		for (uint32_t j = 0; j < k; j++)
			weights[j] /= sum + 1e-20f;
	}
	for (uint32_t j = 0; j < k && r->scale != 1; j++)
		weights[j] *= r->scale;
}

static void route_one(const struct step_route *step, const struct kernels *kernels, float *scores,
	float *scratch, uint16_t *chosen, float *weights)
{
	const struct routing_config *r = &step->rule;
	uint32_t n = step->n_experts, k = step->n_used;
	if (step->bias)
		kernels->add(scores, step->bias, n);
	if (r->gating == GATING_SPARSEMIXER) {
		sparsemix(kernels, n, scores, scratch, chosen, weights);
		return;
	}
	if (r->gating == GATING_SOFTMAX)
		kernels->softmax(scores, n);
	else if (r->gating == GATING_SIGMOID)
		kernels->sigmoid(scores, n);
	choose_experts(step, kernels, scores, scratch, chosen, weights);
	weigh(step, kernels, weights, k);
}

/* Chooses among masked scores, of which those of unlisted experts are -inf. Returns how many listed
 * experts were found; they come first. */
static uint32_t choose_masked(const struct step_route *step, const struct kernels *kernels,
	const float *score, float *masked, float *scratch, uint16_t *chosen, float *weights)
{
	uint32_t n = step->n_experts, k = step->n_used, m = 0;
	bool mixed = step->rule.gating == GATING_SPARSEMIXER;
	bool sorted = step->selection_bias || step->rule.n_groups > 1;

	if (mixed) {
		sparsemix(kernels, n, masked, scratch, chosen, weights);
	} else {
		if (step->rule.n_groups > 1)
			limit_groups(step,
				step->selection_bias || step->rule.gating == GATING_SIGMOID, true,
				masked);
		route_choose(masked, n, k, chosen, weights);
	}
	for (uint32_t j = 0; j < k; j++) {
		if (masked[chosen[j]] == -__builtin_inff())
			continue;
		weights[m] = mixed ? weights[j] : score[chosen[j]];
		chosen[m++] = chosen[j];
	}
	if (sorted)
		route_sort(chosen, weights, m);
	return m;
}

void route_within(const struct step_route *step, const struct kernels *kernels, const float *score,
	const uint64_t *in, float *scratch, uint16_t *chosen, float *weights)
{
	float masked[LIMIT_EXPERTS];
	uint32_t n = step->n_experts, k = step->n_used;

	memcpy(masked, score, n * sizeof(*masked));
	if (step->selection_bias)
		kernels->add(masked, step->selection_bias, n);
	for (uint32_t e = 0; e < n; e++)
		if (!(in[e / 64] >> e % 64 & 1))
			masked[e] = -__builtin_inff();
	uint32_t m = choose_masked(step, kernels, score, masked, scratch, chosen, weights);
	if (m > 0 && step->rule.gating != GATING_SPARSEMIXER)
		weigh(step, kernels, weights, m);
	for (uint32_t j = m; j < k; j++) {
		chosen[j] = ROUTE_DROPPED;
		weights[j] = 0;
	}
}

struct route {
	const struct cpu_queue *q;
	const struct step_route *step;
};

static void route_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct route *r = arg;
	const struct step_route *step = r->step;

	route_one(step, r->q->kernels, floats_at(&step->scores, t),
		r->q->selection + (size_t)thread * r->q->limits.n_experts,
		(uint16_t *)row_at(&step->chosen, t), floats_at(&step->weights, t));
}

/* A counting sort. marked: some places are without an expert. */
__attribute__((always_inline)) static inline void order_pairs(
	struct cpu_queue *q, const struct step_route *step, bool marked)
{
	uint32_t *pairs = (uint32_t *)place_at(step->order.pairs);
	struct expert_use *uses = (struct expert_use *)place_at(step->order.uses);
	uint32_t n = step->n_experts, *ends = q->ends, n_uses = 0;

	memset(ends, 0, (n + 1) * sizeof(*ends));
	for (uint32_t t = 0; t < step->scores.n; t++)
		for (uint32_t j = 0; j < step->n_used; j++) {
			uint32_t e = ((const uint16_t *)row_at(&step->chosen, t))[j];
			if (!marked || !(e & ROUTE_DROPPED))
				ends[e + 1]++;
		}
	for (uint32_t e = 0; e < n; e++) {
		if (ends[e + 1] > 0)
			uses[n_uses++] =
				(struct expert_use){(uint16_t)e, (uint16_t)ends[e + 1], ends[e]};
		ends[e + 1] += ends[e];
	}
	/* Placing a pair advances its expert's beginning, in the end to the expert's end. */
	for (uint32_t t = 0; t < step->scores.n; t++)
		for (uint32_t j = 0; j < step->n_used; j++) {
			uint32_t e = ((const uint16_t *)row_at(&step->chosen, t))[j];
			if (!marked || !(e & ROUTE_DROPPED))
				pairs[ends[e]++] = t * step->n_used + j;
		}
	*(uint32_t *)place_at(step->order.n_uses) = n_uses;
}

void route_order(struct cpu_queue *q, const struct step_route *step)
{
	order_pairs(q, step, true);
}

void cpu_route(struct queue *queue, const struct step_route *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct route r = {q, step};
	uint32_t n = step->scores.n;

	assert(step->n_experts <= q->limits.n_experts);
	work_items(q, n, (size_t)n * step->n_experts * 2 * sizeof(float), route_row, &r);
	if (step->order.pairs.buffer)
		order_pairs(q, step, false);
}
