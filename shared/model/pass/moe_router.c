#include "shared/model/pass/moe_router.h"
#include "shared/base/round.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* Rows that are multiplied together, and the size of a matrix so small that waking other threads
 * takes longer. */
enum { ITEM_ROWS = 16, SHARED_BYTES = 128 << 10 };

int moe_router_init(struct moe_router *router, const struct model *model, struct backend *backend,
	uint32_t n_max, struct error *err)
{
	const struct model_config *config = &model->config;
	size_t n = config->n_experts, k = config->n_experts_used;
	/* For quantised routers, in the file or as copies. */
	bool any = config->n_embd % Q8_BLOCK == 0;
	size_t row = config->n_embd / Q8_BLOCK * sizeof(struct q8_block);
	size_t q8 = any ? round_lines(n_max * row) : 0, logits = round_lines(n_max * n * 4);
	size_t weights = round_lines(n_max * k * sizeof(float));
	*router = (struct moe_router){.model = model, .n_max = n_max};
	int rc = backend->ops->alloc(backend,
		q8 + logits + weights + n_max * k * sizeof(*router->chosen), BUFFER_HOST,
		&router->memory, err);
	if (rc < 0)
		return error_prefix(err, rc, "%u rows of %zu experts", n_max, n);
	if (any)
		router->q8 = (struct rows){&router->memory, 0, row, 0};
	router->logits = (struct rows){&router->memory, q8, n * sizeof(float), 0};
	router->weights = (float *)(void *)(router->memory.host + q8 + logits);
	router->chosen = (uint16_t *)(void *)(router->memory.host + q8 + logits + weights);
	return 0;
}

void moe_router_exit(struct moe_router *router)
{
	if (router->memory.backend)
		router->memory.backend->ops->free(&router->memory);
	memset(router, 0, sizeof(*router));
}

static const struct matrix *matrix_of(const struct moe_router *router, uint32_t layer)
{
	return router->matrix ? &router->matrix[layer] : &router->model->layers[layer].router;
}

/* Multiplies rows first..end-1 of the router; first is a multiple of ITEM_ROWS. */
static void multiply(const struct moe_router *router, uint32_t first, uint32_t end, bool alone)
{
	struct step_product product = {.w = *matrix_of(router, router->layer),
		.x = {router->hidden, router->q8},
		.y = router->logits};
	product.w.rows = end - first;
	product.w.data = (const unsigned char *)product.w.data + first * product.w.row_bytes;
	product.x.q8.n = product.y.n = router->n;
	product.y.offset += first * sizeof(float);
	router->q->ops->products(
		router->q, &(struct step_products){.of = &product, .n = 1, .alone = alone});
}

void moe_router_begin(struct moe_router *router, uint32_t layer, const struct rows *hidden)
{
	assert(hidden->n <= router->n_max);
	router->layer = layer;
	router->n = hidden->n;
	router->n_rows = 0;
	router->hidden = *hidden;
	router->q8.n = hidden->n;
	if (matrix_quantised(matrix_of(router, layer)))
		router->q->ops->norm(
			router->q, &(struct step_norm){.width = router->model->config.n_embd,
					   .x = *hidden,
					   .y_q8 = router->q8});
}

static struct rows result(const struct moe_router *router, const void *at, size_t each)
{
	return (struct rows){&router->memory,
		(size_t)((const unsigned char *)at - router->memory.host),
		router->model->config.n_experts_used * each, router->n};
}

static void choose(struct moe_router *router)
{
	const struct layer *layer = &router->model->layers[router->layer];
	struct step_route step = {
		.rule = router->model->config.routing,
		.n_experts = router->model->config.n_experts,
		.n_used = router->model->config.n_experts_used,
		.bias = layer->router_bias,
		.selection_bias = layer->selection_bias,
		.scores = router->logits,
		.chosen = result(router, router->chosen, sizeof(*router->chosen)),
		.weights = result(router, router->weights, sizeof(*router->weights)),
	};
	step.scores.n = router->n;
	router->q->ops->route(router->q, &step);
	(void)router->q->ops->wait(router->q, router->q->ops->ticket(router->q));
}

bool moe_router_some(struct moe_router *router, size_t bytes)
{
	uint32_t n_experts = router->model->config.n_experts, first = router->n_rows;
	size_t items = bytes / (matrix_of(router, router->layer)->row_bytes * ITEM_ROWS);
	/* At least the rows that are multiplied together, and no more than there are. */
	size_t rows = (items > 0 ? items : 1) * ITEM_ROWS;
	router->n_rows = n_experts - first < rows ? n_experts : first + (uint32_t)rows;
	multiply(router, first, router->n_rows, true);
	if (router->n_rows < n_experts)
		return false;
	choose(router);
	return true;
}

void moe_router_run(struct moe_router *router, uint32_t layer, const struct rows *hidden)
{
	uint32_t n_experts = router->model->config.n_experts;
	moe_router_begin(router, layer, hidden);
	multiply(router, 0, n_experts,
		router->alone || matrix_of(router, layer)->row_bytes * n_experts < SHARED_BYTES);
	choose(router);
}
