/*
 * A model: its hyperparameters, from one row of the architecture table (arch.c) and the file's metadata, and its
 * weights as borrowed views of the mapping. Read-only after loading; any number of threads may use it.
 */
#pragma once

#include "kernels/steps.h"
#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/model/gguf/gguf.h"
#include "shared/model/arch/model_mla.h"

/* What mixes the tokens of a layer: attention.c, attention_mla.c and delta_net.c of shared/model/pass. */
enum mixer { MIX_ATTENTION, MIX_MLA, MIX_DELTA_NET };

enum qk_norm {
	QK_NORM_NONE,
	QK_NORM_HEAD, /* RMS norm of each q and k head before rope, weights [head_dim] */
	QK_NORM_VECTOR, /* of all heads of q, and of k, as one vector */
};

/* How a part that only some files or architectures have is treated. */
enum part { PART_NONE, PART_OPTIONAL, PART_NEEDED };

enum shared_expert {
	SHARED_NONE,
	SHARED_COUNT, /* expert_shared_count experts, as one of their width */
	SHARED_WIDTH, /* of width expert_shared_feed_forward_length, times sigmoid(gate . x) */
};

enum window {
	WINDOW_NONE, /* the key attention.sliding_window is not for the model's own layers */
	WINDOW_ALL, /* every layer, where the key is not 0 */
	WINDOW_EVEN, /* layers 0, 2, 4...; the key is needed */
};

enum rope_scaling { ROPE_LINEAR, ROPE_YARN, ROPE_LONG };

/* What an architecture is made of; arch.c holds one row per architecture. */
struct arch {
	const char *name; /* general.architecture */
	enum mixer mixer; /* of its layers, or of those that are not delta nets */
	bool rope_neox; /* pairs (i, i + n/2); else (2i, 2i + 1) */
	bool delta_nets; /* some layers are: delta_config says which */
	bool delta_tiled; /* delta_config.tiled */
	bool q_gate; /* attn_q has per head head_dim rows of q, then as many of a gate: out * sigmoid(gate) */
	enum qk_norm qk_norm;
	bool qk_norm_optional; /* decided by the file */
	bool layer_norm; /* LayerNorm with bias instead of RMS norm, everywhere */
	bool expert_biases; /* router and experts must have biases; of other matrices any may */
	enum part sinks;
	const char *ffn_norm; /* name of the tensor of the norm before the feed-forward */
	enum window window;
	bool yarn_exact; /* YaRN's correction range is not rounded to whole dimensions */
	bool rope_long; /* factors by context length; needed, no key says so */
	enum gating gating; /* where no key says so */
	bool norm_topk; /* the chosen experts' weights are renormalised; where no key says so */
	bool routing_keys; /* expert_gating_func, _weights_norm, _weights_scale, _group_count are keys of it */
	enum part selection_bias; /* exp_probs_b: added to the scores for the choice only */
	enum shared_expert shared;
	enum activation_kind activation;
	bool expert_ffn_key; /* expert width from expert_feed_forward_length, else feed_forward_length */
	bool moe_required, moe_allowed;
};

const struct arch *arch_find(const char *name, size_t bytes); /* or NULL */
const struct arch *arch_at(
	size_t i); /* the i-th row, NULL behind the last: for messages and listings */

/* Gated delta nets: layers with a recurrent state instead of keys and values (delta_net.c). Value heads share key heads
 * in groups. */
struct delta_config {
	uint32_t n_layers; /* of this kind; 0: none, and nothing below counts */
	bool layer[LIMIT_LAYERS]; /* is one */
	uint32_t n_k_heads, n_v_heads; /* the first divides the second */
	uint32_t d_k, d_v; /* of a head */
	uint32_t taps; /* of the convolution over time: a token and taps - 1 before it */
	bool tiled; /* value head h goes with key head h % n_k_heads, else with h / (n_v_heads / n_k_heads) */
};

struct rope_config {
	enum rope_scaling scaling;
	double base;
	double factor; /* positions per position of the original context; 1 without */
	double original_context; /* tokens: yarn, longrope */
	double beta_fast, beta_slow; /* yarn: rotations in the original context */
	double attn_factor; /* of cos and sin, as the file has it */
	double yarn_attn_factor; /* instead of yarn's own temperature; 0 without */
	double yarn_log_multiplier; /* 0 without; deepseek2: model_mla.c */
	const float *factors; /* [n_rot / 2] divides theta (llama3), or NULL */
	const float *factors_short,
		*factors_long; /* the same, up to the original context and beyond */
};

struct model_config {
	const struct arch *arch;
	uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim; /* head_dim of q, k and v */
	uint32_t n_kv_layers; /* of them with keys and values */
	uint32_t
		n_blocks; /* in the file: n_layers, then blocks for prediction beyond the next token, not used */
	uint32_t
		window; /* cells a token of a windowed layer attends to, itself counted; 0 without */
	uint32_t dense_ff
		[LIMIT_LAYERS]; /* widths of the dense feed-forward; of layers without one not meant */
	uint32_t n_ff; /* the widest of them, 0 without */
	uint32_t n_dense; /* leading dense layers of a model with experts */
	uint32_t moe_step; /* of the others the last of every so many has experts; 1 mostly */
	uint32_t n_experts, n_experts_used, n_expert_ff; /* 0 for dense models */
	uint32_t n_shared_ff; /* width of the shared expert, 0 without */
	struct routing_config routing;
	uint32_t n_vocab, n_context;
	uint32_t n_rot; /* rotated dimensions of a head */
	float rms_eps; /* of LayerNorm too */
	struct rope_config rope;
	struct delta_config delta;
	struct mla_config mla;
};

