/*
 * The descriptors of the steps of a forward pass: what shared/model/pass passes to a back end
 * (kernels/backend.h). A step is described by rows of buffers, weights and numbers. A batch's
 * memory is reached through buffers only, never through plain pointers. "[n]" after a field gives
 * the shape of each row, or of the array. "out" marks the fields that a step writes. numerics.md
 * has the formulas.
 */
#pragma once

#include "kernels/kv_format.h"
#include "kernels/pick.h"
#include "kernels/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;

/* Memory of a back end. host: its address in this process; NULL where the process cannot see it, as
 * on a device. */
struct buffer {
	struct backend *backend;
	unsigned char *host;
	size_t bytes;
	/* Private to the back end: how it frees the memory, a descriptor of it, and its address for
	 * the device, which the CPU does not set. */
	int handle, fd;
	unsigned char *device;
	/* Of memory that processes share: it ends when the process that allocated it ends, whoever
	 * has imported it or holds its descriptor. */
	bool ends_with_maker;
};

/* Where steps find the buffer, as a number that the host writes for them. */
static inline uint64_t buffer_address(const struct buffer *buffer)
{
	return (uint64_t)(uintptr_t)(buffer->device ? buffer->device : buffer->host);
}

enum buffer_kind {
	/* seen by the back end only: host may be NULL; its initial content is undefined */
	BUFFER_OWN,
	BUFFER_HOST, /* read and written by both the host and the back end */
	BUFFER_SHARED, /* as BUFFER_OWN, and can be passed to other processes (export_fd) */
};

/* n rows of a buffer: row i begins at byte offset + i * stride. buffer NULL: there are no rows. */
struct rows {
	const struct buffer *buffer;
	size_t offset, stride;
	uint32_t n;
};

/* Inputs of products, in the forms that their weights need (struct activation). */
struct inputs {
	struct rows f32, q8;
};

/* A position in a buffer, in bytes. */
struct place {
	const struct buffer *buffer;
	size_t offset;
};

/* Weights that the following steps will read first, as far as the caller knows them, and the number
 * of input rows that they will be multiplied with. A back end may prefetch them. */
#define STEP_NEXT 6
struct step_next {
	uint32_t n, n_rows;
	struct matrix w[STEP_NEXT];
};

/* A token of the batch, as embed and attend read it. */
struct step_token {
	uint32_t id, position;
	/* row of the preceding token in the batch; -1: the last committed token of its sequence
	 * precedes it */
	int32_t parent;
	uint32_t cell; /* that stores its keys and values */
	uint32_t map; /* index of its sequence in batch_cells.maps */
	/* number of positions that the token finds in its sequence's map; from there on it follows
	 * its ancestors in the batch */
	uint32_t shared;
};

/* A batch, as attention reads it. A token attends to the cells that its sequence's map gives for
 * positions below its `shared`, then to the cells of its ancestors in the batch, then to its own
 * cell. */
struct batch_cells {
	struct rows tokens; /* struct step_token */
	const struct buffer *const *maps; /* for each sequence: uint32_t, from position to cell */
	/* uint64_t for each sequence: buffer_address of its map. Needed in graphs, which read it anew
	 * in each pass; buffer NULL: there is none */
	struct place map_addresses;
	uint32_t window; /* positions that a token attends to, its own included; 0: all */
	struct rows cos_sin; /* [n_rot] cosines and sines of each token's position */
	uint32_t n_rot;
};

/* Where the keys and values of one layer lie (kernels/kv_format.h). Offsets and sizes are in bytes.
 */
struct kv_cells {
	const struct buffer *buffer;
	size_t k, v; /* offset of cell 0 of the first head */
	size_t k_head_bytes, v_head_bytes; /* distance between heads */
	size_t k_bytes, v_bytes; /* distance between cells */
	enum kv_type type;
	bool k_turned, v_paired;
	/* uint32_t: from cell to this layer's own cell; buffer NULL: they are the same */
	struct place of;
};

