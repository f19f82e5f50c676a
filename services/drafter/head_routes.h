/*
 * Which experts the tokens that a head drafts are likely to need: the target's routers, applied to
 * the head's own state behind each of these tokens. Such a state stands for the target's final one;
 * each router reads it through the norm before its layer's feed-forward. SP-MoE (section 3.1) does
 * the same with a draft model that has a state for each layer. A head has one for all, so it is
 * right in the late layers more often than in the early ones; route_recall.h says in which of them
 * it is believed. Used by the draft thread.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/pass/moe_router.h"

struct head_routes {
	const struct model *target; /* borrowed; NULL: there are no such predictions */
	struct queue *queue; /* owned */
	struct moe_router router;
	struct buffer memory; /* states and normed: [n_max][n_embd] each */
	struct rows states, normed;
	uint16_t layer[LIMIT_LAYERS]; /* [n_moe] numbers of the layers with experts */
	uint32_t n_moe, n_words, n_max;
	bool on[LIMIT_LAYERS]; /* [n_moe] whether the layer's router is applied; set by the caller */
	uint32_t n; /* states of the newest pass */
	uint64_t *
		bits; /* [n_max][n_words] bit i * n_experts + expert, of the i-th layer with experts */
};

/* For the states of heads of this target; n_max: of one pass. Borrows both. -ENOTSUP: the target has
 * no experts, or its states are of another width than n_embd; -ENOMEM. */
int head_routes_init(struct head_routes *routes, const struct model *target, uint32_t n_embd,
	struct backend *backend, uint32_t n_max, struct error *err);
void head_routes_exit(struct head_routes *routes);
/* Begins a pass. */
void head_routes_begin(struct head_routes *routes);
/* Adds a state, [n_embd]; returns its index, or -1: there are n_max. */
int head_routes_add(struct head_routes *routes, const float *state);
/* Sets the bits of all states that were added: as many experts of each layer that is on as a token
 * uses. */
void head_routes_run(struct head_routes *routes);
/* The bits of the state with this index. */
static inline const uint64_t *head_routes_of(const struct head_routes *of, int index)
{
	return of->bits + (size_t)index * of->n_words;
}
