/*
 * A model: its hyperparameters, from one row of the table of architectures (arch.c) and the file's
 * metadata, and its weights as borrowed views of the mapping. Read-only after loading; any number
 * of threads may use it.
 */
#pragma once

#include "kernels/steps.h"
#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/model/gguf/gguf.h"
#include "shared/model/arch/model_mla.h"

/* How a layer mixes tokens: attention.c, attention_mla.c and delta_net.c of shared/model/pass. */
enum mixer {
	MIX_ATTENTION,
	MIX_MLA,
	MIX_DELTA_NET,
	MIX_EAGLE3, /* attention whose input is a token and a state (head.h) */
};

enum qk_norm {
	QK_NORM_NONE,
	QK_NORM_HEAD, /* RMS norm of each q and k head before rope, with weights [head_dim] */
	QK_NORM_VECTOR, /* of all heads of q, and of all heads of k, as one vector */
};

/* Whether a part that only some files or architectures have may or must be there. */
enum part { PART_NONE, PART_OPTIONAL, PART_NEEDED };

enum shared_expert {
	SHARED_NONE,
	SHARED_COUNT, /* expert_shared_count experts, combined into one of their total width */
	/* one expert of width expert_shared_feed_forward_length, times sigmoid(gate . x) */
	SHARED_WIDTH,
};

enum window {
	WINDOW_NONE, /* the key attention.sliding_window does not concern the model's own layers */
	WINDOW_ALL, /* all layers, if the key is not 0 */
	WINDOW_EVEN, /* layers 0, 2, 4...; the key is required */
};

enum rope_scaling { ROPE_LINEAR, ROPE_YARN, ROPE_LONG };

/* The properties of an architecture; arch.c has one row for each. */
struct arch {
	const char *name; /* general.architecture */
	enum mixer mixer; /* of all layers, or of those that are not delta nets */
	bool rope_neox; /* pairs (i, i + n/2); otherwise (2i, 2i + 1) */
	bool delta_nets; /* some layers are delta nets; delta_config says which */
	bool delta_tiled; /* as delta_config.tiled */
	/* attn_q has, for each head, head_dim rows of q and then as many of a gate: out *
	 * sigmoid(gate) */
	bool q_gate;
	enum qk_norm qk_norm;
	bool qk_norm_optional; /* the file decides */
	bool layer_norm; /* LayerNorm with bias instead of RMS norm, everywhere */
	bool expert_biases; /* router and experts must have biases; other matrices may have them */
	enum part sinks;
	const char *ffn_norm; /* name of the tensor with the norm before the feed-forward */
	enum window window;
	bool yarn_exact; /* YaRN's correction range is not rounded to whole dimensions */
	bool rope_long; /* factors by context length; required, although no key says so */
	enum gating gating; /* used when no key says otherwise */
	/* the chosen experts' weights are renormalised; used when no key says otherwise */
	bool norm_topk;
	/* expert_gating_func, _weights_norm, _weights_scale and _group_count are keys of this
	 * architecture */
	bool routing_keys;
	/* exp_probs_b, which is added to the scores for the choice only */
	enum part selection_bias;
	enum shared_expert shared;
	enum activation_kind activation;
	/* expert_feed_forward_length has the experts' width; otherwise feed_forward_length */
	bool expert_ffn_key;
	bool moe_required, moe_allowed;
};

const struct arch *arch_find(const char *name, size_t bytes); /* NULL: not found */
const struct arch *arch_at(
	size_t i); /* the i-th row, NULL behind the last; for messages and listings */

/* Gated delta nets: layers with a recurrent state instead of keys and values (delta_net.c). Value
 * heads share key heads in groups. */
struct delta_config {
	uint32_t n_layers; /* number of these layers; 0: none, and the rest is unused */
	bool layer[LIMIT_LAYERS]; /* the layer is one */
	uint32_t n_k_heads, n_v_heads; /* n_k_heads divides n_v_heads */
	uint32_t d_k, d_v; /* sizes of a head */
	uint32_t taps; /* length of the convolution over time: a token and taps - 1 before it */
	/* value head h uses key head h % n_k_heads; otherwise key head h / (n_v_heads / n_k_heads)
	 */
	bool tiled;
};