/* The start of a pass: embeds the tokens and computes the rotation of every position. */
struct step_embed {
	struct rows tokens; /* struct step_token */
	struct matrix table; /* [vocabulary][n_embd] */
	/* For tokens from the vocabulary's size on, which are masks of an adapter: their embeddings,
	 * mask_stride floats apart (0: all have the same). NULL: there are none. */
	const float *masks;
	size_t mask_stride;
	struct rows x; /* out: [n_embd] */
	uint32_t n_rot; /* 0: no rotation is needed */
	const double *frequency; /* [n_rot / 2] radians per position */
	double magnitude; /* factor for cosine and sine */
	struct rows cos_sin; /* out: [n_rot], as n_rot / 2 pairs (cosine, sine) */
};

/* Three parts in this order, each optional: x += add + add_bias; y = norm(x) * w, with bias added;
 * y_q8 = quantised y, or quantised x when there is no norm. */
struct step_norm {
	uint32_t width;
	struct rows x, add; /* [width] */
	const float *add_bias; /* [width], or NULL */
	/* [width]. With bias: LayerNorm; without: RMSNorm; w NULL: no norm and no y */
	const float *w, *bias;
	float eps;
	struct rows y, y_q8; /* out; y may be x */
};

/* Rows of a step that are multiplied with F16 and BF16 weights in another arithmetic, which is the
 * back end's own (backend_ops.fast): numerics.md does not define it. Each run is computed alone. The
 * result of a row depends on its inputs, on its place in its run and on the run's length, but on no
 * row outside the run. Weights of other types are multiplied as ever. */
struct step_run {
	uint32_t first, n;
};
struct step_fast {
	const struct step_run *of; /* [n] ascending, without overlap */
	uint32_t n;
};

/* True when fast products are possible with the matrix. */
static inline bool matrix_fast(const struct matrix *w)
{
	return w->type == TENSOR_F16 || w->type == TENSOR_BF16;
}

/* One product of a step: y = w * x, for each row. Fast rows must not be kept. */
struct step_product {
	struct matrix w;
	struct inputs x;
	struct rows y; /* out: [w.rows] */
	/* Some result rows can be written elsewhere, to be kept beyond the next layer. keep:
	 * uint32_t [y.n]; keep[i] is the row of `kept` that replaces row i of y, UINT32_MAX: none
	 * does. keep.buffer NULL: all results go to y. */
	struct place keep;
	struct rows kept;
};

struct step_products {
	const struct step_product *of; /* [n] */
	uint32_t n;
	bool alone; /* too little work to be divided among threads, as the caller knows */
	struct step_fast fast;
	struct step_next next;
};

/* Low-rank additions to products that have been made. */
struct step_adapt_one {
	struct low_rank w;
	struct rows x; /* [w.a.cols] float32 */
	struct rows y; /* [w.b.rows] */
};

/* For rows that a gated adapter applies to (shared/model/arch/adapter.h); the others stay. */
struct step_adapt {
	const struct step_adapt_one *of;
	uint32_t n;
	struct rows which; /* uint32_t: rows of x and y */
};

/* Of a sampler of drafts: out = norm(silu(y)) * w, to which add is added, and then skip * z, as
 * out = fma(skip, z, out). y is overwritten. */
struct step_silu_norm {
	uint32_t width;
	struct rows y;
	const float *w;
	float eps;
	struct rows add, z; /* [width], or absent; no z: nothing is skipped */
	float skip;
	struct rows out;
};

/* Attention, from the results of the products on. It adds the biases, normalises and rotates each
 * head, stores keys and values in their cells, and lets each query head attend. */
struct step_attend {
	struct batch_cells batch;
	struct kv_cells cells;
	uint32_t n_heads, n_kv_heads, dim;
	bool gated; /* each query head is followed by as many gate values: out * sigmoid(gate) */
	bool rope_neox;
	/* q, and k, is normalised as one vector over all heads; otherwise each head on its own */
	bool norm_vectors;
	const float *q_bias, *k_bias, *v_bias; /* or NULL */
	const float *q_norm, *k_norm; /* [dim], or [heads * dim] with norm_vectors; or NULL */
	float eps;
	float scale; /* factor for the scores */
	const float *sinks; /* [n_heads], or NULL */
	struct rows q, k, v; /* the products' results; overwritten */
	struct rows out, out_q8; /* out: [n_heads * dim]; out_q8 may be absent */
};

/* Multi-head latent attention in its absorbed form (kernels/cpu/steps/mla.c), from the results of
 * the products on. */
