/*
 * Predicts which experts layers beyond the next will choose, by their routers on this layer's
 * hidden state. That is less certain than the prediction for the next layer (gate_hints.h), but
 * early enough for a slow link. It is computed in slices, while the engine waits for experts
 * anyway, and only for passes of few tokens: many tokens want too many experts to read them so
 * early. Used by the engine thread.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/model/pass/moe_router.h"

enum {
	/* the farthest layer, counted in layers with experts; 1 is the next one */
	GATE_FAR_AHEAD = 3,
	GATE_FAR_TOKENS = 2, /* most tokens of a pass for which it is done */
};

struct gate_far {
	struct moe_router router;
	/* [n_layers] the next layer with experts, 0: there is none; borrowed */
	const uint32_t *next;
	/* The prediction in progress: for `layer`, which is `ahead` layers with experts behind
	 * `from`, the layer that runs now. */
	uint32_t from, layer, ahead, n_tokens; /* ahead 0: none */
	bool begun;
	struct rows hidden;
};

/* routers: [n_layers], those to predict with. Borrows all. -ENOMEM. */
int gate_far_init(struct gate_far *far, const struct model *model, struct backend *backend,
	const struct matrix *routers, const uint32_t *next, struct error *err);
void gate_far_exit(struct gate_far *far);
/* Call when a layer runs. hidden: rows of [n_embd], which must stay unchanged until the layer ends
 * or gate_far_stop. Drops the prediction in progress. */
void gate_far_start(struct gate_far *far, uint32_t layer, const struct rows *hidden);
void gate_far_stop(struct gate_far *far);
static inline bool gate_far_busy(const struct gate_far *far)
{
	return far->ahead > 0;
}
/* Goes on with the prediction: to its end, with the pool of far->router (`all`), or for some
 * microseconds. True: far->router has the experts predicted for *layer, *ahead layers with experts
 * behind the layer that runs. Call while gate_far_busy. */
bool gate_far_look(struct gate_far *far, bool all, uint32_t *layer, uint32_t *ahead);