struct rope_config {
	enum rope_scaling scaling;
	double base;
	double factor; /* positions per position of the original context; 1: no scaling */
	double original_context; /* tokens: yarn, longrope */
	double beta_fast, beta_slow; /* yarn: rotations within the original context */
	double attn_factor; /* factor for cos and sin, as in the file */
	double yarn_attn_factor; /* replaces yarn's own temperature; 0: not given */
	double yarn_log_multiplier; /* 0: not given; deepseek2: model_mla.c */
	const float *factors; /* [n_rot / 2] divisors of theta (llama3), or NULL */
	const float *factors_short,
		*factors_long; /* the same: up to the original context, and beyond it */
};

struct model_config {
	const struct arch *arch;
	uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim; /* head_dim: of q, k and v */
	uint32_t n_kv_layers; /* layers with keys and values */
	/* blocks in the file: n_layers, then unused blocks that predict tokens beyond the next */
	uint32_t n_blocks;
	/* cells that a token of a windowed layer attends to, itself included; 0: no window */
	uint32_t window;
	uint32_t dense_ff
		/* widths of the dense feed-forwards; undefined for layers without one */
		[LIMIT_LAYERS];
	uint32_t n_ff; /* the widest of them; 0: none */
	uint32_t n_dense; /* leading dense layers in a model with experts */
	uint32_t moe_step; /* every moe_step-th remaining layer has experts; usually 1 */
	uint32_t n_experts, n_experts_used, n_expert_ff; /* 0 for dense models */
	uint32_t n_shared_ff; /* width of the shared expert; 0: none */
	struct routing_config routing;
	uint32_t n_vocab, n_context;
	uint32_t n_rot; /* rotated dimensions of a head */
	float rms_eps; /* also that of LayerNorm */
	struct rope_config rope;
	struct delta_config delta;
	struct mla_config mla;
};

/* One of the three matrices of a layer's experts. Offsets are counted as in gguf.h: over the parts
 * of a split model. */
struct expert_tensor {
	struct matrix shape; /* data = expert 0 in the mapping */
	uint64_t file_offset; /* that of expert 0 */
	uint64_t expert_bytes;
	/* expert e is e * expert_stride further, in the file and in the mapping */
	uint64_t expert_stride;
	const uint64_t *places; /* [n_experts] the offset of each, instead; or NULL */
	const float *scales; /* [n_experts] scale of each (struct matrix), or NULL */
};

/* Biases of a layer's experts; row e belongs to expert e. */
struct expert_bias {
	const float *rows; /* or NULL */
	size_t stride; /* values from one row to the next */
};

/* K = n_k_heads * d_k, V = n_v_heads * d_v. There is either qkv and z, or mixed, which has for each
 * key head its rows of q, k, v and z. There is either ba, which has for each key head the beta and
 * alpha rows of its value heads, or beta and alpha. Absent matrices have no data. */
struct delta_weights {
	uint32_t index; /* among the layers of this kind */
	struct matrix qkv, z; /* {2K + V, n_embd}, {V, n_embd} */
	struct matrix mixed; /* {2K + 2V, n_embd} */
	struct matrix ba, beta, alpha; /* {2 n_v_heads, n_embd}, {n_v_heads, n_embd} x2 */
	struct matrix out; /* {n_embd, V} */
	const float *conv; /* [2K + V][taps], the weight of the token itself last */
	const float *a, *dt; /* [n_v_heads], a = -exp(A) */
	const float *norm; /* [d_v] */
};

