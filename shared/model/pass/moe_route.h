/*
 * A layer's routing rule by itself: for the forward pass, and for those who foresee what it will choose (hints for the
 * expert-cache). Any thread; no state.
 */
#pragma once

#include "kernels/tensor.h"
#include "kernels/pool.h"
#include "shared/model/arch/model.h"

struct kernels;

/* The experts of one token and their weights in a layer that has experts, from the router's products with its hidden
 * state. logits: [n_experts], overwritten by the scores; scratch: [n_experts]; chosen, weights: [n_experts_used], by
 * falling weight (sparsemixer: the first choice, then the second). Always distinct experts, even of logits that are
 * not numbers. */
void moe_route(const struct model *model, const struct kernels *kernels, uint32_t layer,
	float *logits, float *scratch, uint16_t *chosen, float *weights);

/* The same for hidden states that did not come from the layer's own pass: what its router makes of them. Used by one
 * thread; allocates nothing after init. */
struct moe_router {
	const struct model *model;
	const struct kernels *kernels;
	const struct matrix
		*matrix; /* [n_layers] instead of the model's routers; set after init, borrowed */
	struct pool *pool; /* NULL: the caller alone; set after init, borrowed */
	uint32_t n_max; /* tokens at once */
	struct activation *x; /* [n_max] */
	struct q8_block *q8; /* [n_max][n_embd / Q8_BLOCK]; NULL: n_embd is no whole blocks */
	float *logits, *scratch; /* [n_max][n_experts], [n_experts] */
	float **rows; /* [n_max], into logits */
	uint16_t *chosen; /* [n_max][n_experts_used], out */
	float *weights; /* [n_max][n_experts_used], out */
	/* Between moe_router_begin and the end of moe_router_some. */
	uint32_t layer, n, n_rows; /* rows of the router multiplied so far */
};
/* Borrows model and kernels. -ENOMEM. */
int moe_router_init(struct moe_router *router, const struct model *model,
	const struct kernels *kernels, uint32_t n_max, struct error *err);
void moe_router_exit(struct moe_router *router);
/* hidden: [n][n_embd], as they enter a feed-forward, n <= n_max; the layer has experts. Leaves chosen and weights. */
void moe_router_run(
	struct moe_router *router, uint32_t layer, const float *const *hidden, uint32_t n);
/* The same in slices, by the caller alone: begin, then some until it is true, which leaves chosen and weights. bytes: of the
 * router in a slice, about; hidden stays as it is meanwhile. */
void moe_router_begin(
	struct moe_router *router, uint32_t layer, const float *const *hidden, uint32_t n);
bool moe_router_some(struct moe_router *router, size_t bytes);
