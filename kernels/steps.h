/*
 * What steps of a forward pass are told (kernels/backend.h): rows of buffers, weights, and numbers. Nothing here points to memory
 * of a batch but through a buffer.
 */
#pragma once

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
	uint32_t map; /* of its sequence: step_attend.maps */
	uint32_t shared; /* positions from which on its own ancestors count, not the map */
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
