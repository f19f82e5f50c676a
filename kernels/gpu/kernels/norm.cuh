/* Norms of rows (numerics.md, "Norms"), with the sum before them and the quantised row behind them. */
#pragma once

#include "kernels/gpu/kernels/rows.cuh"

enum { NORM_THREADS = 256 }; /* one for each partial sum of NORM SUM */

struct norm_shared {
	float part[NORM_THREADS];
};

/* The fold of NORM SUM; p: this thread's partial sum. Addition commutes, so each thread may add its
 * neighbour's sum to its own. */
DEV float norm_fold(float p, struct norm_shared &s)
{
	unsigned tid = threadIdx.x, lane = tid % 32;

	p = f_add(p, __shfl_xor_sync(WARP_ALL, p, 16));
	s.part[tid] = p;
	__syncthreads();
	float two[4];
	for (unsigned i = 0; i < 4; i++)
		two[i] = f_add(s.part[64 * i + lane], s.part[64 * i + 32 + lane]);
	float sum = f_add(f_add(two[0], two[1]), f_add(two[2], two[3]));
	sum = lanes_fold(sum);
	__syncthreads();
	return sum;
}

struct norm_args {
	uint32_t width;
	struct dev_rows x, add, y, q8; /* add, y, q8: or absent */
	const float *add_bias, *w, *bias; /* or null */
	float eps;
	/* uint32_t: which row of x is row i; null: row i */
	const unsigned char *which;
	size_t which_stride;
};

/* x += add + add_bias, for the values of this thread. */
DEV void norm_add(const struct norm_args &a, float *x, uint32_t row)
{
	float *add = a.add.at ? float_row(a.add, row) : nullptr;

	for (uint32_t k = threadIdx.x; (add || a.add_bias) && k < a.width; k += NORM_THREADS) {
		float more = add ? add[k] : a.add_bias[k];

		if (add && a.add_bias) {
			more = f_add(more, a.add_bias[k]);
			add[k] = more;
		}
		x[k] = f_add(x[k], more);
	}
}

/* y = x - mean, and the factor; for a norm without a bias y is x. */
DEV float norm_factor(const struct norm_args &a, const float *x, float *y, struct norm_shared &s)
{
	float p = 0, n = (float)a.width;

	if (a.bias) {
		for (uint32_t k = threadIdx.x; k < a.width; k += NORM_THREADS)
			p = f_fma(x[k], 1.0f, p);
		float mean = f_div(norm_fold(p, s), n);

		p = 0;
		for (uint32_t k = threadIdx.x; k < a.width; k += NORM_THREADS) {
			float d = f_sub(x[k], mean);

			y[k] = d;
			p = f_fma(d, d, p);
		}
	} else {
		for (uint32_t k = threadIdx.x; k < a.width; k += NORM_THREADS)
			p = f_fma(x[k], x[k], p);
	}
	return f_div(1.0f, f_sqrt(f_add(f_div(norm_fold(p, s), n), a.eps)));
}

/* A block of the grid: a row. */
KERNEL norm(struct norm_args a)
{
	struct norm_shared &s = shared_memory<struct norm_shared>();
	uint32_t row = blockIdx.x;
	uint32_t from = a.which ? *(const uint32_t *)(a.which + row * a.which_stride) : row;
	float *x = float_row(a.x, from);
	float *y = a.w ? float_row(a.y, row) : x;
	float factor = 0;

	norm_add(a, x, row);
	if (a.w)
		factor = norm_factor(a, x, y, s);
	for (uint32_t k = threadIdx.x; k < a.width; k += NORM_THREADS) {
		float value = x[k];

		if (a.w && a.bias)
			value = f_fma(f_mul(y[k], factor), a.w[k], a.bias[k]);
		else if (a.w)
			value = f_mul(f_mul(value, factor), a.w[k]);
		if (a.w)
			y[k] = value;
		/* A warp has a block of 32 values: widths of quantised rows are multiples of it. */
		if (a.q8.at)
			warp_quantise(value, q8_row(a.q8, row) + k / 32);
	}
}
