/*
 * What the parts of loading share: model.c (the walk over the layers, embedding, output), model_tensors.c (one tensor
 * checked), model_attention.c, model_moe.c, and the loaders of the other mixers. Nobody else includes it.
 *
 * A loader names a tensor with name_tensor and then loads it: what is missing, of another shape or of a type that
 * cannot be computed with is refused by that name.
 */
#pragma once

#include "shared/model/arch/model.h"

/* Loading goes through the tensors a model of this configuration has, in order; what is in the file besides is
 * refused at the end, since leaving out a bias or an expert silently would change the output. */
struct loader {
	struct model *model;
	const struct gguf *gguf;
	struct error *err;
	bool *used; /* [n_tensors] */
	char name[80]; /* of the tensor at hand */
	char other_forms[256]; /* where else it was looked for, as text; "" for most */
};

struct model_memory {
	struct model_memory *next;
	max_align_t data[];
};

/* n elements, all 0, that live as long as the model. NULL: no memory, which l->err says. */
void *keep(struct loader *l, size_t n, size_t element_bytes);

/* Everything below works on l->name, which this sets and returns. */
const char *name_tensor(struct loader *l, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
bool has_tensor(const struct loader *l);
/* The tensor, marked as used, or NULL. */
const struct gguf_tensor *find_tensor(struct loader *l);
int missing_tensor(struct loader *l);

/* The vector [n], all of it finite: F32 as it lies in the file, F16 and BF16 widened into memory of the model. */
int load_vector(struct loader *l, uint32_t n, const float **out);
/* The same of vectors [rows][n], {n, rows} in the file. */
int load_table(struct loader *l, uint32_t rows, uint32_t n, const float **out);
/* A vector that part says about whether it must be there; NULL when it is not. One that must not is left for the
 * refusal of unused tensors. */
int load_part(struct loader *l, enum part part, uint32_t n, const float **out);

/* The matrix of rows outputs and cols inputs: {cols, rows} in the file. */
int load_matrix(struct loader *l, uint32_t rows, uint32_t cols, struct matrix *out);
/* n of them one after the other, {cols, rows, n}; *out is the first. */
int load_matrices(struct loader *l, uint32_t rows, uint32_t cols, uint32_t n, struct matrix *out);
/* blk.LAYER.NAME.weight of that shape, and blk.LAYER.NAME.bias [rows], NULL where there is none. */
int load_linear(struct loader *l, uint32_t layer, const char *name, uint32_t rows, uint32_t cols,
	struct matrix *weight, const float **bias);

/*
 * Matrices of one layer with the same inputs, and their biases, which files hold in several forms (model_forms.c): a
 * tensor for each; the rows of all in one tensor, one matrix after the other; with experts, all experts in a tensor or one
 * tensor for each.
 */
#define GROUP_PARTS 3
struct group {
	const char *fused; /* name of the tensor of all rows, without the suffix */
	const char *suffix; /* of every name but those of single experts' tensors */
	bool last_holds_all; /* the tensor of the last part may be the one of all rows, where the first has none */
	uint32_t n_experts; /* 0: they are not experts' */
	uint32_t cols, n;
	struct {
		const char *name;
		uint32_t rows;
	} part[GROUP_PARTS];
};
/* Of group->n parts: weight[p], and bias[p] or NULL. */
int load_group(struct loader *l, uint32_t layer, const struct group *group,
	struct matrix *const *weight, const float **const *bias);
/* The same of experts; needed: there must be biases. */
int load_expert_group(struct loader *l, uint32_t layer, const struct group *group,
	struct expert_tensor *const *weight);
int load_expert_biases(struct loader *l, uint32_t layer, const struct group *group, bool needed,
	struct expert_bias *const *bias);

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
