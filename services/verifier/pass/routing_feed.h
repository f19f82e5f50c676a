/*
 * Tells the drafter to which experts the tokens of a pass were routed (struct draft_routing); the
 * drafter learns from that what to hint. The feed collects them from the forward pass's hook, and
 * publishes them once the pass is over, without system calls. Entries for which the ring has no
 * room are dropped and counted. Used by the engine thread.
 */
#pragma once

#include "shared/model/pass/forward.h"
#include "shared/spec/draft.h"
#include "shared/spec/expert_history.h"

struct routing_feed {
	struct ring *ring; /* borrowed */
	uint32_t n_moe, n_used, n_max;
	uint16_t ordinal[LIMIT_LAYERS]; /* of each layer: its index among those with experts */
	/* [n_max][n_moe][1 + n_used] of this pass, laid out as in struct draft_routing */
	uint16_t *items;
	bool on; /* in this pass */
	bool kept; /* in this pass: collected for the verifier itself */
	_Atomic uint64_t spent_ns; /* read by the front */
};

/* n_max: most tokens of one pass. Does nothing for a dense model. Borrows ring and model. */
int routing_feed_init(struct routing_feed *feed, const struct model *model, struct ring *ring,
	uint32_t n_max, struct error *err);
void routing_feed_exit(struct routing_feed *feed);
/* The hook of the forward pass: experts [n_tokens][n_used], NULL for a dense layer. */
void routing_feed_layer(
	struct routing_feed *feed, uint32_t layer, uint32_t n_tokens, const uint16_t *experts);
/* Publishes the entries of batch[first..first+n-1], all of one session. before: the token in front
 * of those without a parent, -1: none. history, if it is not NULL and `kept` is set, learns them too. */
void routing_feed_publish(struct routing_feed *feed, const struct batch_token *batch,
	uint32_t first, uint32_t n, uint64_t uid, uint32_t page, int32_t before,
	struct expert_history *history);
