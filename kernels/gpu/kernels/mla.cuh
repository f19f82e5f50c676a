/* Multi-head latent attention around attend.cuh: what is done between the products and attention
 * (struct step_mla in kernels/steps.h). */
#pragma once

#include "kernels/gpu/kernels/head_values.cuh"
#include "kernels/gpu/kernels/kv_store.cuh"

enum { MLA_WARPS = 4, MLA_THREADS = 128 };

struct mla_args {
	struct gpu_cells cells;
	int type; /* enum kv_type */
	uint32_t n_heads, nope, rope, kv_rank;
	const float *q_bias, *kv_bias, *kv_norm; /* biases: or NULL */
	float eps;
	struct dev_rows q, kv, cos_sin;
};

/* Normalises the latent and rotates the rest of the key, and stores both. */
DEV void store_latent(const mla_args *a, unsigned t, unsigned lane, float *x)
{
	unsigned n = a->kv_rank + a->rope;

	warp_load(float_row(a->kv, t), a->kv_bias, n, lane, x);
	warp_rms_norm(x, a->kv_norm, a->eps, a->kv_rank, lane);
	warp_rope(x + a->kv_rank, float_row(a->cos_sin, t), a->rope, false, lane);
	store_any(a->type, x, n, a->cells.k, a->cells.k_bytes, token_of(&a->cells, t)->cell,
		PLACE_ALONE, lane);
}

/* A warp has the latent of a token, or the query of a head, in place. Grid: ((1 + heads) /
 * MLA_WARPS, tokens). Shared memory: for each warp the larger of kv_rank and nope, and rope. */
KERNEL mla_heads(mla_args a)
{
	unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.y;
	unsigned unit = blockIdx.x * MLA_WARPS + warp, width = a.nope + a.rope;
	unsigned wide = (a.nope > a.kv_rank ? a.nope : a.kv_rank) + a.rope;
	float *x = &shared_memory<float>() + (size_t)warp * wide;

	if (unit == 0) {
		store_latent(&a, t, lane, x);
	} else if (unit <= a.n_heads) {
		size_t at = (size_t)(unit - 1) * width;
		float *q = float_row(a.q, t) + at;

		warp_load(q, a.q_bias ? a.q_bias + at : nullptr, width, lane, x);
		warp_rope(x + a.nope, float_row(a.cos_sin, t), a.rope, false, lane);
		for (unsigned i = lane; i < width; i += 32)
			q[i] = x[i];
	}
}

struct mla_block_args {
	uint32_t n_heads, nope, rope, kv_rank;
	struct dev_rows q; /* of the block's first token */
	struct dev_rows latent_q; /* [n_heads][kv_rank + rope] */
	struct dev_rows q8; /* [n_heads][nope / Q8_BLOCK], or absent */
};

/* Copies the rotated parts of a block's queries to their places, and quantises the others. Grid:
 * (heads, tokens of the block). */
KERNEL mla_queries(mla_block_args a)
{
	unsigned head = blockIdx.x, t = blockIdx.y, lane = threadIdx.x % 32;
	const float *q = float_row(a.q, t) + (size_t)head * (a.nope + a.rope);
	float *to = float_row(a.latent_q, t) + (size_t)head * (a.kv_rank + a.rope) + a.kv_rank;

	for (unsigned i = threadIdx.x; i < a.rope; i += MLA_THREADS)
		to[i] = q[a.nope + i];
	if (!a.q8.at)
		return;
	for (unsigned b = threadIdx.x / 32; b < a.nope / Q8_BLOCK; b += MLA_THREADS / 32)
		warp_quantise(q[b * Q8_BLOCK + lane],
			q8_row(a.q8, t) + (size_t)head * (a.nope / Q8_BLOCK) + b);
}

struct mla_absorb_args {
	uint32_t nope, kv_rank;
	const float *k_b; /* [nope][kv_rank] of one head */
	struct dev_rows q, y; /* of the head: [nope], [kv_rank] */
};

/* The product with a transposed matrix: y = fma(q[n], row n, y) from +0, n ascending. Grid:
 * (kv_rank / MLA_THREADS, tokens). */
KERNEL mla_absorb(mla_absorb_args a)
{
	unsigned i = blockIdx.x * MLA_THREADS + threadIdx.x, t = blockIdx.y;
	const float *q = float_row(a.q, t);
	float y = 0;

	if (i >= a.kv_rank)
		return;
	for (unsigned n = 0; n < a.nope; n++)
		y = f_fma(q[n], a.k_b[(size_t)n * a.kv_rank + i], y);
	float_row(a.y, t)[i] = y;
}
