/*
 * What layers beyond the next will choose, by their routers on this layer's hidden state: less sure than the next
 * layer's (gate_hints.h), and early enough for a slow link. Made in slices, while the engine waits for experts anyway; for few
 * tokens, as several want too much to be read so early. Used by the engine thread.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/model/pass/moe_router.h"

enum {
	GATE_FAR_AHEAD = 3, /* layers with experts: the farthest that is looked at; 1 is the next */
	GATE_FAR_TOKENS = 2, /* of a pass */
};

struct gate_far {
	struct moe_router router;
	const uint32_t *next; /* [n_layers] the next layer with experts, 0: none; borrowed */
	/* The prediction under way: of `layer`, `ahead` layers with experts from the one that runs, which is `from`. */
	uint32_t from, layer, ahead, n_tokens; /* ahead 0: none */
	bool begun;
	struct rows hidden;
};

/* routers: [n_layers] to look with. Borrows all. -ENOMEM. */
int gate_far_init(struct gate_far *far, const struct model *model, struct backend *backend,
	const struct matrix *routers, const uint32_t *next, struct error *err);
void gate_far_exit(struct gate_far *far);
/* A layer runs. hidden: rows of [n_embd], unchanged until the layer ends or gate_far_stop; what was under way is dropped. */
void gate_far_start(struct gate_far *far, uint32_t layer, const struct rows *hidden);
void gate_far_stop(struct gate_far *far);
static inline bool gate_far_busy(const struct gate_far *far)
{
	return far->ahead > 0;
}
/* All of it at once by the pool of far->router, or some microseconds of it. True: far->router has what is foreseen for
 * *layer, *ahead layers with experts from the one that runs. Call while busy. */
bool gate_far_look(struct gate_far *far, bool all, uint32_t *layer, uint32_t *ahead);
