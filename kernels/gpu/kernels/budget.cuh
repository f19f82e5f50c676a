/*
 * Expert budgets (kernels/numerics.md, Budgets): a block lists the experts of one group, then a
 * block for each row lets it use listed experts only. `group` makes the order, and a last kernel
 * clears the marks of places without an expert. The oracle is for experiments: one block looks at
 * every result of every expert, as many times as there are experts on the list.
 */
#pragma once

#include "kernels/gpu/kernels/route.cuh"

enum { LIST_WORDS = LIMIT_EXPERTS / 64 };

struct budget_one {
	uint32_t first, n, experts;
	uint32_t ranking, coverage; /* enum budget_ranking, enum budget_coverage */
	const uint64_t *uses;
	struct dev_rows outputs, rest;
	uint16_t *list; /* or NULL */
};

struct budget_args {
	route_args route;
	const budget_one *of; /* [n] */
	uint32_t n, width;
	const float *bias; /* or NULL */
	size_t bias_stride;
	uint64_t *in; /* [n][LIST_WORDS] one bit per listed expert */
	struct dev_rows affected, y;
};

struct budget_shared {
	route_shared route;
	double key[LIMIT_EXPERTS];
	double square[32][32]; /* of each warp */
	uint64_t in[LIST_WORDS];
	uint16_t list[LIMIT_EXPERTS];
	uint32_t flag;
};

DEV bool is_listed(const uint64_t *in, unsigned e)
{
	return in[e / 64] >> e % 64 & 1;
}

/* Lists the experts with the greatest keys. */
DEV void list_greatest(budget_shared *s, unsigned n, unsigned k)
{
	unsigned e = threadIdx.x;
	double mine = e < n ? s->key[e] : 0;

	if (e == 0)
		s->flag = 0;
	__syncthreads();
	if (mine != mine)
		s->flag = 1;
	__syncthreads();
	if (s->flag && e == 0)
		route_list(s->key, n, k, s->in, s->list);
	if (!s->flag && e < n) {
		unsigned rank = 0;

		for (unsigned i = 0; i < n; i++)
			rank += s->key[i] > mine || (s->key[i] == mine && i < e);
		if (rank < k)
			s->list[rank] = (uint16_t)e;
	}
	__syncthreads();
	if (!s->flag && e == 0)
		for (unsigned i = 0; i < k; i++)
			s->in[s->list[i] / 64] |= (uint64_t)1 << s->list[i] % 64;
	__syncthreads();
}

/* Equation 1: g of a row, in s->route.score. */
DEV void take_gates(budget_shared *s, const budget_args *a, unsigned row)
{
	const route_rule *r = &a->route.rule;
	const float *scores = row_of<float>(a->route.scores, row);

	__syncthreads();
	if (threadIdx.x < r->n_experts)
		s->route.score[threadIdx.x] = scores[threadIdx.x];
	__syncthreads();
	if (r->gating != GATING_SOFTMAX && r->gating != GATING_SIGMOID)
		block_softmax(&s->route.choice, s->route.score, r->n_experts);
}

/* Equation 5. */
DEV void rank_by_router(budget_shared *s, const budget_args *a, const budget_one *of)
{
	unsigned n = a->route.rule.n_experts, e = threadIdx.x;
	double sum = 0;

	for (unsigned t = 0; t < of->n; t++) {
		take_gates(s, a, of->first + t);
		sum = sum + (e < n ? (double)s->route.score[e] : 0);
	}
	if (e < n)
		s->key[e] = sum;
	__syncthreads();
	list_greatest(s, n, of->experts);
}

