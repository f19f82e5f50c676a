/*
 * A model: its hyperparameters, from one row of the architecture table (arch.c) and the file's metadata, and its
 * weights as borrowed views of the mapping. Read-only after loading; any number of threads may use it.
 */
#pragma once

#include "kernels/kernels.h"
#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/model/gguf.h"

/* What an architecture is made of; arch.c holds one row per architecture. */
struct arch {
	const char *name; /* general.architecture */
	bool rope_neox; /* pairs (i, i + n/2); else (2i, 2i + 1) */
	bool qk_norm; /* RMS norm of each q and k head before rope */
	bool norm_topk; /* the chosen experts' softmax weights are renormalised */
	bool biases_allowed; /* q, k, v, o biases are used when present */
	bool expert_ffn_key; /* expert width from expert_feed_forward_length, else feed_forward_length */
	bool moe_required, moe_allowed;
};

const struct arch *arch_find(const char *name, size_t bytes); /* or NULL */
const struct arch *arch_at(
	size_t i); /* the i-th row, NULL behind the last: for messages and listings */

struct model_config {
	const struct arch *arch;
	uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim; /* head_dim of q, k and v */
	uint32_t n_ff; /* dense feed-forward width, 0 without */
	uint32_t n_experts, n_experts_used, n_expert_ff; /* 0 for dense models */
	uint32_t n_vocab, n_context;
	uint32_t n_rot; /* rotated dimensions of a head */
	float rms_eps;
	double rope_base;
	float rope_scale; /* linear scaling: position * rope_scale; 1 without */
	const float *rope_factors; /* [n_rot / 2] divides theta (llama3), or NULL */
};

/* One kind of expert matrix of a layer: n_experts matrices one after the other in the file. */
struct expert_tensor {
	struct matrix shape; /* data = expert 0 in the mapping */
	uint64_t file_offset; /* of expert 0, as gguf.h counts: over the parts of a split model */
	uint64_t expert_bytes; /* expert e lies at + e * expert_bytes, in file and mapping */
};

struct layer {
	const float *attn_norm; /* [n_embd] */
	const float *ffn_norm; /* [n_embd] */
	const float *q_norm, *k_norm; /* [head_dim] or NULL */
	struct matrix q, k, v,
		o; /* {n_heads*head_dim, n_embd}, {n_kv_heads*head_dim, n_embd} x2, {n_embd, ...} */
	const float *q_bias, *k_bias, *v_bias, *o_bias; /* or NULL */
	bool moe;
	struct matrix ffn_gate, ffn_up, ffn_down; /* dense: {n_ff, n_embd} x2, {n_embd, n_ff} */
	struct matrix router; /* moe: {n_experts, n_embd}, F32 */
	struct expert_tensor gate, up,
		down; /* moe: {n_expert_ff, n_embd} x2, {n_embd, n_expert_ff} each */
};

struct model {
	struct gguf *gguf; /* owned */
	struct model_config config;
	struct matrix embedding; /* {n_vocab, n_embd} */
	const float *output_norm; /* [n_embd] */
	struct matrix output; /* {n_vocab, n_embd}; the embedding when tied */
	struct layer *layers; /* [n_layers], owned */
	uint64_t expert_bytes_total; /* of all experts of all layers */
	uint64_t
		fingerprint; /* FNV-1a over metadata, tensor table, file size: the same file, or not */
};

/* Opens, validates every shape and type (names the tensor and what was expected), fills *out. */
int model_load(const char *path, struct model **out, struct error *err);
/* The same from an open file; takes *gguf in any case and sets it to NULL. Of a file opened for checking
 * (gguf_open_checked) every problem is reported, and with any the result is -ECANCELED. */
int model_load_gguf(struct gguf **gguf, struct model **out, struct error *err);
void model_free(struct model **model);

/* Bytes of one expert (gate + up + down) of a layer. */
uint64_t model_expert_bytes(const struct model *model, uint32_t layer);
