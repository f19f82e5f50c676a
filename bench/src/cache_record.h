/*
 * A recording under way: the engine decodes (cache_record_answer.c), its hooks put into the trace what its routers choose and
 * what is hinted for (cache_record_hooks.c), and cache_record.c takes one prompt after the other.
 */
#pragma once

#include "bench/src/cache.h"
#include "bench/src/cache_history.h"
#include "client/model/engine.h"
#include "services/drafter/ngram.h"
#include "shared/model/pass/moe_router.h"

enum { RECORD_CHUNK = 64, RECORD_TOKENS_MAX = 1 << 15 };

struct recorder {
	const struct cache_record_options *options;
	struct engine target, draft;
	struct ngram ngram; /* of the answer that is made */
	struct cache_history history;
	struct cache_trace trace;
	int status; /* of the hooks: the first failure */
	int32_t *tokens, *recorded; /* [RECORD_TOKENS_MAX] prompt and output; the output at K = 0 */
	uint32_t n, n_prompt, n_recorded;
	bool prefill, silent; /* silent: this run is not recorded */
	/* The pass that runs. */
	uint64_t mark_ns; /* when the part of a layer that runs began */
	uint64_t draft_start_ns;
	uint16_t *tokens_of; /* [n_experts] */
	bool *told; /* [n_layers][n_experts] hinted for in this drafting */
	float *scores; /* [n_experts] */
	struct moe_router router; /* the target's */
};

/* What the times of a trace are taken by. */
uint64_t record_clock_ns(const struct recorder *r);

/* Hooks of the engines, and what they put into the trace; a failure is kept in r->status. */
void record_set_hooks(struct recorder *r);
/* A drafting begins: nothing has been hinted for. */
void record_forget_hints(struct recorder *r);
/* What tokens[first..first+n-1], which the pass will compute, wanted before. */
void record_history_hints(struct recorder *r, uint64_t session, uint32_t first, uint32_t n);
/* The target's pass of n tokens has run, and is not committed yet. */
void record_learn(struct recorder *r, uint64_t session, uint32_t n);

/* Decodes a whole answer of at most `most` tokens to the prompt in r->tokens, with drafts of k. 0 or -errno with *err. */
int record_answer(
	struct recorder *r, uint64_t session, uint32_t k, uint32_t most, struct error *err);
