/*
 * The parts of a model with multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section
 * 2.1). Belongs to model.h.
 */
#pragma once

#include "kernels/tensor.h"

/* All 0 in a model without it. A query head has nope + rope values. A cached key has kv_rank +
 * rope: the normalised latent, from which every head's keys and values could be computed, and one
 * rotated part that all heads share. */
struct mla_config {
	uint32_t q_rank; /* rank of the compressed query; 0: not compressed */
	uint32_t kv_rank;
	uint32_t nope, rope; /* dimensions of a query head without and with rotation */
	uint32_t v; /* dimensions of a head's value */
	bool split; /* the file has attn_k_b and attn_v_b, not attn_kv_b */
	/* factor for the scores: m^2 / sqrt(nope + rope), m = 1 + multiplier * ln(YaRN factor) */
	float scale;
};

struct mla_layer {
	struct matrix q_a; /* {q_rank, n_embd}; absent with q_rank 0, and layer->q is q_b */
	const float *q_a_norm; /* [q_rank] */
	const float *q_a_bias, *kv_a_bias; /* [q_rank], [kv_rank + rope], or NULL */
	struct matrix kv_a; /* {kv_rank + rope, n_embd} */
	const float *kv_a_norm; /* [kv_rank] */
	/* The matrices of head 0; head h is h * head_bytes further. k_b maps a query's nope part to
	 * the latent space: {kv_rank, nope}, or, in files of the older layout, its transpose {nope,
	 * kv_rank}. v_b: {v, kv_rank}. */
	struct matrix k_b, v_b;
	size_t k_b_head_bytes, v_b_head_bytes;
	bool k_b_transposed;
};
