/*
 * A layer's routing by itself, for those who foresee what it will choose (hints for the expert-cache): what its router makes of
 * hidden states that did not come from its own pass. Used by one thread; allocates nothing after init.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/model.h"

struct moe_router {
	const struct model *model;
	struct queue *q; /* set after init, borrowed */
	const struct matrix
		*matrix; /* [n_layers] instead of the model's routers; set after init, borrowed */
	bool alone; /* the caller's thread does it all; set after init */
	uint32_t n_max; /* tokens at once */
	struct buffer memory;
	struct rows hidden; /* as they were given */
	struct rows q8; /* buffer NULL: n_embd is no whole blocks */
	struct rows logits;
	uint16_t *
		chosen; /* [n_max][n_experts_used], out: by falling weight (sparsemixer: the first choice, then the second) */
	float *weights; /* [n_max][n_experts_used], out */
	/* Between moe_router_begin and the end of moe_router_some. */
	uint32_t layer, n, n_rows; /* rows of the router multiplied so far */
};
/* Borrows both. -ENOMEM. */
int moe_router_init(struct moe_router *router, const struct model *model, struct backend *backend,
	uint32_t n_max, struct error *err);
void moe_router_exit(struct moe_router *router);
/* hidden: [n][n_embd], as they enter a feed-forward, n <= n_max; the layer has experts. Leaves chosen and weights. */
void moe_router_run(struct moe_router *router, uint32_t layer, const struct rows *hidden);
/* The same in slices, by the caller alone: begin, then some until it is true, which leaves chosen and weights. bytes: of the
 * router in a slice, about; hidden stays as it is meanwhile. */
void moe_router_begin(struct moe_router *router, uint32_t layer, const struct rows *hidden);
bool moe_router_some(struct moe_router *router, size_t bytes);