/* Makes g_e * E_e of one row's results, and their sum over the experts that it chose. */
DEV void scale_outputs(budget_shared *s, const budget_args *a, const budget_one *of, unsigned t)
{
	const route_rule *r = &a->route.rule;
	const uint16_t *chosen = row_of<uint16_t>(a->route.chosen, of->first + t);
	float *rest = row_of<float>(of->rest, t);

	take_gates(s, a, of->first + t);
	for (unsigned e = 0; e < r->n_experts; e++) {
		float *y = row_of<float>(of->outputs, (size_t)t * r->n_experts + e);
		const float *bias = a->bias ? a->bias + e * a->bias_stride : NULL;

		for (unsigned i = threadIdx.x; i < a->width; i += blockDim.x)
			y[i] = s->route.score[e] * (bias ? y[i] + bias[i] : y[i]);
	}
	for (unsigned i = threadIdx.x; i < a->width; i += blockDim.x) {
		float sum = 0;

		for (unsigned j = 0; j < r->n_used; j++)
			sum = sum +
			      row_of<float>(of->outputs, (size_t)t * r->n_experts + chosen[j])[i];
		rest[i] = sum;
	}
}

/* What would still be missing with expert e, as a warp computes it: in the end, lane 0. */
DEV double error_with(budget_shared *s, const budget_args *a, const budget_one *of, unsigned e)
{
	unsigned lane = threadIdx.x % 32;
	double sum = 0, *square = s->square[threadIdx.x / 32];

	for (unsigned t = 0; t < of->n; t++) {
		const float *rest = row_of<float>(of->rest, t);
		const float *y =
			row_of<float>(of->outputs, (size_t)t * a->route.rule.n_experts + e);

		for (unsigned at = 0; at < a->width; at += 32) {
			unsigned n = a->width - at < 32 ? a->width - at : 32;

			if (lane < n) {
				float d = rest[at + lane] - y[at + lane];

				square[lane] = (double)d * (double)d;
			}
			__syncwarp();
			for (unsigned i = 0; lane == 0 && i < n; i++)
				sum = sum + square[i];
			__syncwarp();
		}
	}
	return sum;
}

/* Lists the expert that leaves the least, and takes its results away. */
DEV void list_least(budget_shared *s, const budget_args *a, const budget_one *of, unsigned at)
{
	unsigned n = a->route.rule.n_experts, warps = blockDim.x / 32, best;

	for (unsigned e = threadIdx.x / 32; e < n; e += warps) {
		double error = is_listed(s->in, e) ? 0 : error_with(s, a, of, e);

		if (threadIdx.x % 32 == 0)
			s->key[e] = error;
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		best = n;
		for (unsigned e = 0; e < n; e++)
			if (!is_listed(s->in, e) && (best == n || s->key[e] < s->key[best]))
				best = e;
		s->in[best / 64] |= (uint64_t)1 << best % 64;
		s->list[at] = (uint16_t)best;
	}
	__syncthreads();
	best = s->list[at];
	for (unsigned t = 0; t < of->n; t++) {
		float *rest = row_of<float>(of->rest, t);
		const float *y = row_of<float>(of->outputs, (size_t)t * n + best);

		for (unsigned i = threadIdx.x; i < a->width; i += blockDim.x)
			rest[i] = rest[i] - y[i];
	}
	__syncthreads();
}

/* Grid: the groups. A thread has one expert. */
KERNEL budget_rank(budget_args a)
{
	budget_shared *s = &shared_memory<budget_shared>();
	const budget_one *of = &a.of[blockIdx.x];
	unsigned tid = threadIdx.x, n = a.route.rule.n_experts;

	if (tid < LIST_WORDS)
		s->in[tid] = 0;
	__syncthreads();
	if (of->ranking == BUDGET_ROUTER) {
		rank_by_router(s, &a, of);
	} else if (of->ranking == BUDGET_STATIC) { /* Equation 4. */
		if (tid < n)
			s->key[tid] = (double)of->uses[tid];
		__syncthreads();
		list_greatest(s, n, of->experts);
	} else { /* Equation 6. */
		for (unsigned t = 0; t < of->n; t++)
			scale_outputs(s, &a, of, t);
		__syncthreads();
		for (unsigned i = 0; i < of->experts; i++)
			list_least(s, &a, of, i);
	}
	if (tid < LIST_WORDS)
		a.in[blockIdx.x * LIST_WORDS + tid] = s->in[tid];
	for (unsigned i = tid; of->list && i < of->experts; i += blockDim.x)
		of->list[i] = s->list[i];
}

