/*
 * Tells the drafter which experts the tokens of a pass went to (struct draft_routing), from which it learns what to hint for:
 * collected from the forward's hook, published once the pass is over, without system calls. What finds no room is
 * dropped and counted. Used by the engine thread.
 */
#pragma once

#include "shared/model/pass/forward.h"
#include "shared/spec/draft.h"

struct routing_feed {
	struct ring *ring; /* borrowed */
	uint32_t n_moe, n_used, n_max;
	uint16_t ordinal[LIMIT_LAYERS]; /* of each layer among those with experts */
	uint16_t *
		items; /* [n_max][n_moe][1 + n_used] of this pass, as struct draft_routing has them */
	bool on; /* in this pass */
	_Atomic uint64_t spent_ns; /* read by the front */
};

/* n_max: tokens of one pass. A dense model: nothing to do. Borrows ring and model. */
int routing_feed_init(struct routing_feed *feed, const struct model *model, struct ring *ring,
	uint32_t n_max, struct error *err);
void routing_feed_exit(struct routing_feed *feed);
/* Hook: experts [n_tokens][n_used], NULL for a dense layer. */
void routing_feed_layer(
	struct routing_feed *feed, uint32_t layer, uint32_t n_tokens, const uint16_t *experts);
/* Publishes batch[first..first+n-1], which are one session's; before: the token in front of those without a parent,
 * -1: none. */
void routing_feed_publish(struct routing_feed *feed, const struct batch_token *batch,
	uint32_t first, uint32_t n, uint64_t uid, uint32_t page, int32_t before);
