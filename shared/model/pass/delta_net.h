/*
 * Gated delta-net layers (Yang, Kautz, Hatamizadeh, arXiv 2412.06464; as in Qwen3-Next and Qwen3.5), a part of the
 * forward pass: which tokens of a batch are whose, and what is kept of drafts. The steps delta and replay (kernels/steps.h)
 * compute.
 *
 * A layer's input x becomes q, k and v through a product, a short causal convolution over time and SiLU; q and k are
 * L2-normalised by head, q scaled by 1 / sqrt(d_k). Each value head has a state S [d_k][d_v], zeros at first, and
 * per token S = decay * S, S += k (rate * (v - S^T k))^T, o = S^T q (eq. 10); o goes through an RMS norm and
 * a SiLU gate to the out product. Tokens are taken one after the other, in every pass: that, and that alone, makes
 * the result independent of how a sequence is cut into passes.
 *
 * Of a sequence's tokens in a batch the first ones are certain: a chain behind its committed tokens that is committed as a
 * whole or not at all. The state after them is written to the sequence's next buffer (recurrent.h). Behind the last
 * of them hang the drafts, a chain or a tree: their states exist only while they are computed, and what stays of each is its row, from which the accepted ones are replayed.
 */
#pragma once

#include "shared/model/pass/forward_internal.h"

struct delta_net {
	uint32_t channels; /* 2K + V: those of the convolution */
	uint32_t row_floats; /* channels, then [n_v_heads] decays and [n_v_heads] rates */
	uint32_t n_keep; /* drafts in one pass, at most */

	/* The batch: a lane for each sequence, numbered as f->seqs. */
	uint32_t n_kept, n_replayed, n_accepted;
	uint32_t *last; /* [T] of a lane; in f->tables */
	bool *drafts; /* [T] the lane has some */

	/* In f->batch: */
	struct state_lane *lanes; /* [T] */
	struct state_token *tokens; /* [T] */
	uint32_t *keep; /* [T] row among the kept, UINT32_MAX for certain tokens */
	uint32_t *replayed; /* [T] lanes with accepted drafts */
	uint32_t *accepted; /* [n_keep] those drafts, a lane's one after the other */
	float *conv; /* [n_layers][taps][channels]: the weights, transposed */

	/* In f->memory, a layer's rows by token: */
	rows_at certain; /* [T][row_floats] */
	rows_at kept; /* [n_layers][n_keep][row_floats] the drafts' */
	rows_at z; /* [T][V] */
	rows_at mixed; /* [T][2K + 2V], when a layer has such a matrix */
	rows_at ba; /* [T][2 n_v_heads], as the matrix has them */
	rows_at alpha_beta; /* [T][2][n_v_heads] */
	rows_at qkv; /* [T][channels] after the convolution, q and k normalised */
	rows_at o, o_q8; /* [T][V] */
};

/* Fills the fields that the layout of the buffers depends on. The model has delta-net layers. */
void delta_shape(
	struct delta_net *d, const struct model *model, const struct forward_limits *limits);
/* f->delta; nothing for a model without such layers. */
int delta_begin(struct forward *f, struct error *err);
void delta_destroy(struct forward *f);
/* Its rows in f->memory, f->batch and f->tables; and once they are placed, what is the same in every pass. */
void delta_layout(const struct forward *f, struct carve *c);
void delta_layout_batch(const struct forward *f, struct carve *c);
void delta_layout_tables(const struct forward *f, struct carve *c);
void delta_fill(const struct forward *f);
/* The lanes of the batch; -EINVAL when its drafts, or the states of its sequences, are not as forward.h says. */
int delta_prepare(struct forward *f);
/* f->out = delta_net(norm(x)) of the layer. */
void delta_layer(struct forward *f);
/* forward_replay. */
void delta_replay(struct forward *f);
