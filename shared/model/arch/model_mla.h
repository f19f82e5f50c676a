/*
 * Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): what a model of it has. Part of model.h.
 */
#pragma once

#include "kernels/tensor.h"

/* All 0 in a model without. A query head is nope + rope long, a cached key kv_rank + rope: the normalised latent, from
 * which every head's keys and values would come, and one rotated part that all heads share. */
struct mla_config {
	uint32_t q_rank; /* of the compressed query, 0 where it is not compressed */
	uint32_t kv_rank;
	uint32_t nope, rope; /* dimensions of a query head without and with rotation */
	uint32_t v; /* dimensions of a head's value */
	bool split; /* attn_k_b and attn_v_b in the file, not attn_kv_b */
	float scale; /* of the scores: m^2 / sqrt(nope + rope), m = 1 + multiplier * ln(YaRN factor) */
};

struct mla_layer {
	struct matrix
		q_a; /* {q_rank, n_embd}; with q_rank 0 it is not there, and layer->q is q_b */
	const float *q_a_norm; /* [q_rank] */
	const float *q_a_bias, *kv_a_bias; /* [q_rank], [kv_rank + rope], or NULL */
	struct matrix kv_a; /* {kv_rank + rope, n_embd} */
	const float *kv_a_norm; /* [kv_rank] */
	/* Of head 0; head h lies h * head_bytes further. k_b takes a query's nope part to the latent: {kv_rank, nope},
	 * or, in files of the older layout, its transpose {nope, kv_rank}. v_b: {v, kv_rank}. */
	struct matrix k_b, v_b;
	size_t k_b_head_bytes, v_b_head_bytes;
	bool k_b_transposed;
};
