/*
 * Hints from history as the service makes them: what the verifier tells of its passes (services/verifier/pass/routing_feed.h), the
 * drafter learns and estimates from (services/drafter/history.h), with the drafter's own settings; without the processes.
 * One session at a time.
 */
#pragma once

#include "services/drafter/history.h"
#include "services/verifier/pass/routing_feed.h"

struct cache_history {
	struct history history;
	struct routing_feed feed;
	struct ring told, heard; /* the two ends of one ring */
	void *memory; /* the ring's */
	uint16_t *experts; /* [n_experts] of the layer that was estimated last */
	float *score;
};

/* For a model with experts, whose passes have at most n_max tokens. Borrows the model. */
int cache_history_init(struct cache_history *history, const struct model *model, uint32_t n_max,
	struct error *err);
void cache_history_exit(struct cache_history *history);

/* The forward's hook. */
void cache_history_layer(
	struct cache_history *history, uint32_t layer, uint32_t n_tokens, const uint16_t *experts);
/* The pass is over: its tokens batch[0..n-1] are learnt. before: the token in front of them, -1: none. */
void cache_history_learn(struct cache_history *history, const struct batch_token *batch, uint32_t n,
	uint64_t session, int32_t before);

/* A pass will compute tokens[first..first+n-1] of the session: what each layer with experts is then likely to want. */
void cache_history_expect(struct cache_history *history, uint64_t session, const int32_t *tokens,
	uint32_t first, uint32_t n);
/* How many experts of the ordinal-th layer with experts (< history.n_moe), in experts[] and score[]. */
uint32_t cache_history_choose(struct cache_history *history, uint32_t ordinal);
