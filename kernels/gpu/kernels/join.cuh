/* Joins the splits of attention in ascending order, and finishes a head: the division, the gate, and
 * the quantised form. */
#pragma once

#include "kernels/gpu/kernels/attend_cells.cuh"
#include "kernels/gpu/kernels/attend_numbers.cuh"

enum { JOIN_THREADS = 128 };

struct join_args {
	struct gpu_cells cells;
	uint32_t first_token, n_tokens, all_heads, v_dim; /* tokens first_token.. of the batch */
	uint32_t first_split, n_splits; /* of this wave */
	bool begins, ends; /* the first wave, the last one */
	/* [n_splits][n_tokens][all_heads], of v_dim floats and of one, as `attend` wrote them */
	const float *part_out, *part_most, *part_sum;
	const float *sinks; /* [all_heads], or NULL */
	float *most, *sum; /* [n_tokens][all_heads] between waves */
	struct dev_rows out; /* [all_heads * v_dim] */
	struct dev_rows
		gate; /* the first head's gate values; heads are gate_stride floats apart; or absent */
	uint32_t gate_stride;
	struct dev_rows q8; /* [all_heads * v_dim], v_dim a multiple of Q8_BLOCK; or absent */
};

/* Grid: (heads, tokens). */
KERNEL attend_join(join_args a)
{
	unsigned head = blockIdx.x, t = blockIdx.y;
	size_t at = (size_t)t * a.all_heads + head, step = (size_t)a.n_tokens * a.all_heads;
	float *to = float_row(a.out, t) + (size_t)head * a.v_dim;
	float most = 0, sum = 0;

	for (unsigned d = threadIdx.x; d < a.v_dim; d += JOIN_THREADS) {
		float out = a.begins ? 0.0f : to[d];

		most = a.begins ? a.sinks ? a.sinks[head] : -INFINITE : a.most[at];
		sum = a.begins ? a.sinks ? 1.0f : 0.0f : a.sum[at];
		for (unsigned i = 0; i < a.n_splits; i++) {
			size_t part = at + i * step;

			if (!attends(&a.cells, a.first_token + t, a.first_split + i))
				continue;
			float more = a.part_most[part], now = f_max(most, more);
			float x = exp32(most - now), y = exp32(more - now);

			sum = f_fma(a.part_sum[part], y, f_mul(sum, x));
			out = f_fma(a.part_out[part * a.v_dim + d], y, f_mul(out, x));
			most = now;
		}
		if (a.ends) {
			out = f_mul(out, 1.0f / sum);
			if (a.gate.at)
				out = f_mul(out, sigmoid(float_row(a.gate,
							 t)[(size_t)head * a.gate_stride + d]));
		}
		to[d] = out;
		if (a.ends && a.q8.at)
			warp_quantise(
				out, q8_row(a.q8, t) + ((size_t)head * a.v_dim + d) / Q8_BLOCK);
	}
	if (a.ends)
		return;
	/* Not before every thread has read them. */
	__syncthreads();
	if (threadIdx.x == 0) {
		a.most[at] = most;
		a.sum[at] = sum;
	}
}

struct quantise_args {
	struct dev_rows x, q8;
	uint32_t width; /* a multiple of Q8_BLOCK */
};

/* Grid: (blocks / 4, rows); a warp has a block. */
KERNEL quantise_rows(quantise_args a)
{
	unsigned b = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;

	if (b >= a.width / Q8_BLOCK)
		return;
	warp_quantise(float_row(a.x, blockIdx.y)[(size_t)b * Q8_BLOCK + lane],
		q8_row(a.q8, blockIdx.y) + b);
}
