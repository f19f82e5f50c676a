/*
 * What all threads of a block do together to choose and to weigh: maximum, softmax, the k greatest.
 * Every function is called by all threads of the block, and ends with its result visible to all.
 */
#pragma once

#include "kernels/gpu/kernels/rows.cuh"

#include "kernels/cpu/route_choice.h"
#include "shared/base/limits.h"

#define F_INFINITY __builtin_inff()

template <class T> DEV T *row_of(struct dev_rows rows, size_t i)
{
	return (T *)(rows.at + i * rows.stride);
}

/* Scratch of the functions below. */
struct choice_shared {
	float warp[32]; /* one value of each warp */
	float result;
	uint32_t unordered;
};

/* The greatest of x[0..n-1], which lies in shared memory. It may ignore a NaN: everything that is
 * computed from x is NaN anyway. */
DEV float block_greatest(choice_shared *s, const float *x, unsigned n)
{
	unsigned tid = threadIdx.x, threads = blockDim.x;
	float most = -F_INFINITY;

	for (unsigned i = tid; i < n; i += threads)
		most = f_max(x[i], most);
	for (unsigned half = 16; half > 0; half /= 2)
		most = f_max(most, __shfl_xor_sync(WARP_ALL, most, half));
	if (tid % 32 == 0)
		s->warp[tid / 32] = most;
	__syncthreads();
	most = s->warp[0];
	for (unsigned w = 1; w < threads / 32; w++)
		most = f_max(most, s->warp[w]);
	return most;
}

/* Softmax of x[0..n-1] in shared memory, which all threads see. */
DEV void block_softmax(choice_shared *s, float *x, unsigned n)
{
	unsigned tid = threadIdx.x, threads = blockDim.x;
	float most = block_greatest(s, x, n), sum = 0;

	for (unsigned i = tid; i < n; i += threads)
		x[i] = exp32(x[i] - most);
	__syncthreads();
	if (tid < 32) {
		for (unsigned i = tid % 16; i < n; i += 16)
			sum = f_fma(x[i], 1.0f, sum);
		sum = lanes_fold(sum);
		if (tid == 0)
			s->result = 1.0f / sum;
	}
	__syncthreads();
	for (unsigned i = tid; i < n; i += threads)
		x[i] = x[i] * s->result;
	__syncthreads();
}

/* How many of x[0..n-1] come before x[at]: the greater ones, and of equals those with a smaller
 * index. There is no NaN among them. */
DEV unsigned rank_of(const float *x, unsigned n, unsigned at)
{
	float mine = x[at];
	unsigned rank = 0;

	for (unsigned i = 0; i < n; i++)
		rank += x[i] > mine || (x[i] == mine && i < at);
	return rank;
}

/* Fills chosen[0..k-1] in shared memory with the indices of the k greatest of x[0..n-1], k <= n, in
 * descending order, among equals the smaller index first. With a NaN among them one thread takes
 * them as the CPU does, so that the choice is the same. best: [k] scratch. */
DEV void block_choose(
	choice_shared *s, const float *x, unsigned n, unsigned k, uint16_t *chosen, float *best)
{
	unsigned tid = threadIdx.x, threads = blockDim.x;

	if (tid == 0)
		s->unordered = 0;
	__syncthreads();
	for (unsigned i = tid; i < n; i += threads)
		if (x[i] != x[i])
			s->unordered = 1;
	__syncthreads();
	if (!s->unordered) {
		for (unsigned i = tid; i < n; i += threads) {
			unsigned rank = rank_of(x, n, i);

			if (rank < k)
				chosen[rank] = (uint16_t)i;
		}
	} else if (tid == 0) {
		route_choose(x, n, k, chosen, best);
	}
	__syncthreads();
}
