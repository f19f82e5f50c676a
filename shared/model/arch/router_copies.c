#include "shared/model/arch/router_copies.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* True when the router has the shape that the loader accepts (model_moe.c). Reading and writing it
 * below rely on that. */
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

static bool is_copy(const struct router_copies *copies, uint32_t layer)
{
	const unsigned char *at = copies->matrix[layer].data;

	return at >= copies->blocks && at < copies->blocks + copies->bytes;
}

static void forget(struct router_copies *copies, uint32_t n_layers)
{
	for (uint32_t l = 0; l < n_layers; l++)
		if (is_copy(copies, l))
			copies->backend->ops->forget(copies->backend, copies->matrix[l].data,
				copies->matrix[l].rows * copies->matrix[l].row_bytes);
}

static int place(struct router_copies *copies, const struct model *model, struct error *err)
{
	int rc = 0;

	for (uint32_t l = 0; rc == 0 && l < model->config.n_layers; l++) {
		if (is_copy(copies, l))
			rc = copies->backend->ops->place(copies->backend, copies->matrix[l].data,
				copies->matrix[l].rows * copies->matrix[l].row_bytes, err);
		if (rc == 0)
			copies->n_placed = l + 1;
	}
	return rc;
}

int router_copies_init(struct router_copies *copies, const struct model *model,
	struct backend *backend, struct error *err)
{
	uint32_t n_layers = model->config.n_layers;
	unsigned char *at;
	memset(copies, 0, sizeof(*copies));
	copies->backend = backend;
	copies->bytes = router_copies_bytes(model);
	copies->matrix = calloc(n_layers, sizeof(*copies->matrix));
	at = copies->blocks = malloc(copies->bytes + 1);
	if (copies->matrix == NULL || at == NULL) {
		free(copies->matrix);
		free(copies->blocks);
		*copies = (struct router_copies){0};
		return error_set(err, ENOMEM,
			"no memory for 8-bit copies of the routers of %u layers", n_layers);
	}
	int rc = 0;
	for (uint32_t l = 0; rc == 0 && l < n_layers; l++) {
		const struct layer *layer = &model->layers[l];
		const struct matrix *router = &layer->router;
		if (!layer->moe)
			continue;
		copies->matrix[l] = *router;
		if (!copied(model, layer))
			continue;
		rc = backend->ops->requantise(backend, router, at, err);
		copies->matrix[l] = (struct matrix){.type = TENSOR_Q8_0,
			.rows = router->rows,
			.cols = router->cols,
			.row_bytes = row_bytes(router),
			.data = at};
		at += router->rows * row_bytes(router);
	}
	if (rc == 0)
		rc = place(copies, model, err);
	if (rc != 0)
		router_copies_exit(copies);
	return rc;
}

void router_copies_exit(struct router_copies *copies)
{
	forget(copies, copies->n_placed);
	free(copies->matrix);
	free(copies->blocks);
	memset(copies, 0, sizeof(*copies));
}
