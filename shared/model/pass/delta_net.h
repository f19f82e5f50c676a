/*
 * Gated delta-net layers (Yang, Kautz, Hatamizadeh, arXiv 2412.06464; as in Qwen3-Next and
 * Qwen3.5), a part of the forward pass: which tokens of a batch belong to which sequence, and what
 * is kept of drafts. The steps delta and replay (kernels/steps.h) compute.
 *
 * A layer's input x becomes q, k and v through a product, a short causal convolution over time, and
 * SiLU. q and k are L2-normalised by head, and q is scaled by 1 / sqrt(d_k). Each value head has a
 * state S [d_k][d_v], which starts as zeros. Per token, S = decay * S, S += k (rate * (v - S^T
 * k))^T, o = S^T q (eq. 10); o goes through an RMS norm and a SiLU gate to the output product.
 * Tokens are taken one after the other in every pass. That makes the result independent of how a
 * sequence is cut into passes.
 *
 * The first of a sequence's tokens in a batch are certain: a chain behind its committed tokens that
 * is committed as a whole or not at all. The state after them is written to the sequence's next
 * buffer (recurrent.h). The drafts follow the last of them, as a chain or a tree. Their states
 * exist only while they are computed; the row of each draft is kept, and accepted ones are replayed
 * from it.
 */
#pragma once

#include "shared/model/pass/forward_internal.h"

struct delta_net {
	uint32_t channels; /* 2K + V, those of the convolution */
	uint32_t row_floats; /* channels, then [n_v_heads] decays and [n_v_heads] rates */
	uint32_t n_keep; /* most drafts in one pass */

	/* The batch has one lane for each sequence, numbered as in f->seqs. */
	uint32_t n_kept, n_replayed, n_accepted;
	uint32_t *last; /* [T] the last token of each lane; in f->tables */
	bool *drafts; /* [T] the lane has drafts */

	/* In f->batch: */
	struct state_lane *lanes; /* [T] */
	struct state_token *tokens; /* [T] */
	uint32_t *keep; /* [T] row among the kept ones; UINT32_MAX for certain tokens */
	uint32_t *replayed; /* [T] lanes with accepted drafts */
	uint32_t *accepted; /* [n_keep] these drafts, grouped by lane */
	float *conv; /* [n_layers][taps][channels] the weights, transposed */

	/* Rows by token of one layer, in f->memory: */
	rows_at certain; /* [T][row_floats] */
	rows_at kept; /* [n_layers][n_keep][row_floats] rows of drafts */
	rows_at z; /* [T][V] */
	rows_at mixed; /* [T][2K + 2V], when a layer has such a matrix */
	rows_at ba; /* [T][2 n_v_heads] in the order of the matrix */
	rows_at alpha_beta; /* [T][2][n_v_heads] */
	rows_at qkv; /* [T][channels] after the convolution, q and k normalised */
	rows_at o, o_q8; /* [T][V] */
};

/* Fills the fields that the layout of the buffers depends on. The model has delta-net layers. */
void delta_shape(
	struct delta_net *d, const struct model *model, const struct forward_limits *limits);
/* Sets f->delta. Does nothing for a model without such layers. */
int delta_begin(struct forward *f, struct error *err);
void delta_destroy(struct forward *f);
/* The layout of its rows in f->memory, f->batch and f->tables. delta_fill, once these are placed,
 * fills in what is the same in every pass. */
void delta_layout(const struct forward *f, struct carve *c);
void delta_layout_batch(const struct forward *f, struct carve *c);
void delta_layout_tables(const struct forward *f, struct carve *c);
void delta_fill(const struct forward *f);
/* Sets up the lanes of the batch. -EINVAL when its drafts, or the states of its sequences,
 * contradict forward.h. */
int delta_prepare(struct forward *f);
/* f->out = delta_net(norm(x)) of the layer. */
void delta_layer(struct forward *f);
/* Implements forward_replay. */
void delta_replay(struct forward *f);
