/* What is done between the products and attention: biases, norms, rotation, and storing keys and
 * values. A warp has a head of a token. */
#pragma once

#include "kernels/gpu/kernels/head_values.cuh"
#include "kernels/gpu/kernels/kv_store.cuh"

enum { HEADS_WARPS = 4 };

struct heads_args {
	struct gpu_cells cells;
	int type; /* enum kv_type */
	uint32_t n_tokens, n_heads, n_kv_heads, dim, n_rot; /* n_heads: of queries */
	uint32_t q_stride; /* floats to the next query head */
	bool neox, norm_vectors;
	const float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm; /* or NULL */
	float eps;
	struct dev_rows q, k, v, cos_sin;
};

DEV void finish_query(const heads_args *a, unsigned t, unsigned head, unsigned lane, float *x)
{
	float *q = float_row(a->q, t) + (size_t)head * a->q_stride;
	const float *bias =
		a->q_bias && !a->norm_vectors ? a->q_bias + (size_t)head * a->q_stride : nullptr;

	warp_load(q, bias, a->q_stride, lane, x);
	if (a->q_norm && !a->norm_vectors)
		warp_rms_norm(x, a->q_norm, a->eps, a->dim, lane);
	warp_rope(x, float_row(a->cos_sin, t), a->n_rot, a->neox, lane);
	for (unsigned i = lane; i < a->q_stride; i += 32)
		q[i] = x[i];
}

DEV uint32_t own_cell(const gpu_cells *c, unsigned t)
{
	uint32_t cell = token_of(c, t)->cell;

	return c->of ? c->of[cell] : cell;
}

DEV void finish_key(const heads_args *a, unsigned t, unsigned head, unsigned lane, float *x)
{
	size_t at = (size_t)head * a->dim;

	warp_load(float_row(a->k, t) + at, a->k_bias && !a->norm_vectors ? a->k_bias + at : nullptr,
		a->dim, lane, x);
	if (a->k_norm && !a->norm_vectors)
		warp_rms_norm(x, a->k_norm, a->eps, a->dim, lane);
	warp_rope(x, float_row(a->cos_sin, t), a->n_rot, a->neox, lane);
	store_any(a->type, x, a->dim, a->cells.k + head * a->cells.k_head_bytes, a->cells.k_bytes,
		own_cell(&a->cells, t), a->cells.turned ? PLACE_TURNED : PLACE_ALONE, lane);
}

DEV void finish_value(const heads_args *a, unsigned t, unsigned head, unsigned lane, float *x)
{
	size_t at = (size_t)head * a->dim;

	warp_load(float_row(a->v, t) + at, a->v_bias ? a->v_bias + at : nullptr, a->dim, lane, x);
	store_any(a->type, x, a->dim, a->cells.v + head * a->cells.v_head_bytes, a->cells.v_bytes,
		own_cell(&a->cells, t), a->cells.paired ? PLACE_PAIRED : PLACE_ALONE, lane);
}

/* Grid: (heads of queries, keys and values / HEADS_WARPS, tokens). Shared memory: HEADS_WARPS times
 * q_stride floats. */
KERNEL finish_heads(heads_args a)
{
	unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	unsigned head = blockIdx.x * HEADS_WARPS + warp, t = blockIdx.y;
	float *x = &shared_memory<float>() + (size_t)warp * a.q_stride;

	if (head < a.n_heads)
		finish_query(&a, t, head, lane, x);
	else if (head < a.n_heads + a.n_kv_heads)
		finish_key(&a, t, head - a.n_heads, lane, x);
	else if (head < a.n_heads + 2 * a.n_kv_heads)
		finish_value(&a, t, head - a.n_heads - a.n_kv_heads, lane, x);
}

/* For models that normalise all heads of a token as one vector: the biases and that norm.
 * Grid: (2: queries, keys; tokens); 256 threads, each with a partial sum of NORM SUM. */
KERNEL norm_heads(heads_args a)
{
	float *p = &shared_memory<float>();
	const bool keys = blockIdx.x;
	unsigned t = blockIdx.y, i = threadIdx.x;
	unsigned n = keys ? a.n_kv_heads * a.dim : a.n_heads * a.q_stride;
	float *x = float_row(keys ? a.k : a.q, t), sum = 0;
	const float *bias = keys ? a.k_bias : a.q_bias, *w = keys ? a.k_norm : a.q_norm;

	for (unsigned k = i; k < n; k += 256) {
		if (bias)
			x[k] = f_add(x[k], bias[k]);
		sum = f_fma(x[k], x[k], sum);
	}
	if (!w)
		return;
	p[i] = sum;
	/* Neighbouring groups of 16 first, then the fold of the last group. */
	for (unsigned step = 16; step < 256; step *= 2) {
		__syncthreads();
		if (i / 16 % (2 * step / 16) == 0)
			p[i] = f_add(p[i], p[i + step]);
	}
	for (unsigned step = 8; step; step /= 2) {
		__syncthreads();
		if (i < step)
			p[i] = f_add(p[i], p[i + step]);
	}
	__syncthreads();
	float factor = 1.0f / f_sqrt(p[0] / (float)n + a.eps);

	for (unsigned k = i; k < n; k += 256)
		x[k] = f_mul(f_mul(x[k], factor), w[k]);
}
