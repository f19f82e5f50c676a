/*
 * What steps of a forward pass are told (kernels/backend.h): rows of buffers, weights, and numbers. Nothing here points to memory
 * of a batch but through a buffer.
 */
#pragma once

#include "kernels/kv_format.h"
#include "kernels/pick.h"
#include "kernels/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;

/* Memory of a back end. host is where this process sees it: NULL where it does not, as on a device. */
struct buffer {
	struct backend *backend;
	unsigned char *host;
	size_t bytes;
	/* The back end's own: how the memory is given back, and a descriptor of it. */
	int handle, fd;
};

enum buffer_kind {
	BUFFER_OWN, /* the back end's alone: host may be NULL; what it holds at first is of no meaning */
	BUFFER_HOST, /* host and back end both read and write it */
	BUFFER_SHARED, /* as BUFFER_OWN, and can be handed to other processes (export_fd) */
};

/* n rows of a buffer, each `stride` bytes behind the last; from `offset` on. buffer NULL: there are none. */
struct rows {
	const struct buffer *buffer;
	size_t offset, stride;
	uint32_t n;
};

/* Inputs of products, in the forms that their weights want (struct activation). */
struct inputs {
	struct rows f32, q8;
};

/* Where something begins. */
struct place {
	const struct buffer *buffer;
	size_t offset;
};

/* Weights that the steps behind this one read first, as far as they are known, with the number of their rows of inputs. A back
 * end may fetch them early. */
#define STEP_NEXT 6
struct step_next {
	uint32_t n, n_rows;
	struct matrix w[STEP_NEXT];
};

/* A token of the batch, as embed and attend read it. */
struct step_token {
	uint32_t id, position;
	int32_t parent; /* row of the token before it in the batch; -1: its sequence's committed ones are */
	uint32_t cell; /* that keeps its keys and values */
	uint32_t map; /* of its sequence, among the maps */
	uint32_t shared; /* positions from which on its own ancestors count, not the map */
};

/* A batch as attention reads it. A token attends to the cells that its sequence's map has for positions below `shared`, then to
 * those of its ancestors in the batch, then to its own. */
struct batch_cells {
	struct rows tokens; /* struct step_token */
	const struct buffer *const *maps; /* uint32_t: from positions to cells, of each sequence */
	uint32_t window; /* positions that a token attends to, its own counted; 0: all */
	struct rows cos_sin; /* [n_rot] of each token */
	uint32_t n_rot;
};

/* Where one layer's keys and values lie (kernels/kv_format.h). */
struct kv_cells {
	const struct buffer *buffer;
	size_t k, v; /* cell 0 of the first head */
	size_t k_head_bytes, v_head_bytes; /* from a head to the next one */
	size_t k_bytes, v_bytes; /* from a cell to the next one */
	enum kv_type type;
	bool k_turned, v_paired;
	struct place of; /* uint32_t: the layer's own cell of a cell; buffer NULL: the same */
};

/* The start of a pass: embeddings, and the angles of every position. */
struct step_embed {
	struct rows tokens; /* struct step_token */
	struct matrix table; /* {vocabulary, n_embd} */
	struct rows x; /* out: [n_embd] */
	uint32_t n_rot; /* 0: no angles are wanted */
	const double *frequency; /* [n_rot / 2] radians per position */
	double magnitude; /* of cosine and sine */
	struct rows cos_sin; /* out: [n_rot] */
};

/* x += add + add_bias, then y = norm(x) * w, and y_q8 its quantised form, or without a norm that of x. Each part is left out where
 * it is not given. */
struct step_norm {
	uint32_t width;
	struct rows x, add; /* [width] */
	const float *add_bias; /* [width] or NULL */
	const float *w, *bias; /* [width]; with bias LayerNorm, else RMSNorm; w NULL: no norm */
	float eps;
	struct rows y, y_q8; /* y may be x */
};

/* y = w * x, of each row. */
struct step_product {
	struct matrix w;
	struct inputs x;
	struct rows y; /* [w.rows] */
	/* Where some results are kept beyond the next layer: keep, uint32_t [y.n], says which row of `kept` takes the place of row i
	 * of y, UINT32_MAX: none. keep.buffer NULL: all are y's. */
	struct place keep;
	struct rows kept;
};

struct step_products {
	const struct step_product *of; /* n of them */
	uint32_t n;
	bool alone; /* too little to be shared out, as the caller knows */
	struct step_next next;
};

/* Attention from the products on: biases, norms and rotation of each head, keys and values into their cells, and what each
 * query head reads. */
