#include "shared/model/arch/router_copies.h"

#include "kernels/cpu/simd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of the shape that the loader lets through (model_moe.c): what is read and written here rests on it. */
static bool in_shape(const struct model *model, const struct matrix *router)
{
	const struct model_config *config = &model->config;
	return config->n_experts <= LIMIT_EXPERTS && router->rows == config->n_experts &&
	       router->cols > 0 && router->cols == config->n_embd;
}

static bool copied(const struct model *model, const struct layer *layer)
{
	const struct tensor_type_info *type = tensor_type_info(layer->router.type);
	return layer->moe && type != NULL && !type->quantised && in_shape(model, &layer->router) &&
	       layer->router.cols % Q8_BLOCK == 0;
}

static size_t row_bytes(const struct matrix *router)
{
	return kv_vector_bytes(KV_Q8_0, router->cols);
}

/* A stored vector of KV_Q8_0 is a row of Q8_0: the same blocks. */
static struct matrix copy(
	const struct matrix *router, const struct kernels *kernels, float *row, unsigned char *to)
{
	size_t bytes = row_bytes(router);
	for (uint32_t r = 0; r < router->rows; r++) {
		kernels->dequantise_row(router, r, row);
		kernels->kv_store(row, router->cols, KV_Q8_0, to + r * bytes);
	}
	return (struct matrix){.type = TENSOR_Q8_0,
		.rows = router->rows,
		.cols = router->cols,
		.row_bytes = bytes,
		.data = to};
}

size_t router_copies_bytes(const struct model *model)
{
	size_t bytes = 0;
	for (uint32_t l = 0; l < model->config.n_layers; l++) {
		const struct layer *layer = &model->layers[l];
		if (copied(model, layer))
			bytes += layer->router.rows * row_bytes(&layer->router);
	}
	return bytes;
}

int router_copies_init(struct router_copies *copies, const struct model *model,
	const struct kernels *kernels, struct error *err)
{
	uint32_t n_layers = model->config.n_layers;
	size_t at = 0;
	memset(copies, 0, sizeof(*copies));
	copies->bytes = router_copies_bytes(model);
	float *row = calloc(model->config.n_embd, sizeof(*row));
	copies->matrix = calloc(n_layers, sizeof(*copies->matrix));
	copies->blocks = malloc(copies->bytes + 1);
	if (row == NULL || copies->matrix == NULL || copies->blocks == NULL) {
		free(row);
		router_copies_exit(copies);
		return error_set(err, ENOMEM,
			"no memory for 8-bit copies of the routers of %u layers", n_layers);
	}
	for (uint32_t l = 0; l < n_layers; l++) {
		const struct layer *layer = &model->layers[l];
		if (!layer->moe)
			continue;
		copies->matrix[l] = layer->router;
		if (!copied(model, layer))
			continue;
		copies->matrix[l] = copy(&layer->router, kernels, row, copies->blocks + at);
		at += layer->router.rows * row_bytes(&layer->router);
	}
	free(row);
	return 0;
}

void router_copies_exit(struct router_copies *copies)
{
	free(copies->matrix);
	free(copies->blocks);
	memset(copies, 0, sizeof(*copies));
}
