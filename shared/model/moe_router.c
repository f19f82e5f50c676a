#include "shared/model/moe_route.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Rows that go together, and a matrix so small that waking the others takes longer. */
enum { ITEM_ROWS = 16, SHARED_BYTES = 128 << 10 };

static bool quantised(const struct matrix *router)
{
	const struct tensor_type_info *type = tensor_type_info(router->type);
	return type != NULL && type->quantised;
}

int moe_router_init(struct moe_router *router, const struct model *model,
	const struct kernels *kernels, uint32_t n_max, struct error *err)
{
	const struct model_config *config = &model->config;
	uint32_t n = config->n_experts, k = config->n_experts_used;
	bool any = false;
	for (uint32_t l = 0; l < config->n_layers; l++)
		any |= model->layers[l].moe && quantised(&model->layers[l].router);
	size_t blocks = (size_t)n_max * (config->n_embd / Q8_BLOCK);
	*router = (struct moe_router){
		.model = model,
		.kernels = kernels,
		.n_max = n_max,
		.x = calloc(n_max, sizeof(*router->x)),
		.q8 = any ? calloc(blocks, sizeof(*router->q8)) : NULL,
		.logits = calloc((size_t)n_max * n, sizeof(*router->logits)),
		.scratch = calloc(n, sizeof(*router->scratch)),
		.rows = calloc(n_max, sizeof(*router->rows)),
		.chosen = calloc((size_t)n_max * k, sizeof(*router->chosen)),
		.weights = calloc((size_t)n_max * k, sizeof(*router->weights)),
	};
	if (!router->x || (any && !router->q8) || !router->logits || !router->scratch ||
		!router->rows || !router->chosen || !router->weights) {
		moe_router_exit(router);
		return error_set(err, ENOMEM, "no memory for %u rows of %u experts", n_max, n);
	}
	for (uint32_t t = 0; t < n_max; t++)
		router->rows[t] = router->logits + (size_t)t * n;
	return 0;
}

void moe_router_exit(struct moe_router *router)
{
	free(router->x);
	free(router->q8);
	free(router->logits);
	free(router->scratch);
	free(router->rows);
	free(router->chosen);
	free(router->weights);
	memset(router, 0, sizeof(*router));
}

struct product {
	const struct moe_router *router;
	const struct matrix *matrix;
	uint32_t n;
};

static void rows_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct product *product = arg;
	const struct moe_router *router = product->router;
	uint32_t first = item * ITEM_ROWS, end = first + ITEM_ROWS;
	uint32_t n_experts = router->model->config.n_experts;
	(void)thread;
	router->kernels->matmul(product->matrix, first, end < n_experts ? end : n_experts,
		router->x, product->n, router->rows);
}

void moe_router_run(
	struct moe_router *router, uint32_t layer, const float *const *hidden, uint32_t n)
{
	const struct model_config *config = &router->model->config;
	const struct matrix *matrix = &router->model->layers[layer].router;
	uint32_t n_blocks = config->n_embd / Q8_BLOCK, k = config->n_experts_used;
	bool q8 = quantised(matrix);
	for (uint32_t t = 0; t < n; t++) {
		router->x[t] = (struct activation){.f32 = hidden[t]};
		if (!q8)
			continue;
		router->x[t].q8 = router->q8 + (size_t)t * n_blocks;
		router->kernels->quantise_q8(
			hidden[t], config->n_embd, router->q8 + (size_t)t * n_blocks);
	}
	struct product product = {router, matrix, n};
	if (router->pool && matrix->row_bytes * config->n_experts >= SHARED_BYTES)
		pool_run(router->pool, rows_item, &product,
			(config->n_experts + ITEM_ROWS - 1) / ITEM_ROWS);
	else
		router->kernels->matmul(matrix, 0, config->n_experts, router->x, n, router->rows);
	for (uint32_t t = 0; t < n; t++)
		moe_route(router->model, router->kernels, layer, router->rows[t], router->scratch,
			router->chosen + (size_t)t * k, router->weights + (size_t)t * k);
}