/* The row's choice among listed experts: s->route.chosen and weight. Returns how many it found. */
DEV unsigned route_within(budget_shared *b, const budget_args *a, unsigned row)
{
	route_shared *s = &b->route;
	const route_rule *r = &a->route.rule;
	const float *scores = row_of<float>(a->route.scores, row);
	unsigned tid = threadIdx.x, n = r->n_experts, k = r->n_used;
	bool mixed = r->gating == GATING_SPARSEMIXER;
	bool sorted = r->selection_bias || r->n_groups > 1;
	float *masked = mixed ? s->score : s->key;

	for (unsigned e = tid; e < n; e += blockDim.x) {
		float x = scores[e];

		s->score[e] = x;
		if (r->selection_bias)
			x = x + r->selection_bias[e];
		masked[e] = is_listed(b->in, e) ? x : -F_INFINITY;
	}
	__syncthreads();
	if (mixed) {
		sparsemix(s, masked, n);
	} else {
		if (r->n_groups > 1)
			limit_groups(s, r, true);
		block_choose(&s->choice, masked, n, k, s->chosen, s->best);
	}
	if (tid == 0) {
		unsigned m = 0;

		for (unsigned j = 0; j < k; j++) {
			unsigned e = s->chosen[j];
			float weight = mixed ? s->weight[j] : s->score[e];

			if (masked[e] == -F_INFINITY)
				continue;
			s->weight[m] = weight;
			s->chosen[m++] = (uint16_t)e;
		}
		if (sorted)
			route_sort(s->chosen, s->weight, m);
		b->flag = m;
	}
	__syncthreads();
	unsigned m = b->flag;
	if (m > 0 && !mixed)
		weigh(s, r, m);
	return m;
}

/* Equations 7 and 8. Grid: (most rows of a group, groups). A thread has one expert. */
KERNEL budget_cover(budget_args a)
{
	budget_shared *s = &shared_memory<budget_shared>();
	const budget_one *of = &a.of[blockIdx.y];
	unsigned tid = threadIdx.x, k = a.route.rule.n_used, t = of->first + blockIdx.x;

	if (blockIdx.x >= of->n)
		return;
	uint16_t *chosen = row_of<uint16_t>(a.route.chosen, t);
	float *weights = row_of<float>(a.route.weights, t);
	if (tid < LIST_WORDS)
		s->in[tid] = a.in[blockIdx.y * LIST_WORDS + tid];
	if (tid == 0)
		s->flag = 0;
	__syncthreads();
	bool outside = tid < k && !is_listed(s->in, chosen[tid]);
	if (outside)
		s->flag = 1;
	__syncthreads();
	if (!s->flag)
		return;
	if (tid == 0)
		*row_of<uint32_t>(a.affected, t) += 1;
	if (of->coverage == BUDGET_TRUNCATION) {
		if (outside) {
			chosen[tid] = (uint16_t)(chosen[tid] | ROUTE_DROPPED);
			weights[tid] = 0;
		}
		return;
	}
	__syncthreads();
	unsigned m = route_within(s, &a, t);
	if (tid < k) {
		chosen[tid] = tid < m ? s->route.chosen[tid] : (uint16_t)ROUTE_DROPPED;
		weights[tid] = tid < m ? s->route.weight[tid] : 0;
	}
}

/* Takes the marks away. Combining multiplies the rows of such places by 0: zeros are sure to be
 * finite. Grid: (most rows of a group * n_used, groups). */
KERNEL budget_clear(budget_args a)
{
	const budget_one *of = &a.of[blockIdx.y];
	unsigned k = a.route.rule.n_used, t = of->first + blockIdx.x / k, j = blockIdx.x % k;

	if (blockIdx.x / k >= of->n)
		return;
	uint16_t *chosen = row_of<uint16_t>(a.route.chosen, t) + j;
	unsigned e = *chosen;
	__syncthreads();
	if (!(e & ROUTE_DROPPED))
		return;
	float *y = row_of<float>(a.y, (size_t)t * k + j);
	for (unsigned i = threadIdx.x; i < a.width; i += blockDim.x)
		y[i] = 0;
	if (threadIdx.x == 0)
		*chosen = (uint16_t)(e & ~ROUTE_DROPPED);
}