struct step_attend {
	struct batch_cells batch;
	struct kv_cells cells;
	uint32_t n_heads, n_kv_heads, dim;
	bool gated; /* each query head has as many values of a gate behind it: out * sigmoid(gate) */
	bool rope_neox;
	bool norm_vectors; /* all heads of q, and of k, are normed as one vector, else each by itself */
	const float *q_bias, *k_bias, *v_bias; /* or NULL */
	const float *q_norm, *k_norm; /* or NULL */
	float eps;
	float scale; /* of the scores */
	const float *sinks; /* [n_heads] or NULL */
	struct rows q, k, v; /* overwritten */
	struct rows out, out_q8; /* [n_heads * dim]; out_q8 may be none */
};

/* Multi-head latent attention in its absorbed form (kernels/cpu/steps/mla.c), from the products on. */
struct step_mla {
	struct batch_cells batch;
	struct kv_cells cells;
	uint32_t n_heads, nope, rope, kv_rank,
		v; /* of a head: without rotation, with it; the latent; its value */
	const float *q_bias, *kv_bias; /* or NULL */
	const float *kv_norm; /* [kv_rank] */
	float eps, scale;
	struct matrix k_b, v_b; /* of the first head */
	size_t k_b_head_bytes, v_b_head_bytes; /* to the next head's */
	bool k_b_transposed;
	struct rows q; /* [n_heads][nope + rope], overwritten */
	struct rows kv; /* [kv_rank + rope], overwritten */
	struct rows out, out_q8; /* [n_heads * v]; out_q8 may be none */
};

/* A sequence's tokens of a batch in layers with a recurrent state: certain ones, then drafts, linked by state_token.next. Offsets
 * count from step_delta.states. */
struct state_lane {
	uint32_t first;
	int32_t last_certain; /* -1: there is none */
	uint64_t current,
		next; /* the state before the batch; that after the certain tokens, or those replayed */
	uint32_t begins; /* there is no state before the batch */
	uint32_t accepted_first, n_accepted; /* of step_replay.accepted */
};

struct state_token {
	int32_t before; /* the token before it, -1: the sequence's state is */
	uint32_t next; /* UINT32_MAX: none */
	uint32_t lane;
	uint32_t writes_window; /* the window after it goes to the lane's next state */
};

/* Of the convolution in front of a delta net: q, k and v of all heads. */
static inline uint32_t delta_channels(
	uint32_t n_k_heads, uint32_t d_k, uint32_t n_v_heads, uint32_t d_v)
{
	return 2 * n_k_heads * d_k + n_v_heads * d_v;
}

/* A gated delta net from the products on (shared/model/pass/delta_net.h has the definitions): K = n_k_heads * d_k, V = n_v_heads * d_v. */
struct step_delta {
	uint32_t n_k_heads, n_v_heads, d_k, d_v, taps;
	bool tiled; /* value head h goes with key head h % n_k_heads, else with h / (n_v_heads / n_k_heads) */
	struct rows tokens; /* struct state_token */
	struct place lanes; /* struct state_lane [n_lanes] */
	uint32_t n_lanes;
	struct place states; /* of this layer: each a window of so many floats, then the heads */
	size_t window_floats;
	struct place conv; /* [taps][2K + V] */
	const float *a, *dt; /* [n_v_heads] */
	const float *norm; /* [d_v] */
	float eps, q_scale;
	struct rows in; /* [2K + V] the products, then [n_v_heads] decays and as many rates */
	struct place keep; /* as step_product has them: rows of `in` that are kept for a replay */
	struct rows kept;
	struct rows
		mixed; /* [2K + 2V], which q, k, v and z are taken from, by key heads; or none */
	struct rows ba; /* [2 n_v_heads], which beta and alpha are taken from; or none */
	struct rows alpha_beta; /* [2][n_v_heads] */
	struct rows z; /* [V] */
	struct rows qkv; /* scratch: [2K + V] */
	struct rows out, out_q8; /* [V]; out_q8 may be none */
};

/* Drafts of the last pass that were accepted, onto the states of their sequences: delta.tokens and lanes as in that pass, but
 * for `before`, `writes_window` and the accepted ones. */
struct step_replay {
	struct step_delta delta;
	struct place lanes; /* uint32_t [n_lanes]: those that have some */
	uint32_t n_lanes;
	struct place accepted; /* uint32_t [n_accepted]: tokens, a lane's one after the other */
	uint32_t n_accepted;
};

enum activation_kind { ACTIVATION_SILU, ACTIVATION_SWIGLU_OAI };

/* h = activation(gate * x + gate_bias, up * x + up_bias), y = down * h. Biases may be NULL. */
struct ffn {
	struct matrix gate, up, down;
	const float *gate_bias, *up_bias;
	enum activation_kind activation;
};