/* One kind of expert matrix of a layer. Offsets count as in gguf.h: over the parts of a split model. */
struct expert_tensor {
	struct matrix shape; /* data = expert 0 in the mapping */
	uint64_t file_offset; /* of expert 0 */
	uint64_t expert_bytes;
	uint64_t expert_stride; /* expert e lies at + e * expert_stride, in file and mapping */
	const uint64_t *places; /* [n_experts] or NULL: instead, the offset of each */
	const float *scales; /* [n_experts] or NULL: each one's scale (struct matrix) */
};

/* Row e is expert e's. */
struct expert_bias {
	const float *rows; /* or NULL */
	size_t stride; /* values from one row to the next */
};

/* K = n_k_heads * d_k, V = n_v_heads * d_v. Either qkv and z, or mixed: per key head its rows of q, k, v and z. Either
 * ba, per key head the beta and alpha rows of its value heads, or beta and alpha. What there is not has no data. */
struct delta_weights {
	uint32_t index; /* among the layers of this kind */
	struct matrix qkv, z; /* {2K + V, n_embd}, {V, n_embd} */
	struct matrix mixed; /* {2K + 2V, n_embd} */
	struct matrix ba, beta, alpha; /* {2 n_v_heads, n_embd}, {n_v_heads, n_embd} x2 */
	struct matrix out; /* {n_embd, V} */
	const float *conv; /* [2K + V][taps], the token itself last */
	const float *a, *dt; /* [n_v_heads], a = -exp(A) */
	const float *norm; /* [d_v] */
};

struct layer {
	enum mixer mixer;
	uint32_t kv_layer; /* index among the layers with keys and values */
	bool windowed; /* attends to config.window cells only */
	const float *attn_norm; /* [n_embd] */
	const float *ffn_norm; /* [n_embd] */
	const float *attn_norm_bias, *ffn_norm_bias; /* or NULL; LayerNorm only */
	const float *q_norm, *k_norm; /* [head_dim], or of all heads, or NULL: arch->qk_norm */
	struct matrix q, k, v,
		o; /* {n_heads*head_dim, n_embd}, {n_kv_heads*head_dim, n_embd} x2, {n_embd, ...} */
	const float *q_bias, *k_bias, *v_bias, *o_bias; /* or NULL */
	const float *sinks; /* [n_heads] or NULL */
	struct mla_layer mla; /* with q and o, and their biases: MIX_MLA */
	struct delta_weights delta; /* instead of q, k, v and o */
	bool moe;
	struct matrix ffn_gate, ffn_up, ffn_down; /* dense: {n_ff, n_embd} x2, {n_embd, n_ff} */
	const float *ffn_gate_bias, *ffn_up_bias, *ffn_down_bias; /* or NULL */
	struct matrix router; /* moe: {n_experts, n_embd} */
	const float *router_bias, *selection_bias; /* [n_experts] or NULL */
	struct expert_tensor gate, up,
		down; /* moe: {n_expert_ff, n_embd} x2, {n_embd, n_expert_ff} each */
	struct expert_bias gate_bias, up_bias, down_bias; /* of n_expert_ff values x2, of n_embd */
	struct matrix shared_gate, shared_up,
		shared_down; /* as ffn_*, of width n_shared_ff, or no data */
	const float *shared_gate_bias, *shared_up_bias, *shared_down_bias; /* or NULL */
	struct matrix
		shared_weight; /* {1, n_embd}: sigmoid of its product weighs the shared expert; or no data */
};

struct model {
	struct gguf *gguf; /* owned */
	struct model_config config;
	struct matrix embedding; /* {n_vocab, n_embd} */
	const float *output_norm, *output_norm_bias; /* [n_embd]; bias or NULL */
	struct matrix output; /* {n_vocab, n_embd}; the embedding when tied */
	const float *output_bias; /* [n_vocab] or NULL */
	struct layer *layers; /* [n_layers], owned */
	struct model_memory *memory; /* owned: widened vectors, places of experts */
	uint64_t memory_bytes; /* of it */
	uint64_t expert_bytes_total; /* of all experts of all layers */
	enum matrix_layout expert_layout; /* of the experts that shape.data points to (weights.h) */
	bool packed; /* the file has its experts as pack.h says */
	/* gguf_fingerprint: the same model, or not; a packed copy has its original's. */
	uint64_t fingerprint;
	/* The same for who shares places and layouts of weights: a packed copy has another than its original. */
	uint64_t file_fingerprint;
};

/* Opens, validates every shape and type (names the tensor and what was expected), fills *out. */
int model_load(const char *path, struct model **out, struct error *err);
/* The same from an open file; takes *gguf in any case and sets it to NULL. Of a file opened for checking
 * (gguf_open_checked) every problem is reported, and with any the result is -ECANCELED. */
int model_load_gguf(struct gguf **gguf, struct model **out, struct error *err);
void model_free(struct model **model);

/* The matrices of a layer that every token goes through, but MLA's per-head ones; those it does not have have no data. */
#define LAYER_MATRICES 21
void model_layer_matrices(struct layer *layer, struct matrix *out[static LAYER_MATRICES]);

/* Bytes of one expert (gate + up + down) of a layer. */
uint64_t model_expert_bytes(const struct model *model, uint32_t layer);
/* Where one expert's matrix begins: in the file, and in memory. */
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
