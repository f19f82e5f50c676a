/*
 * Hints from history as the service makes them, without its processes: what the verifier reports of
 * its passes (services/verifier/pass/routing_feed.h), and what the drafter learns and estimates
 * from it (shared/spec/expert_history.h) with its own settings. One session at a time.
 */
#pragma once

#include "shared/spec/expert_history.h"
#include "services/verifier/pass/routing_feed.h"

struct cache_history {
	struct expert_history history;
	struct routing_feed feed;
	struct ring told, heard; /* the two ends of one ring */
	void *memory; /* the ring's */
	uint16_t *experts; /* [n_experts] for the layer that was estimated last */
	float *score;
};

/* For a model with experts, with passes of at most n_max tokens. Borrows the model. */
int cache_history_init(struct cache_history *history, const struct model *model, uint32_t n_max,
	struct error *err);
void cache_history_exit(struct cache_history *history);

/* The hook of the forward pass. */
void cache_history_layer(
	struct cache_history *history, uint32_t layer, uint32_t n_tokens, const uint16_t *experts);
/* Call after a pass: learns from its tokens batch[0..n-1]. before: the token in front of them, -1:
 * none. */
void cache_history_learn(struct cache_history *history, const struct batch_token *batch, uint32_t n,
	uint64_t session, int32_t before);

/* Call before a pass that will compute tokens[first..first+n-1] of the session: estimates which
 * experts each layer will need. */
void cache_history_expect(struct cache_history *history, uint64_t session, const int32_t *tokens,
	uint32_t first, uint32_t n);
/* Returns how many experts the ordinal-th layer with experts (< history.n_moe) is expected to need,
 * and puts them into experts[] and score[]. */
uint32_t cache_history_choose(struct cache_history *history, uint32_t ordinal);