/* A feed-forward that every row goes through: y, then x += y + bias where there is an x. */
struct step_dense_ffn {
	struct ffn ffn;
	struct inputs in;
	struct rows y; /* out: [ffn.down.rows] */
	struct rows x;
	const float *bias; /* [ffn.down.rows] or NULL; with x only */
	struct step_next next;
};

/* From router outputs to experts and weights. */
enum gating {
	GATING_SOFTMAX = 1, /* 1 and 2: as the key expert_gating_func counts */
	GATING_SIGMOID = 2,
	GATING_TOP_SOFTMAX = 3, /* softmax of the chosen ones only */
	GATING_SPARSEMIXER = 4,
};

struct routing_config {
	enum gating gating;
	bool norm; /* the chosen weights are divided by their sum */
	float scale; /* then multiplied with this */
	uint32_t n_groups,
		n_groups_used; /* only experts of the best groups may be chosen; 1, 1 without */
};

/* An expert that rows of the batch chose: its pairs are first..first+n-1 of the order. */
struct expert_use {
	uint16_t expert, n;
	uint32_t first;
};

/* The choices of a batch by expert, and of one expert by row. */
struct expert_order {
	struct place pairs; /* uint32_t [rows * n_used]: row * n_used + rank */
	struct place uses; /* struct expert_use, by rising expert: as many as experts were chosen */
	struct place n_uses; /* uint32_t */
};

/* Always distinct experts, even of scores that are not numbers. */
struct step_route {
	struct routing_config rule;
	uint32_t n_experts, n_used;
	const float *bias; /* [n_experts] of the router, or NULL */
	const float
		*selection_bias; /* [n_experts] added to the scores for the choice only, or NULL */
	struct rows scores; /* [n_experts] the router's products; overwritten */
	struct rows
		chosen; /* out: uint16_t [n_used], by falling weight (sparsemixer: in the order of choosing) */
	struct rows weights; /* out: [n_used] */
	struct expert_order order; /* out; pairs.buffer NULL: it is not wanted */
};

/* One expert, where it lies: each matrix by itself. */
struct step_expert {
	struct place gate, up, down;
	enum matrix_layout layout; /* of those that can lie in tiles */
	float gate_scale, up_scale, down_scale; /* where the matrix is scaled */
	const float *gate_bias, *up_bias; /* or NULL */
	uint32_t first, n; /* its pairs */
};

/* Experts of one layer, for the rows that chose them. */
struct step_experts {
	struct ffn shape; /* matrices without data and scale; biases are each expert's own */
	const struct step_expert *of;
	uint32_t n;
	uint32_t n_used;
	struct place pairs; /* expert_order.pairs */
	struct inputs in;
	struct rows y; /* out: [shape.down.rows], of pair p at row p */
	struct step_next next;
};

/* x += the experts' results times their weights, by rank, then what every row's own expert gave: s = +0, s = fma(weight_j, y_j +
 * bias_j, s) for j = 0.., then s = fma(sigmoid(shared_weight), shared + bias, s), or without a weight s + shared; x + s. */
struct step_combine {
	uint32_t width, n_used;
	struct rows chosen, weights; /* of route */
	struct rows y; /* of experts; bias is added to it in place */
	const float *bias; /* row e is expert e's, bias_stride values further; or NULL */
	size_t bias_stride;
	struct rows shared, shared_weight; /* [width], [1], both overwritten; or none */
	const float *shared_bias; /* [width] or NULL */
	struct rows sum; /* scratch: [width] */
	struct rows x; /* [width] */
};

/* The end of a pass: norm and product of some rows. */
struct step_logits {
	struct rows x; /* [output.cols] */
	struct rows which; /* uint32_t: rows of x, one for each row of logits */
	const float *w, *bias; /* as step_norm */
	float eps;
	struct inputs h; /* scratch: which.n rows of [output.cols] */
	struct matrix output; /* {vocabulary, n_embd} */
	const float *output_bias; /* [vocabulary] or NULL */
	struct rows logits; /* out: [vocabulary] */
	struct step_next next;
};

/* Tokens from rows of logits, which stay as they are. What the rows of picks point to, and the results, are memory of the host: all of
 * it is the caller's again, and the results are there, when a ticket taken behind the step is reached. */
struct step_pick {
	struct rows logits; /* [vocabulary] */
	const struct pick_row *rows; /* [first + n], which pass pick_check */
	uint32_t first, n; /* those to be picked */
	const uint32_t *which; /* [n] rows of logits */
	struct pick_result *results; /* [first + n] */
};
