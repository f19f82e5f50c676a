/*
 * Sums of results: of the experts by rank, and of what a feed-forward adds to the residual stream.
 * A thread has one column of one row.
 */
#pragma once

#include "kernels/gpu/kernels/choice.cuh"

static const unsigned COMBINE_THREADS = 256;

struct combine_args {
	uint32_t width, n_used;
	struct dev_rows chosen, weights, y, shared, shared_weight, x;
	const float *bias, *shared_bias; /* or NULL */
	size_t bias_stride;
};

/* The shared expert's part of column i, added to s. */
DEV float add_shared(const combine_args *a, unsigned t, unsigned i, float s)
{
	float v = row_of<float>(a->shared, t)[i];

	if (a->shared_bias)
		v = v + a->shared_bias[i];
	if (!a->shared_weight.at)
		return s + v;
	return f_fma(sigmoid(*row_of<float>(a->shared_weight, t)), v, s);
}

/* Grid: (columns / COMBINE_THREADS, rows). */
KERNEL combine(combine_args a)
{
	unsigned t = blockIdx.y, i = blockIdx.x * COMBINE_THREADS + threadIdx.x;
	float s = 0;

	if (i >= a.width)
		return;
	const uint16_t *chosen = row_of<uint16_t>(a.chosen, t);
	const float *weights = row_of<float>(a.weights, t);
	for (unsigned j = 0; j < a.n_used; j++) {
		float y = row_of<float>(a.y, (size_t)t * a.n_used + j)[i];

		if (a.bias)
			y = y + a.bias[chosen[j] * a.bias_stride + i];
		s = f_fma(weights[j], y, s);
	}
	if (a.shared.at)
		s = add_shared(&a, t, i, s);
	float *x = row_of<float>(a.x, t);
	x[i] = x[i] + s;
}

struct residual_args {
	uint32_t width;
	struct dev_rows y, x;
	const float *bias; /* or NULL */
};

/* x += y + bias. Grid as above. */
KERNEL residual(residual_args a)
{
	unsigned t = blockIdx.y, i = blockIdx.x * COMBINE_THREADS + threadIdx.x;

	if (i >= a.width)
		return;
	float y = row_of<float>(a.y, t)[i], *x = row_of<float>(a.x, t);
	x[i] = x[i] + (a.bias ? y + a.bias[i] : y);
}
