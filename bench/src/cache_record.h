/*
 * A recording in progress. The engine decodes (cache_record_answer.c), its hooks put into the trace
 * what its routers choose and what is hinted (cache_record_hooks.c), and cache_record.c goes
 * through the prompts.
 */
#pragma once

#include "bench/src/cache.h"
#include "bench/src/cache_history.h"
#include "bench/src/decoding.h"
#include "services/drafter/ngram.h"
#include "shared/model/pass/moe_router.h"

enum { RECORD_CHUNK = 64 };

struct recorder {
	const struct cache_record_options *options;
	struct engine target, draft;
	struct ngram ngram; /* over the answer that is being made */
	struct cache_history history;
	struct cache_trace trace;
	int status; /* the first failure of a hook */
	int32_t *tokens,
		*recorded; /* [DECODING_TOKENS_MAX] prompt and output; the output at K = 0 */
	uint32_t n, n_prompt, n_recorded;
	bool prefill, silent; /* silent: this run is not recorded */
	/* The pass in progress. */
	uint64_t mark_ns; /* when the present part of a layer began */
	uint64_t draft_start_ns;
	uint16_t *tokens_of; /* [n_experts] */
	bool *told; /* [n_layers][n_experts] hinted already during this draft */
	float *scores; /* [n_experts] */
	struct moe_router router; /* the target's */
};

/* The clock of a trace's times. */
uint64_t record_clock_ns(const struct recorder *r);

/* Sets the hooks of the engines, which fill the trace; r->status keeps a failure. */
void record_set_hooks(struct recorder *r);
/* Call when a draft begins: nothing has been hinted yet. */
void record_forget_hints(struct recorder *r);
/* Adds hints for tokens[first..first+n-1], which the pass will compute, from what such tokens
 * needed before. */
void record_history_hints(struct recorder *r, uint64_t session, uint32_t first, uint32_t n);
/* Call when the target's pass of n tokens has run, before it is committed. */
void record_learn(struct recorder *r, uint64_t session, uint32_t n);

/* Decodes a whole answer, of at most `most` tokens, to the prompt in r->tokens, with drafts of k
 * tokens. 0 or -errno with *err. */
int record_answer(
	struct recorder *r, uint64_t session, uint32_t k, uint32_t most, struct error *err);
