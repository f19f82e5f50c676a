/*
 * What the parts of loading share: model.c (the walk over the layers, embedding, output),
 * model_tensors.c (one checked tensor), model_attention.c, model_moe.c, and the loaders of the
 * other mixers. No other file includes it.
 *
 * A loader names a tensor with name_tensor and then loads it. A tensor that is missing, has another
 * shape, or has a type that cannot be computed with is refused by that name.
 */
#pragma once

#include "shared/model/arch/model.h"

/* Loading goes in order through the tensors that a model of this configuration has. Tensors that
 * are left over are refused at the end, because silently ignoring a bias or an expert would change
 * the output. */
struct loader {
	struct model *model;
	const struct gguf *gguf;
	struct error *err;
	bool *used; /* [n_tensors] */
	char name[80]; /* of the present tensor */
	char other_forms[256]; /* where else it was looked for, as text; usually "" */
};

struct model_memory {
	struct model_memory *next;
	max_align_t data[];
};

/* Allocates n zeroed elements that live as long as the model. NULL: no memory; l->err has the
 * message. */
void *keep(struct loader *l, size_t n, size_t element_bytes);

/* Sets and returns l->name, with which everything below works. */
const char *name_tensor(struct loader *l, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
bool has_tensor(const struct loader *l);
/* Finds the tensor and marks it as used; NULL when it is missing. */
const struct gguf_tensor *find_tensor(struct loader *l);
int missing_tensor(struct loader *l);

/* Loads the vector [n], checking that all of it is finite: F32 in place, F16 and BF16 widened into
 * memory of the model. */
int load_vector(struct loader *l, uint32_t n, const float **out);
/* The same for vectors [rows][n], {n, rows} in the file. */
int load_table(struct loader *l, uint32_t rows, uint32_t n, const float **out);
/* Loads a vector that, according to `part`, must, may or must not be there; NULL when it is not.
 * One that must not be there is left to the refusal of unused tensors. */
int load_part(struct loader *l, enum part part, uint32_t n, const float **out);

/* Loads the matrix with `rows` outputs and `cols` inputs: {cols, rows} in the file. */
int load_matrix(struct loader *l, uint32_t rows, uint32_t cols, struct matrix *out);
/* n such matrices, one after the other: {cols, rows, n}; *out is the first. */
int load_matrices(struct loader *l, uint32_t rows, uint32_t cols, uint32_t n, struct matrix *out);
/* Loads blk.LAYER.NAME.weight of that shape, and blk.LAYER.NAME.bias [rows]; *bias is NULL when
 * there is none. */
int load_linear(struct loader *l, uint32_t layer, const char *name, uint32_t rows, uint32_t cols,
	struct matrix *weight, const float **bias);

/*
 * Matrices of one layer that have the same inputs, and their biases. Files hold them in several
 * forms (model_forms.c): each in a tensor; the rows of all in one tensor, one matrix after the
 * other; for experts, all experts in a tensor, or one tensor for each.
 */
#define GROUP_PARTS 3
struct group {
	const char *fused; /* name of the tensor with all rows, without the suffix */
	const char *suffix; /* of all names, except those of tensors of single experts */
	/* the last part's tensor may be the one with all rows, if the first part has none */
	bool last_holds_all;
	uint32_t n_experts; /* 0: they do not belong to experts */
	uint32_t cols, n;
	struct {
		const char *name;
		uint32_t rows;
	} part[GROUP_PARTS];
};
/* Loads group->n parts: weight[p], and bias[p], which may be NULL. */
int load_group(struct loader *l, uint32_t layer, const struct group *group,
	struct matrix *const *weight, const float **const *bias);
/* The same for experts. needed: there must be biases. */
int load_expert_group(struct loader *l, uint32_t layer, const struct group *group,
	struct expert_tensor *const *weight);
int load_expert_biases(struct loader *l, uint32_t layer, const struct group *group, bool needed,
	struct expert_bias *const *bias);

/* Loads the scales of matrices that are loaded already: NAME.scale for NAME.weight
 * (model_scales.c). */
int load_scales(struct loader *l);
/* The same for the matrices of one layer. */
int load_layer_scales(struct loader *l, uint32_t i);

/* Loads blk.LAYER.ffn_exps.packed of a packed model (pack.h). */
int load_packed_experts(struct loader *l, uint32_t i, struct layer *layer);

/* Loads blk.LAYER.NAME.weight, with .bias if the architecture has LayerNorm (otherwise *bias is
 * NULL). */
int load_norm(struct loader *l, uint32_t layer, const char *name, const float **weight,
	const float **bias);

/* Load the tensors of one layer's mixer, without attn_norm. l->model->config says what must be
 * there. */
int load_attention(struct loader *l, uint32_t i, struct layer *layer);
int load_mla(struct loader *l, uint32_t i, struct layer *layer);
int load_delta_net(struct loader *l, uint32_t i, struct layer *layer);

/* Loads the feed-forward of one layer, dense or routed, without its norm. */
int load_feed_forward(struct loader *l, uint32_t i, struct layer *layer);

/* Parts of loading that draft heads have too (model.c). load_layer fills l->model->layers[i] from
 * block i. load_read_vocabulary sets config.n_vocab from token_embd. load_check_unused refuses
 * tensors that nothing has loaded. */
int load_layer(struct loader *l, uint32_t i);
/* Fills l->model->drafting from the blocks behind the last layer, as far as these have routed experts that can
 * be computed with. */
void load_drafting_experts(struct loader *l);
int load_read_vocabulary(struct loader *l);
int load_rope_factors(struct loader *l);
int load_check_unused(struct loader *l);

/* Numbers the layers that have keys and values. Those with a window come after the others
 * (kv_window.h). */
void model_number_kv_layers(struct model *model);