struct step_mla {
	struct batch_cells batch;
	struct kv_cells cells;
	/* sizes: of a head's query without and with rotation; of the latent; of a head's value */
	uint32_t n_heads, nope, rope, kv_rank, v;
	const float *q_bias, *kv_bias; /* or NULL */
	const float *kv_norm; /* [kv_rank] */
	float eps, scale;
	struct matrix k_b, v_b; /* the matrices of the first head */
	size_t k_b_head_bytes, v_b_head_bytes; /* bytes to the next head's matrix */
	bool k_b_transposed;
	struct rows q; /* [n_heads][nope + rope] the products' results; overwritten */
	struct rows kv; /* [kv_rank + rope] the products' results; overwritten */
	struct rows out, out_q8; /* out: [n_heads * v]; out_q8 may be absent */
};

/* A lane: one sequence's tokens of the batch, for layers with a recurrent state. First come the
 * certain tokens, which are committed as a whole or not at all, then the drafts; state_token.next
 * links them. `current` and `next` are byte offsets from step_delta.states. */
struct state_lane {
	uint32_t first;
	int32_t last_certain; /* row of the last certain token; -1: there is none */
	/* current: the state before the batch; next: out: the state after the certain tokens, or
	 * after the replayed ones */
	uint64_t current, next;
	uint32_t begins; /* nonzero: there is no state before the batch; it begins as zeros */
	uint32_t accepted_first, n_accepted; /* its part of step_replay.accepted */
};

struct state_token {
	int32_t before; /* row of the preceding token; -1: the sequence's state precedes it */
	uint32_t next; /* row of the lane's next token; UINT32_MAX: none */
	uint32_t lane;
	/* nonzero: the convolution's window after this token is stored in the lane's next state */
	uint32_t writes_window;
};

/* Channels of the convolution in front of a delta net: q, k and v of all heads. */
static inline uint32_t delta_channels(
	uint32_t n_k_heads, uint32_t d_k, uint32_t n_v_heads, uint32_t d_v)
{
	return 2 * n_k_heads * d_k + n_v_heads * d_v;
}

/* A gated delta net, from the results of the products on (shared/model/pass/delta_net.h has the
 * definitions). Let K = n_k_heads * d_k and V = n_v_heads * d_v. */
struct step_delta {
	uint32_t n_k_heads, n_v_heads, d_k, d_v, taps;
	/* value head h uses key head h % n_k_heads; otherwise key head h / (n_v_heads / n_k_heads)
	 */
	bool tiled;
	struct rows tokens; /* struct state_token */
	struct place lanes; /* struct state_lane [n_lanes] */
	uint32_t n_lanes;
	/* this layer's states; each is a window of window_floats floats, then the heads' [d_k][d_v]
	 */
	struct place states;
	size_t window_floats;
	struct place conv; /* [taps][2K + V] weights of the convolution */
	const float *a, *dt; /* [n_v_heads] */
	const float *norm; /* [d_v] */
	float eps, q_scale;
	/* [2K + V] the products' results; the step writes behind them [n_v_heads] decays and
	 * [n_v_heads] rates */
	struct rows in;
	struct place keep; /* as in struct step_product: rows of `in` that are kept for a replay */
	struct rows kept;
	/* [2K + 2V] from which q, k, v and z are taken, ordered by key head; or absent */
	struct rows mixed;
	/* [2 * n_v_heads] from which beta and alpha are taken, ordered by key head; or absent */
	struct rows ba;
	struct rows alpha_beta; /* [2][n_v_heads] alpha, then beta */
	struct rows z; /* [V] the gate of the output */
	struct rows qkv; /* scratch: [2K + V] */
	struct rows out, out_q8; /* out: [V]; out_q8 may be absent */
};

/* Applies the accepted drafts of the last pass to the states of their sequences. delta.tokens and
 * delta.lanes are those of that pass, except for `before`, `writes_window`, `current`, `next` and
 * the accepted tokens. */
struct step_replay {
	struct step_delta delta;
	struct place lanes; /* uint32_t [n_lanes]: the lanes that have accepted drafts */
	uint32_t n_lanes;
	/* uint32_t [n_accepted]: rows of accepted tokens, grouped by lane, in order */
	struct place accepted;
	uint32_t n_accepted;
};

