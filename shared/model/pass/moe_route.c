/* Which experts a token goes to, and with what weights. Always k distinct ones, even of logits that are not numbers. */
#include "shared/model/pass/moe_route.h"

#include "kernels/cpu/simd.h"
#include "shared/model/pass/forward_internal.h"

#include <string.h>

/* The k greatest of score[0..n-1] by falling score, ties to the smaller index. */
static void choose(const float *score, uint32_t n, uint32_t k, uint16_t *chosen, float *best)
{
	uint32_t filled = 0;
	for (uint32_t e = 0; e < n; e++) {
		if (filled == k && (k == 0 || !(score[e] > best[k - 1])))
			continue;
		uint32_t at = filled < k ? filled++ : k - 1;
		for (; at > 0 && score[e] > best[at - 1]; at--) {
			best[at] = best[at - 1];
			chosen[at] = chosen[at - 1];
		}
		best[at] = score[e];
		chosen[at] = (uint16_t)e;
	}
}

/* Group-limited routing: scores outside the best groups become -inf. With a selection bias, or sigmoid scores, a
 * group counts as much as its two best (DeepSeek-V3, arXiv 2412.19437, section 2.1.2); with softmax, as its best
 * (DeepSeek-V2, arXiv 2405.04434, section 2.2.2). */
static void limit_groups(const struct model_config *config, bool two, float *score)
{
	const struct routing_config *r = &config->routing;
	uint32_t size = config->n_experts / r->n_groups;
	float group_score[LIMIT_EXPERTS / 2], best[LIMIT_EXPERTS / 2] = {0};
	uint16_t chosen[LIMIT_EXPERTS / 2] = {0};
	bool kept[LIMIT_EXPERTS / 2] = {false};
	for (uint32_t g = 0; g < r->n_groups; g++) {
		float pair[2] = {0};
		uint16_t experts[2];
		choose(score + (size_t)g * size, size, 2, experts, pair);
		group_score[g] = two ? pair[0] + pair[1] : pair[0];
	}
	choose(group_score, r->n_groups, r->n_groups_used, chosen, best);
	for (uint32_t i = 0; i < r->n_groups_used; i++)
		kept[chosen[i]] = true;
	for (uint32_t e = 0; e < config->n_experts; e++) {
		if (!kept[e / size])
			score[e] = -__builtin_inff();
	}
}

/* By falling weight, ties to the smaller index. */
static void sort_chosen(uint16_t *chosen, float *weights, uint32_t k)
{
	for (uint32_t i = 1; i < k; i++) {
		uint16_t expert = chosen[i];
		float weight = weights[i];
		uint32_t at = i;
		for (; at > 0 && (weight > weights[at - 1] ||
					 (weight == weights[at - 1] && expert < chosen[at - 1]));
			at--) {
			chosen[at] = chosen[at - 1];
			weights[at] = weights[at - 1];
		}
		chosen[at] = expert;
		weights[at] = weight;
	}
}

/* Sparsemixer as it is used (not trained) in Phi-3.5-MoE (GRIN, arXiv 2409.12136): two choices one after the other,
 * each the greatest logit of those left, each weighted by a softmax over what lies within a share of it. The weights
 * need not sum to 1. */
static void sparsemix(const struct kernels *kernels, uint32_t n, const float *logits,
	float *scratch, uint16_t *chosen, float *weights)
{
	/* Twice the released model's router_jitter_noise, 0.01; no key says it. */
	const float share = 0.02f;
	uint32_t first = UINT32_MAX;
	for (uint32_t j = 0; j < 2; j++) {
		uint32_t best = first == 0;
		for (uint32_t e = best + 1; e < n; e++) {
			if (e != first && logits[e] > logits[best])
				best = e;
		}
		for (uint32_t e = 0; e < n; e++) {
			float size = logits[e] < 0 ? -logits[e] : logits[e];
			float most = size > logits[best] ? size : logits[best];
			bool far = (logits[best] - logits[e]) / most > share;
			scratch[e] = far || e == first ? -__builtin_inff() : logits[e];
		}
		kernels->softmax(scratch, n);
		chosen[j] = (uint16_t)best;
		weights[j] = scratch[best];
		first = best;
	}
}

/* Scores to the chosen experts and their scores, by falling score. */
static void choose_experts(const struct model_config *config, const struct kernels *kernels,
	const float *bias, const float *score, float *scratch, uint16_t *chosen, float *weights)
{
	uint32_t n = config->n_experts, k = config->n_experts_used;
	if (!bias && config->routing.n_groups == 1) {
		choose(score, n, k, chosen, weights);
		return;
	}
	memcpy(scratch, score, n * sizeof(*scratch));
	if (bias)
		kernels->add(scratch, bias, n);
	if (config->routing.n_groups > 1)
		limit_groups(config, bias || config->routing.gating == GATING_SIGMOID, scratch);
	choose(scratch, n, k, chosen, weights);
	for (uint32_t j = 0; j < k; j++)
		weights[j] = score[chosen[j]];
	sort_chosen(chosen, weights, k);
}

void moe_route(const struct model *model, const struct kernels *kernels, uint32_t layer,
	float *logits, float *scratch, uint16_t *chosen, float *weights)
{
	const struct model_config *config = &model->config;
	const struct routing_config *r = &config->routing;
	const struct layer *l = &model->layers[layer];
	uint32_t n = config->n_experts, k = config->n_experts_used;
	if (l->router_bias)
		kernels->add(logits, l->router_bias, n);
	if (r->gating == GATING_SPARSEMIXER) {
		sparsemix(kernels, n, logits, scratch, chosen, weights);
		return;
	}
	if (r->gating == GATING_SOFTMAX)
		kernels->softmax(logits, n);
	else if (r->gating == GATING_SIGMOID)
		kernels->sigmoid(logits, n);
	choose_experts(config, kernels, l->selection_bias, logits, scratch, chosen, weights);
	if (r->gating == GATING_TOP_SOFTMAX)
		kernels->softmax(weights, k);
	if (r->norm) {
		/* What is added is lost in any sum but one of sigmoids that are all 0. */
		float sum = 0;
		for (uint32_t j = 0; j < k; j++)
			sum += weights[j];
		for (uint32_t j = 0; j < k; j++)
			weights[j] /= sum + 1e-20f;
	}
	for (uint32_t j = 0; j < k && r->scale != 1; j++)
		weights[j] *= r->scale;
}

void route_token(struct forward *f, uint32_t t)
{
	uint32_t n = f->model->config.n_experts, k = f->model->config.n_experts_used;
	moe_route(f->model, f->kernels, f->layer, f->router + (size_t)t * n,
		f->selection + (size_t)t * n, f->chosen + (size_t)t * k,
		f->weights + (size_t)t * k);
}
