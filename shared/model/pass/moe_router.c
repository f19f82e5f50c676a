#include "shared/model/pass/moe_route.h"

#include "kernels/cpu/simd.h"

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
	/* For routers that are quantised, in the file or as copies. */
	bool any = config->n_embd % Q8_BLOCK == 0;
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

static const struct matrix *matrix_of(const struct moe_router *router, uint32_t layer)
{
	return router->matrix ? &router->matrix[layer] : &router->model->layers[layer].router;
}

static void multiply(const struct moe_router *router, uint32_t first, uint32_t end)
{
	router->kernels->matmul(
		matrix_of(router, router->layer), first, end, router->x, router->n, router->rows);
}

static void rows_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct moe_router *router = arg;
	uint32_t first = item * ITEM_ROWS, end = first + ITEM_ROWS;
	uint32_t n_experts = router->model->config.n_experts;
	(void)thread;
	multiply(router, first, end < n_experts ? end : n_experts);
}

void moe_router_begin(
	struct moe_router *router, uint32_t layer, const float *const *hidden, uint32_t n)
{
	uint32_t n_embd = router->model->config.n_embd, n_blocks = n_embd / Q8_BLOCK;
	bool q8 = quantised(matrix_of(router, layer));
	router->layer = layer;
	router->n = n;
	router->n_rows = 0;
	for (uint32_t t = 0; t < n; t++) {
		router->x[t] = (struct activation){.f32 = hidden[t]};
		if (!q8)
			continue;
		router->x[t].q8 = router->q8 + (size_t)t * n_blocks;
		router->kernels->quantise_q8(hidden[t], n_embd, router->q8 + (size_t)t * n_blocks);
	}
}

static void choose(struct moe_router *router)
{
	uint32_t k = router->model->config.n_experts_used;
	for (uint32_t t = 0; t < router->n; t++)
		moe_route(router->model, router->kernels, router->layer, router->rows[t],
			router->scratch, router->chosen + (size_t)t * k,
			router->weights + (size_t)t * k);
}

bool moe_router_some(struct moe_router *router, size_t bytes)
{
	uint32_t n_experts = router->model->config.n_experts, first = router->n_rows;
	size_t items = bytes / (matrix_of(router, router->layer)->row_bytes * ITEM_ROWS);
	/* Not fewer than go together, not more than there are. */
	size_t rows = (items > 0 ? items : 1) * ITEM_ROWS;
	router->n_rows = n_experts - first < rows ? n_experts : first + (uint32_t)rows;
	multiply(router, first, router->n_rows);
	if (router->n_rows < n_experts)
		return false;
	choose(router);
	return true;
}

void moe_router_run(
	struct moe_router *router, uint32_t layer, const float *const *hidden, uint32_t n)
{
	uint32_t n_experts = router->model->config.n_experts;
	moe_router_begin(router, layer, hidden, n);
	if (router->pool && matrix_of(router, layer)->row_bytes * n_experts >= SHARED_BYTES)
		pool_run(router->pool, rows_item, router, (n_experts + ITEM_ROWS - 1) / ITEM_ROWS);
	else
		multiply(router, 0, n_experts);
	choose(router);
}