enum activation_kind { ACTIVATION_SILU, ACTIVATION_SWIGLU_OAI };

/* A feed-forward: h = activation(gate * x + gate_bias, up * x + up_bias), y = down * h. Biases may
 * be NULL. */
struct ffn {
	struct matrix gate, up, down;
	const float *gate_bias, *up_bias;
	enum activation_kind activation;
};

/* Low-rank additions to a feed-forward's products, before the biases. */
struct ffn_adapt {
	struct low_rank gate, up, down;
};

/* A feed-forward that every row goes through. Computes y; if there is an x, then x += y + bias. */
struct step_dense_ffn {
	struct ffn ffn;
	struct inputs in;
	struct rows y; /* out: [ffn.down.rows] */
	struct rows x;
	const float *bias; /* [ffn.down.rows], or NULL; used only with x */
	/* NULL: no row has additions; otherwise rows with a nonzero entry in gated, [in] uint8_t */
	const struct ffn_adapt *adapt;
	struct place gated;
	struct step_fast fast; /* none of these rows has additions */
	struct step_next next;
};

/* The rule that makes weights from the router's outputs. */
enum gating {
	GATING_SOFTMAX = 1, /* 1 and 2 are the values of the GGUF key expert_gating_func */
	GATING_SIGMOID = 2,
	GATING_TOP_SOFTMAX = 3, /* softmax over the chosen experts only */
	GATING_SPARSEMIXER = 4,
};

struct routing_config {
	enum gating gating;
	bool norm; /* the chosen weights are divided by their sum */
	float scale; /* the weights are then multiplied by this */
	/* only experts of the n_groups_used best of n_groups groups may be chosen; 1 and 1: no
	 * groups */
	uint32_t n_groups, n_groups_used;
};

/* An expert that rows of the batch chose; its pairs are pairs[first] to pairs[first + n - 1] of the
 * order. */
struct expert_use {
	uint16_t expert, n;
	uint32_t first;
};

/* The choices of a batch, ordered by expert, and for one expert by row. */
struct expert_order {
	struct place pairs; /* uint32_t [rows * n_used]: row * n_used + rank */
	/* struct expert_use, by ascending expert, one for each distinct expert */
	struct place uses;
	struct place n_uses; /* uint32_t: the number of distinct experts */
};

/* Chooses n_used experts for each row. They are always distinct, even when scores are NaN. */
struct step_route {
	struct routing_config rule;
	uint32_t n_experts, n_used;
	const float *bias; /* [n_experts] bias of the router, or NULL */
	/* [n_experts] added to the scores for the choice only, or NULL */
	const float *selection_bias;
	struct rows scores; /* [n_experts] the router's products; overwritten */
	/* out: uint16_t [n_used], by descending weight (sparsemixer: in the order of the choice) */
	struct rows chosen;
	struct rows weights; /* out: [n_used] */
	struct expert_order order; /* out; pairs.buffer NULL: not wanted */
};

/* How an expert budget ranks the experts of a layer (MoE-Spec, section 3.2). */
enum budget_ranking {
	BUDGET_ROUTER, /* by the scores of the budget's rows */
	BUDGET_STATIC, /* by uses that were counted before */
	/* by what is missing from the rows' results without them; all experts are computed */
	BUDGET_ORACLE,
	BUDGET_RANKINGS
};

/* What a row does without an expert that it chose and that is not listed (section 3.3). */
enum budget_coverage {
	BUDGET_SUBSTITUTION, /* it chooses anew, among the listed experts */
	BUDGET_TRUNCATION, /* it goes without; its other weights stay */
	BUDGET_COVERAGES
};

/* Rows first..first+n-1 of a batch, which together may use no more than `experts` experts. */
struct budget_group {
	uint32_t first, n, experts;
	enum budget_ranking ranking;
	enum budget_coverage coverage;
	const uint64_t *uses; /* [n_experts], for BUDGET_STATIC */
	/* For BUDGET_ORACLE: [width] the result of expert e for row first + t at row t * n_experts
	 * + e, without its bias; overwritten. rest: scratch, n rows of [width]. */
	struct rows outputs, rest;
	/* out: uint16_t [experts] the list, best first; buffer NULL: not wanted */
	struct place list;
};

