/* A part of an engine's layers, which drafts for the whole: its KV cache, its passes, and what they
 * show. The engine's backend computes; one thread. */
#pragma once

#include "client/model/engine.h"

struct skip_part {
	struct engine *whole; /* borrowed */
	struct model *model;
	struct kv kv;
	void *memory;
	size_t memory_bytes;
	struct kv_seq seq;
	bool has_seq;
	struct experts_mapped experts;
	struct forward *forward;
};

/* layer: [n_layers of whole] which ones are left out. Call skip_part_close in any case. */
int skip_part_open(
	struct skip_part *part, struct engine *whole, const bool *layer, struct error *err);
void skip_part_close(struct skip_part *part);

/* Reads tokens[0..n-2], and says for each token from n_prompt on whether it would have been drafted
 * behind those before it: right[0..n-n_prompt-1]. */
int skip_part_follow(struct skip_part *part, const int32_t *tokens, uint32_t n_prompt, uint32_t n,
	bool *right, struct error *err);
/* What a pass of one token behind `depth` tokens takes, as a share of what the whole model takes: the
 * median of some passes of both, in turns. tokens: [depth + 1]. */
int skip_part_cost(struct skip_part *part, const int32_t *tokens, uint32_t depth, double *share,
	struct error *err);
