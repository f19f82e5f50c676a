/*
 * Gated adapters for multi-token prediction: low-rank additions to the matrices of a model, its
 * target, that only rows with a mask instead of a token take (Samragh et al., arXiv 2507.11851).
 * Rows with tokens give what the target gives without the adapter. The masks behind a token predict
 * the tokens that follow it, so one pass verifies drafts and makes the next ones.
 *
 * File: general.type adapter, adapter.type lora, as llama.cpp writes them, with adapter.mtp.gated,
 * adapter.mtp.draft_length and tensors mtp.*. llama.cpp refuses these names; without gates it
 * would change the target's answers. Read-only after loading; any number of threads may use it.
 */
#pragma once

#include "shared/model/arch/model.h"

/* Matrices without data: no addition. The scale is alpha / rank. */
struct adapter_layer {
	struct low_rank q, k, v, o;
	/* Those of experts are the first expert's; adapter_of_expert has the others. */
	struct ffn_adapt dense, experts, shared;
};

struct adapter {
	struct model *file; /* owned: the open file, and memory */
	struct adapter_layer *layers; /* [n_layers] of the target; owned */
	uint32_t draft_length; /* k: masks behind a token */
	uint32_t rank; /* the greatest */
	bool in_down; /* some feed-forward's last product has an addition */
	const float *masks; /* [n_masks][n_embd] */
	uint32_t n_masks; /* draft_length, or 1: all are the same */
	/* The sampler: s = u + norm1(silu(W1 u)) + skip * z, u = norm0(silu(W0 [e; z])), e the
	 * embedding of the token before, z the mask's state behind the output norm. Without data:
	 * s = z. */
	struct matrix sampler[2]; /* {n_embd, 2 n_embd}, {n_embd, n_embd} */
	const float *sampler_norm[2]; /* [n_embd] */
	float skip;
	uint64_t bytes; /* of the file */
};

/* Opens an adapter and checks it against its target. Errors name the file, the key or tensor, and
 * what the target has. -ENOTSUP for a target whose layers cannot take one. */
int adapter_load(
	const char *path, const struct model *target, struct adapter **out, struct error *err);
/* The same from an open file; takes over *gguf in any case and sets it to NULL. */
int adapter_load_gguf(
	struct gguf **gguf, const struct model *target, struct adapter **out, struct error *err);
void adapter_free(struct adapter **adapter);

/* One expert's addition. */
static inline struct low_rank adapter_of_expert(const struct low_rank *pair, uint32_t e)
{
	struct low_rank one = *pair;
	if (pair->a.data) {
		one.a.data = (const unsigned char *)pair->a.data +
			     (size_t)e * pair->a.rows * pair->a.row_bytes;
		one.b.data = (const unsigned char *)pair->b.data +
			     (size_t)e * pair->b.rows * pair->b.row_bytes;
	}
	return one;
}
