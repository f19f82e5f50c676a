/*
 * The order of a batch's choices: a counting sort by expert, for one expert by row, in one block. A
 * thread has one expert. Which rows chose an expert is a word of bits for each 32 rows, so a pair's
 * place is the beginning of its expert plus a count of bits: nothing depends on the order in which
 * threads run.
 */
#pragma once

#include "kernels/gpu/kernels/choice.cuh"

static const unsigned GROUP_ROWS = 128, GROUP_WORDS = GROUP_ROWS / 32;

struct group_args {
	uint32_t n_rows, n_experts, n_used;
	struct dev_rows chosen;
	uint32_t *pairs, *n_uses;
	struct expert_use *uses;
};

struct group_shared {
	uint32_t rows[GROUP_WORDS][LIMIT_EXPERTS]; /* bit t % 32 of word t / 32: row t chose it */
	uint32_t at[LIMIT_EXPERTS]; /* where the next pair of an expert goes */
	uint64_t warp[32];
};

/* Notes which of the rows first..first+n-1 chose each expert. */
DEV void note_rows(group_shared *s, const group_args *a, unsigned first, unsigned n)
{
	unsigned tid = threadIdx.x, threads = blockDim.x;

	for (unsigned w = 0; w < GROUP_WORDS && tid < a->n_experts; w++)
		s->rows[w][tid] = 0;
	__syncthreads();
	for (unsigned p = tid; p < n * a->n_used; p += threads) {
		unsigned t = p / a->n_used;
		unsigned e = row_of<uint16_t>(a->chosen, first + t)[p % a->n_used];

		if (!(e & ROUTE_DROPPED))
			atomicOr(&s->rows[t / 32][e], 1u << t % 32);
	}
	__syncthreads();
}

/* Of this thread's expert. */
DEV unsigned count_rows(const group_shared *s)
{
	unsigned n = 0;

	for (unsigned w = 0; w < GROUP_WORDS; w++)
		n += (unsigned)__popc(s->rows[w][threadIdx.x]);
	return n;
}

/* The sum of `value` over the threads before this one. */
DEV uint64_t sum_before(group_shared *s, uint64_t value)
{
	unsigned tid = threadIdx.x, lane = tid % 32;
	uint64_t sum = value;

	for (unsigned d = 1; d < 32; d *= 2) {
		uint64_t other = __shfl_sync(WARP_ALL, sum, lane >= d ? lane - d : lane);

		sum += lane >= d ? other : 0;
	}
	if (lane == 31)
		s->warp[tid / 32] = sum;
	__syncthreads();
	for (unsigned w = 0; w < tid / 32; w++)
		sum += s->warp[w];
	return sum - value;
}

/* Writes the pairs of the noted rows, and moves their experts' places on. */
DEV void place_pairs(group_shared *s, const group_args *a, unsigned first, unsigned n)
{
	unsigned tid = threadIdx.x, threads = blockDim.x;

	for (unsigned p = tid; p < n * a->n_used; p += threads) {
		unsigned t = p / a->n_used;
		unsigned e = row_of<uint16_t>(a->chosen, first + t)[p % a->n_used];

		if (e & ROUTE_DROPPED)
			continue;
		unsigned at =
			s->at[e] + (unsigned)__popc(s->rows[t / 32][e] & ((1u << t % 32) - 1));
		for (unsigned w = 0; w < t / 32; w++)
			at += (unsigned)__popc(s->rows[w][e]);
		a->pairs[at] = first * a->n_used + p;
	}
	__syncthreads();
	if (tid < a->n_experts)
		s->at[tid] += count_rows(s);
	__syncthreads();
}

KERNEL group(group_args a)
{
	group_shared *s = &shared_memory<group_shared>();
	unsigned tid = threadIdx.x, count = 0;

	for (unsigned t = 0; t < a.n_rows; t += GROUP_ROWS) {
		note_rows(s, &a, t, a.n_rows - t < GROUP_ROWS ? a.n_rows - t : GROUP_ROWS);
		count += tid < a.n_experts ? count_rows(s) : 0;
	}
	/* Both sums at once: of the pairs, and of the experts with any. */
	uint64_t before = sum_before(s, (uint64_t)count << 32 | (count > 0));
	unsigned first = (unsigned)(before >> 32), use = (unsigned)before;

	if (tid < a.n_experts)
		s->at[tid] = first;
	if (count > 0) {
		a.uses[use].expert = (uint16_t)tid;
		a.uses[use].n = (uint16_t)count;
		a.uses[use].first = first;
	}
	if (tid == blockDim.x - 1)
		*a.n_uses = use + (count > 0);
	__syncthreads();
	for (unsigned t = 0; t < a.n_rows; t += GROUP_ROWS) {
		unsigned n = a.n_rows - t < GROUP_ROWS ? a.n_rows - t : GROUP_ROWS;

		if (a.n_rows > GROUP_ROWS)
			note_rows(s, &a, t, n);
		place_pairs(s, &a, t, n);
	}
}
