/*
 * What goes into the next batch: pure decisions over plain numbers. Sessions are given oldest first; the engine
 * carries the decisions out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sched_session {
	uint32_t n_tokens; /* committed */
	uint32_t n_kv; /* of them in the KV cache; always < n_tokens */
	uint32_t n_pages; /* KV pages it holds */
	bool paused; /* its client takes no more for now */
	bool aside; /* its client is gone or takes nothing: others go first */
	bool hashed; /* wants the logits of output positions that are computed again, too */
	uint32_t n_prompt;
	uint64_t client; /* sessions of one client have the same number; 0: not known */
	uint32_t rank; /* sched_rank: 0 goes first */
};

struct sched_entry {
	uint32_t session; /* index into the sessions given */
	uint32_t n; /* committed tokens of it to compute */
	bool emits; /* they reach the newest one: its logits give the next token */
	bool decodes; /* it is only that one: drafts may follow it */
};

struct sched_limits {
	uint32_t sessions_max; /* entries of a batch */
	uint32_t prefill_chunk; /* tokens of all prefilling entries together */
	uint32_t rows; /* logits of one session in a pass */
};

/* Fills in the ranks. Clients take turns: the oldest session of each that may run, then the second of each, and so on; in a turn
 * the older first. Those that stand aside come after all others. A client's oldest session so goes on whatever others send, and
 * those of one client alone go by their age. */
void sched_rank(struct sched_session *sessions, uint32_t n);

/* Fills out (room for sessions_max) and returns how many. The runnable sessions of the lowest ranks take part. Prefill shares its
 * chunk in that order, so that a long prompt delays a running session by one chunk and no more. */
uint32_t sched_plan(const struct sched_session *sessions, uint32_t n,
	const struct sched_limits *limits, struct sched_entry *out);

/* The most K of use: an iteration emits up to K + 1 tokens, and each needs its place among the outputs allowed and
 * in the context. */
uint32_t sched_k(uint32_t asked, uint32_t n_tokens, uint32_t n_prompt, uint32_t max_tokens,
	uint32_t n_context);

/* Whose KV pages go when `wanting` needs some: a paused session's first, else those of the highest rank; never of a lower one,
 * nor of one that is in the batch already. -1 when there is none. Its pages are computed again later, with the same result. */
int sched_victim(
	const struct sched_session *sessions, uint32_t n, uint32_t wanting, const bool *in_batch);