struct layer {
	enum mixer mixer;
	uint32_t kv_layer; /* index among the layers with keys and values */
	bool windowed; /* attends only to config.window cells */
	const float *attn_norm; /* [n_embd] */
	const float *ffn_norm; /* [n_embd] */
	const float *attn_norm_bias, *ffn_norm_bias; /* or NULL; LayerNorm only */
	const float *q_norm, *k_norm; /* [head_dim], or of all heads, or NULL; see arch->qk_norm */
	struct matrix q, k, v,
		o; /* {n_heads*head_dim, n_embd}, {n_kv_heads*head_dim, n_embd} x2, {n_embd, ...} */
	const float *q_bias, *k_bias, *v_bias, *o_bias; /* or NULL */
	const float *sinks; /* [n_heads] or NULL */
	struct mla_layer mla; /* used together with q and o and their biases, for MIX_MLA */
	struct delta_weights delta; /* used instead of q, k, v and o */
	bool moe;
	struct matrix ffn_gate, ffn_up, ffn_down; /* dense: {n_ff, n_embd} x2, {n_embd, n_ff} */
	const float *ffn_gate_bias, *ffn_up_bias, *ffn_down_bias; /* or NULL */
	struct matrix router; /* moe: {n_experts, n_embd} */
	const float *router_bias, *selection_bias; /* [n_experts] or NULL */
	struct expert_tensor gate, up,
		down; /* moe: {n_expert_ff, n_embd} x2, {n_embd, n_expert_ff} each */
	struct expert_bias gate_bias, up_bias, down_bias; /* of n_expert_ff values x2, of n_embd */
	struct matrix shared_gate, shared_up,
		shared_down; /* like ffn_*, of width n_shared_ff; without data if absent */
	const float *shared_gate_bias, *shared_up_bias, *shared_down_bias; /* or NULL */
	/* {1, n_embd}: the sigmoid of its product is the weight of the shared expert; without data
	 * if absent */
	struct matrix shared_weight;
};

struct model {
	struct gguf *gguf; /* owned */
	struct model_config config;
	struct matrix embedding; /* {n_vocab, n_embd} */
	const float *output_norm, *output_norm_bias; /* [n_embd]; bias or NULL */
	/* {n_vocab, n_embd}; the embedding if they are tied. A draft head may have fewer rows. */
	struct matrix output;
	const float *output_bias; /* [n_vocab] or NULL */
	struct layer *layers; /* [n_layers], owned */
	/* [n_drafting] Only the experts of the blocks behind the last layer, which draft (head.h), for
	 * those who keep experts: up to the first block that has none. A packed file does without. */
	struct layer drafting[LIMIT_DRAFT_BLOCKS];
	uint32_t n_drafting;
	struct head *head; /* set if it is a draft head (head.h); owned */
	struct model_memory *memory; /* owned: widened vectors, and offsets of experts */
	uint64_t memory_bytes; /* size of that memory */
	uint64_t expert_bytes_total; /* all experts of all layers */
	enum matrix_layout expert_layout; /* of the experts that shape.data points to (weights.h) */
	bool packed; /* the file has its experts as in pack.h */
	/* gguf_fingerprint, which identifies the model; a packed copy has that of its original. */
	uint64_t fingerprint;
	/* The same for processes that share offsets and layouts of weights: a packed copy has its
	 * own. */
	uint64_t file_fingerprint;
};

/* Opens the file, checks every shape and type (the message names the tensor and what was expected),
 * and fills *out. */
int model_load(const char *path, struct model **out, struct error *err);
/* The same from an open file; takes over *gguf in any case and sets it to NULL. For a file opened
 * for checking (gguf_open_checked), all problems are reported, and if there are any the result is
 * -ECANCELED. */
int model_load_gguf(struct gguf **gguf, struct model **out, struct error *err);
void model_free(struct model **model);

/* The matrices of a layer that every token uses, except for MLA's per-head ones. Absent ones have
 * no data. */
#define LAYER_MATRICES 21
void model_layer_matrices(struct layer *layer, struct matrix *out[static LAYER_MATRICES]);

/* Bytes of one expert (gate, up and down) of a layer. */
uint64_t model_expert_bytes(const struct model *model, uint32_t layer);
/* Where one expert's matrix begins: its offset in the file, and its address. */
static inline uint64_t model_expert_offset(const struct expert_tensor *tensor, uint32_t expert)
{
	return tensor->places ? tensor->places[expert]
			      : tensor->file_offset + expert * tensor->expert_stride;
}
static inline const void *model_expert_data(const struct expert_tensor *tensor, uint32_t expert)
{
	return (const unsigned char *)tensor->shape.data +
	       (int64_t)(model_expert_offset(tensor, expert) - tensor->file_offset);
}
