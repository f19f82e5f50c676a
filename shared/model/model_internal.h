/*
 * What the parts of loading share: model.c (the walk over the layers, embedding, output), model_tensors.c (one tensor
 * checked), model_attention.c, model_moe.c, and the loaders of the other mixers. Nobody else includes it.
 *
 * A loader names a tensor with name_tensor and then loads it: what is missing, of another shape or of a type that
 * cannot be computed with is refused by that name.
 */
#pragma once

#include "shared/model/model.h"

/* Loading goes through the tensors a model of this configuration has, in order; what is in the file besides is
 * refused at the end, since leaving out a bias or an expert silently would change the output. */
struct loader {
	struct model *model;
	const struct gguf *gguf;
	struct error *err;
	bool *used; /* [n_tensors] */
	char name[80]; /* of the tensor at hand */
	struct ones *ones; /* of a checked file; owned */
};

/* What vectors that cannot be used are taken for in a checked file: its model is not run, but the rest is looked
 * at. */
struct ones {
	struct ones *next;
	float x[];
};

/* Everything below works on l->name, which this sets and returns. */
const char *name_tensor(struct loader *l, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
bool has_tensor(const struct loader *l);
/* The tensor, marked as used, or NULL. */
const struct gguf_tensor *find_tensor(struct loader *l);
int missing_tensor(struct loader *l);

/* The F32 vector [n], all of it finite. */
int load_vector(struct loader *l, uint32_t n, const float **out);
/* The F32 vectors [rows][n], {n, rows} in the file. */
int load_table(struct loader *l, uint32_t rows, uint32_t n, const float **out);
/* A vector that part says about whether it must be there; NULL when it is not. One that must not is left for the
 * refusal of unused tensors. */
int load_part(struct loader *l, enum part part, uint32_t n, const float **out);

/* The matrix of rows outputs and cols inputs: {cols, rows} in the file. */
int load_matrix(struct loader *l, uint32_t rows, uint32_t cols, struct matrix *out);
/* n of them one after the other, {cols, rows, n}; *out is the first. */
int load_matrices(struct loader *l, uint32_t rows, uint32_t cols, uint32_t n, struct matrix *out);
/* blk.LAYER.ffn_KIND_exps.weight. */
int load_experts(struct loader *l, uint32_t layer, const char *kind, uint32_t rows, uint32_t cols,
	struct expert_tensor *out);

/* What multiplies the products of matrices that are loaded: NAME.scale of NAME.weight (model_scales.c). */
int load_scales(struct loader *l);

/* blk.LAYER.ffn_exps.packed, of a packed model (pack.h). */
int load_packed_experts(struct loader *l, uint32_t i, struct layer *layer);

/* blk.LAYER.NAME.weight, with .bias where the architecture has LayerNorm (else *bias is NULL). */
int load_norm(struct loader *l, uint32_t layer, const char *name, const float **weight,
	const float **bias);

/* The tensors of one layer's mixer, attn_norm aside. Each knows from l->model->config what there must be. */
int load_attention(struct loader *l, uint32_t i, struct layer *layer);
int load_mla(struct loader *l, uint32_t i, struct layer *layer);
int load_delta_net(struct loader *l, uint32_t i, struct layer *layer);

/* The feed-forward of one layer, dense or routed, its norm aside. */
int load_feed_forward(struct loader *l, uint32_t i, struct layer *layer);
