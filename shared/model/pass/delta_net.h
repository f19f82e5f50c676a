/*
 * Gated delta-net layers (Yang, Kautz, Hatamizadeh, arXiv 2412.06464; as in Qwen3-Next and Qwen3.5), a part of the
 * forward pass: delta_net.c orders a batch by sequence and replays accepted drafts, delta_layer.c computes a layer.
 *
 * A layer's input x becomes q, k and v through a product, a short causal convolution over time and SiLU; q and k are
 * L2-normalised by head, q scaled by 1 / sqrt(d_k). Each value head has a state S [d_k][d_v], zeros at first, and
 * per token S = decay * S, S += k (rate * (v - S^T k))^T, o = S^T q (eq. 10); o goes through an RMS norm and
 * a SiLU gate to the out product. Tokens are taken one after the other, in every pass: that, and that alone, makes
 * the result independent of how a sequence is cut into passes.
 *
 * Of a sequence's tokens in a batch the first ones are certain: a chain behind its committed tokens that is committed as a
 * whole or not at all. The state after them is written to the sequence's next buffer (recurrent.h). Behind the last
 * of them hang the drafts, a chain or a tree: their states exist only while they are computed, 16 columns at a time in
 * a thread's scratch, and what stays of each is its row, from which the accepted ones are replayed.
 */
#pragma once

#include "shared/model/pass/forward_internal.h"

enum {
	/* Of a state, that one thread takes through all tokens: they stay in its first-level cache. */
	DELTA_COLUMNS = 16,
};

/* A sequence's tokens in the batch. */
struct delta_lane {
	struct kv_seq *seq;
	uint32_t first, last; /* linked by next_token */
	int32_t last_certain; /* -1: there is none */
	bool drafts;
	uint32_t accepted_first, n_accepted; /* of delta_net.accepted, in a replay */
};

struct delta_net {
	void *memory;
	uint32_t channels; /* 2K + V: those of the convolution */
	uint32_t row_floats; /* channels, then [n_v_heads] decays and [n_v_heads] rates */
	uint32_t n_keep; /* drafts in one pass, at most */
	float q_scale;
	float *conv; /* [n_layers][taps][channels]: the weights, transposed */
	float *zeros; /* [channels]: tokens before the first */

	/* The batch, T tokens. */
	struct delta_lane *lanes; /* [T] */
	uint32_t n_lanes, n_kept;
	uint32_t *lane_of, *next_token; /* [T] */
	int32_t *before; /* [T] the token before it, -1: the sequence's state is */
	uint32_t *keep; /* [T] row among the kept, UINT32_MAX for certain tokens */
	uint32_t *cell; /* [T] */
	bool *writes_window; /* [T] the window after it goes to the next buffer */

	/* A layer's rows by token. */
	float *certain; /* [T][row_floats] */
	float *kept; /* [n_layers][n_keep][row_floats] the drafts' */
	float **rows; /* [T] into certain or kept: inputs of the convolution, decays, rates */
	float *z; /* [T][V] */
	float *mixed; /* [T][2K + 2V], when a layer has such a matrix */
	float *ba; /* [T][2 n_v_heads], as the matrix has them */
	float *alpha_beta; /* [T][2][n_v_heads] */
	float *qkv; /* [T][channels] after the convolution, q and k normalised */
	float *o; /* [T][V] */
	struct q8_block *o_q8; /* [T][V / 32] */

	/* By thread. */
	float *thread_state; /* [threads][d_k][DELTA_COLUMNS] */
	uint32_t *thread_path; /* [threads][n_keep] */

	/* A replay: the lanes with accepted drafts (none in a pass), and those drafts, a lane's one after the other. */
	uint32_t *replayed, n_replayed; /* [T] lanes */
	uint32_t *accepted, n_accepted; /* [n_keep] tokens */
	uint32_t replay_layer;
};

/* f->delta, and its rows in f->memory; nothing for a model without such layers. */
int delta_begin(struct forward *f, struct error *err);
void delta_layout(struct delta_net *d, const struct forward *f, struct carve *c);
void delta_layout_batch(struct delta_net *d, const struct forward *f, struct carve *c);
/* Its tables; nothing for a model without such layers. */
int delta_create(struct forward *f, struct error *err);
void delta_destroy(struct forward *f);
/* The lanes of the batch; -EINVAL when its drafts, or the states of its sequences, are not as forward.h says. */
int delta_prepare(struct forward *f);
/* x += delta_net(norm(x)) of the layer. */
void delta_layer(struct forward *f);
/* forward_replay. */
void delta_replay(struct forward *f);

/* delta_layer.c, for a replay of one layer (counted among its kind): rows of the drafts point to what was kept; the
 * convolution of the accepted tokens; their effect on the states, by item of delta_items. */
void delta_set_rows(struct forward *f, uint32_t index);
void delta_conv(struct forward *f, uint32_t index, uint32_t token);
uint32_t delta_items(const struct forward *f, uint32_t n_lanes);
void delta_replay_item(struct forward *f, uint32_t item, uint32_t thread);