/* Limits the experts that groups of rows use (MoE-Spec, "Expert Budgeting for Efficient Speculative Decoding", equations 4 to 8). It
 * follows a route step that made no order, and makes the order. A row that keeps fewer than n_used
 * experts has the weight 0 at its last places; no expert is computed for them, and their rows of y
 * become zeros. Rows outside the groups stay as they are. */
struct step_budget {
	struct step_route route; /* as it ran; `order` says where the order goes */
	const struct budget_group *of;
	uint32_t n;
	uint32_t width;
	const float *bias; /* of the experts' results, as in struct step_combine; or NULL */
	size_t bias_stride;
	/* uint32_t [1]: one more for each row that chose an expert which is not listed */
	struct rows affected;
	struct rows y; /* [width] of the experts step that follows */
};

/* One expert: where each of its matrices lies. */
struct step_expert {
	struct place gate, up, down;
	/* of the matrices whose type allows tiles; the others lie in rows */
	enum matrix_layout layout;
	float gate_scale, up_scale, down_scale; /* used where the matrix is scaled */
	const float *gate_bias, *up_bias; /* or NULL */
	const struct ffn_adapt *adapt; /* or NULL; for the rows that step_experts.gated marks */
	uint32_t first, n; /* its pairs, as in struct expert_use */
};

/* Some experts of one layer, for the rows that chose them. The experts of a layer may come in
 * several such steps. */
struct step_experts {
	/* the matrices without data and scale; biases are taken from each expert */
	struct ffn shape;
	const struct step_expert *of;
	uint32_t n;
	/* With `of` NULL the step takes all experts that the rows chose (`order`), of which the back
	 * end finds out by itself: expert e of the layer is number known + e of those that the queue
	 * knows (know_experts). n_chosen, uint32_t, goes up by their number. */
	struct expert_order order;
	uint32_t known;
	struct place n_chosen;
	uint32_t n_used;
	struct place pairs; /* expert_order.pairs */
	struct inputs in;
	struct rows y; /* out: [shape.down.rows], the result of pair p at row p */
	struct place gated; /* as in struct step_dense_ffn; used where an expert has additions */
	struct step_next next;
};

/* Adds the results of the experts, and of the shared expert that every row takes, to x. For each
 * row s starts from +0; then for j = 0, 1, .. (by rank) s = fma(weight_j, y_j + bias_j, s). The
 * shared expert adds s = fma(sigmoid(shared_weight), shared + bias, s), or s = s + (shared + bias)
 * when it has no weight. Last, x = x + s. */
struct step_combine {
	uint32_t width, n_used;
	struct rows chosen, weights; /* as route wrote them */
	struct rows y; /* as experts wrote them; bias is added to them in place */
	const float *bias; /* expert e's bias begins at bias + e * bias_stride; or NULL */
	size_t bias_stride;
	struct rows shared, shared_weight; /* [width] and [1]; both overwritten; or absent */
	const float *shared_bias; /* [width] or NULL */
	struct rows sum; /* scratch: [width] */
	struct rows x; /* [width] */
};

/* The end of a pass: norm and output product of some rows. */
struct step_logits {
	struct rows x; /* [output.cols] */
	struct rows which; /* uint32_t: for each row of logits, its row of x */
	const float *w, *bias; /* as in struct step_norm */
	float eps;
	struct inputs h; /* scratch: which.n rows of [output.cols] */
	struct matrix output; /* [vocabulary][n_embd] */
	const float *output_bias; /* [vocabulary] or NULL */
	struct rows logits; /* out: [vocabulary] */
	struct step_next next;
};

/* Picks tokens from rows of logits, which stay unchanged (kernels/pick.h). The memory that the pick
 * rows point to, and the results, are host memory. They are the caller's again, with the results
 * written, when a ticket taken after the step is reached. */
struct step_pick {
	struct rows logits; /* [vocabulary] */
	const struct pick_row *rows; /* [first + n]; pick_check must have accepted them */
	uint32_t first, n; /* the step picks rows[first] to rows[first + n - 1] */
	const uint32_t *which; /* [n] for each pick, its row of logits */
	struct pick_result *results; /* out: [first + n] */
};
