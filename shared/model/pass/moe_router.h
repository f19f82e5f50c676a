/*
 * Applies a layer's router on its own, to predict what the layer will choose (hints for the
 * expert-cache): its input are hidden states that do not come from the layer's own pass. Used by
 * one thread; allocates nothing after init.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/model.h"

struct moe_router {
	const struct model *model;
	struct queue *q; /* set after init, borrowed */
	/* [n_layers] used instead of the model's routers; set after init, borrowed */
	const struct matrix *matrix;
	bool alone; /* only the calling thread computes; set after init */
	uint32_t n_max; /* most tokens at once */
	struct buffer memory;
	struct rows hidden; /* as given */
	struct rows q8; /* buffer NULL: n_embd is no multiple of the block size */
	struct rows logits;
	/* [n_max][n_experts_used], out: by descending weight (sparsemixer: the first choice, then
	 * the second) */
	uint16_t *chosen;
	float *weights; /* [n_max][n_experts_used], out */
	/* Between moe_router_begin and the last moe_router_some: */
	uint32_t layer, n, n_rows; /* n_rows: rows of the router multiplied so far */
};
/* Borrows model and backend. -ENOMEM. */
int moe_router_init(struct moe_router *router, const struct model *model, struct backend *backend,
	uint32_t n_max, struct error *err);
void moe_router_exit(struct moe_router *router);
/* Writes chosen and weights. hidden: [n][n_embd], as they enter a feed-forward, n <= n_max. The
 * layer must have experts. */
void moe_router_run(struct moe_router *router, uint32_t layer, const struct rows *hidden);
/* The same in slices, on the calling thread: begin, then some until it returns true and has written
 * chosen and weights. bytes: about how much of the router a slice reads. hidden must not change
 * meanwhile. */
void moe_router_begin(struct moe_router *router, uint32_t layer, const struct rows *hidden);
bool moe_router_some(struct moe_router *router, size_t bytes);
