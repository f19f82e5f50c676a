/*
 * Routing (kernels/numerics.md, Routing): a block chooses the experts of one row. A thread has one
 * expert, so a block has at least as many threads as there are experts, in whole warps.
 */
#pragma once

#include "kernels/gpu/kernels/choice.cuh"

struct route_rule {
	uint32_t gating; /* enum gating */
	bool norm;
	float scale;
	uint32_t n_groups, n_groups_used;
	uint32_t n_experts, n_used;
	const float *bias, *selection_bias; /* or NULL */
};

struct route_args {
	route_rule rule;
	struct dev_rows scores, chosen, weights;
};

struct route_shared {
	choice_shared choice;
	float score[LIMIT_EXPERTS], key[LIMIT_EXPERTS];
	float group[LIMIT_EXPERTS / 2], best[LIMIT_EXPERTS / 2];
	uint16_t groups[LIMIT_EXPERTS / 2];
	uint32_t kept[LIMIT_EXPERTS / 2 / 32]; /* one bit per group */
	float weight[LIMIT_EXPERTS_USED];
	uint16_t chosen[LIMIT_EXPERTS_USED];
};

/* Keys outside the best groups become -inf. */
DEV void limit_groups(route_shared *s, const route_rule *r, bool masked)
{
	unsigned tid = threadIdx.x, threads = blockDim.x, size = r->n_experts / r->n_groups;
	bool two = r->selection_bias || r->gating == GATING_SIGMOID;

	for (unsigned g = tid; g < r->n_groups; g += threads)
		s->group[g] = route_group_score(s->key + g * size, size, two, masked);
	if (tid < sizeof(s->kept) / sizeof(s->kept[0]))
		s->kept[tid] = 0;
	block_choose(&s->choice, s->group, r->n_groups, r->n_groups_used, s->groups, s->best);
	if (tid == 0)
		for (unsigned i = 0; i < r->n_groups_used; i++)
			s->kept[s->groups[i] / 32] |= 1u << s->groups[i] % 32;
	__syncthreads();
	for (unsigned e = tid; e < r->n_experts; e += threads)
		if (!(s->kept[e / size / 32] >> e / size % 32 & 1))
			s->key[e] = -F_INFINITY;
	__syncthreads();
}

/* Makes weights of the scores of the k chosen experts. */
DEV void weigh(route_shared *s, const route_rule *r, unsigned k)
{
	unsigned tid = threadIdx.x;

	if (r->gating == GATING_TOP_SOFTMAX)
		block_softmax(&s->choice, s->weight, k);
	if (tid == 0) {
		float sum = 0;

		for (unsigned j = 0; r->norm && j < k; j++)
			sum = sum + s->weight[j];
		s->choice.result = sum + 1e-20f;
	}
	__syncthreads();
	if (tid < k) {
		float w = s->weight[tid];

		if (r->norm)
			w = w / s->choice.result;
		if (r->scale != 1)
			w = w * r->scale;
		s->weight[tid] = w;
	}
	__syncthreads();
}

/* Two choices among the logits (those of unlisted experts are -inf): s->chosen and s->weight. */
DEV void sparsemix(route_shared *s, const float *logits, unsigned n)
{
	unsigned tid = threadIdx.x, threads = blockDim.x;
	uint32_t first = UINT32_MAX;

	for (unsigned j = 0; j < 2; j++) {
		if (tid == 0)
			s->chosen[j] = (uint16_t)route_best_left(logits, n, first);
		__syncthreads();
		uint32_t best = s->chosen[j];
		for (unsigned e = tid; e < n; e += threads)
			s->key[e] = e == first || route_far(logits[e], logits[best]) ? -F_INFINITY
										     : logits[e];
		__syncthreads();
		block_softmax(&s->choice, s->key, n);
		if (tid == 0)
			s->weight[j] = s->key[best];
		first = best;
	}
	__syncthreads();
}

/* Makes the scores of the row's products, in s->score. */
DEV void make_scores(route_shared *s, const route_rule *r, const float *products)
{
	unsigned tid = threadIdx.x, threads = blockDim.x;

	for (unsigned e = tid; e < r->n_experts; e += threads) {
		float x = products[e];

		if (r->bias)
			x = x + r->bias[e];
		s->score[e] = r->gating == GATING_SIGMOID ? sigmoid(x) : x;
	}
	__syncthreads();
	if (r->gating == GATING_SOFTMAX)
		block_softmax(&s->choice, s->score, r->n_experts);
}

DEV void choose_experts(route_shared *s, const route_rule *r)
{
	unsigned tid = threadIdx.x, threads = blockDim.x, n = r->n_experts, k = r->n_used;
	bool sorted = r->selection_bias || r->n_groups > 1;

	for (unsigned e = tid; sorted && e < n; e += threads)
		s->key[e] = r->selection_bias ? s->score[e] + r->selection_bias[e] : s->score[e];
	__syncthreads();
	if (r->n_groups > 1)
		limit_groups(s, r, false);
	block_choose(&s->choice, sorted ? s->key : s->score, n, k, s->chosen, s->best);
	if (tid < k)
		s->weight[tid] = s->score[s->chosen[tid]];
	__syncthreads();
	if (sorted && tid == 0)
		route_sort(s->chosen, s->weight, k);
	__syncthreads();
}

KERNEL route(route_args a)
{
	route_shared *s = &shared_memory<route_shared>();
	const route_rule *r = &a.rule;
	unsigned tid = threadIdx.x, threads = blockDim.x, t = blockIdx.x;
	float *scores = row_of<float>(a.scores, t);

	make_scores(s, r, scores);
	for (unsigned e = tid; e < r->n_experts; e += threads)
		scores[e] = s->score[e];
	if (r->gating == GATING_SPARSEMIXER) {
		sparsemix(s, s->score, r->n_experts);
	} else {
		choose_experts(s, r);
		weigh(s, r, r->n_used);
	}
	if (tid < r->n_used) {
		row_of<uint16_t>(a.chosen, t)[tid] = s->chosen[tid];
		row_of<float>(a.weights, t)[tid] = s->weight[tid];
	}
}
