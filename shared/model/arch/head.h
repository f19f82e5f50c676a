/*
 * Draft heads: one block that reads the hidden states of another model, its target, and drafts
 * tokens for it. A head is a struct model with one layer whose `head` is set; the forward pass takes
 * its rows from forward_head_rows (shared/model/pass/forward.h). Two kinds of file have one:
 *
 * - EAGLE-3, a file of its own with architecture eagle3 (Li et al. 2025, and llama.cpp's format);
 * - "nextn", a block behind the last layer of the target's own file, which models are trained with
 *   (multi-token prediction, DeepSeek-V3 section 2.2).
 *
 * The row at position p reads the target's states at p and the token at p + 1.
 */
#pragma once

#include "shared/model/arch/model.h"

enum head_kind { HEAD_EAGLE3, HEAD_NEXTN };
enum { HEAD_TAPS = LIMIT_TAPS };

struct head {
	enum head_kind kind;
	/* width of a state of the target, as the head takes it: HEAD_TAPS times the target's n_embd
	 * (EAGLE-3), or once (nextn) */
	uint32_t n_state;
	/* [n_taps] The head reads the residual streams before these layers of the target, one after
	 * the other; the number of layers means after the last. */
	uint32_t taps[HEAD_TAPS], n_taps;
	uint32_t n_blocks; /* nextn: as the file's key says; it need not hold all of them */
	uint32_t n_drafting; /* nextn: as in the target's struct model */
	/* EAGLE-3: fc, {n_embd, n_state}; nextn: eh_proj, {n_embd, 2 n_embd} */
	struct matrix project;
	const float *taps_norm; /* [n_state], before fc, or NULL; nextn: the target's output_norm */
	const float *token_norm, *state_norm; /* [n_embd] */
	bool residual_normed; /* EAGLE-3: the residual stream begins with the state's norm */
	/* [output.rows] the target's token of each row of logits; NULL: they are the same */
	const int32_t *tokens;
};

/* Opens an EAGLE-3 file and checks it against its target, from which it may take the embedding and
 * the output; the target must live longer. Errors name the file, the key or tensor, and what the
 * target has. */
int head_load_eagle3(
	const char *path, const struct model *target, struct model **out, struct error *err);
/* Loads a block of this kind from the target's own file; index 0: the first. -ENODATA when the file
 * has no such block. */
int head_load_nextn(const char *path, uint32_t index, struct model **out, struct error *err);
/* True when the file is an EAGLE-3 head. */
bool head_is_eagle3(const struct gguf *gguf);

/* The target's token of a row of logits. */
static inline int32_t head_token(const struct head *head, uint32_t row)
{
	return head->tokens ? head->tokens[row] : (int32_t)row;
}
