/*
 * What goes into the next batch: pure decisions over plain numbers. The engine carries the decisions out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sched_session {
	uint32_t index; /* the caller's */
	uint32_t n_tokens; /* committed */
	uint32_t n_kv; /* of them in the KV cache; always < n_tokens */
	uint32_t n_pages; /* KV pages it holds */
	bool paused; /* its client takes no more for now */
	bool aside; /* its client is gone or takes nothing: others go first */
	bool recorded; /* wants the logits of output positions that are computed again, too */
	uint32_t n_prompt;
	uint64_t client; /* sessions of one client have the same number; 0: not known */
	uint32_t rank; /* sched_order: 0 goes first; not of a paused one */
};

struct sched_entry {
	const struct sched_session *session;
	uint32_t n; /* committed tokens of it to compute */
	bool emits; /* they reach the newest one: its logits give the next token */
	bool decodes; /* they are only that one: drafts may follow it */
};

struct sched_limits {
	uint32_t sessions_max; /* entries of a batch */
	uint32_t prefill_chunk; /* tokens of all prefilling entries together */
	uint32_t rows; /* logits of one session in a pass */
};

/* Puts those of n sessions, oldest first, that may run into order[n] and fills in their ranks; returns how many. Clients take turns:
 * the oldest session of each goes first, then the second of each, and so on; within a turn the older session goes first. Sessions
 * that stand aside have turns of their own behind those. Linear in n. */
uint32_t sched_order(
	struct sched_session *const *sessions, uint32_t n, struct sched_session **order);

/* In the given order: a session that lacks one token decodes; the others share prefill_chunk. At most sessions_max entries, in
 * that order. */
uint32_t sched_plan(struct sched_session *const *order, uint32_t n,
	const struct sched_limits *limits, struct sched_entry *out);

/* The largest useful K: an iteration emits up to K + 1 tokens, and each needs its place among the outputs allowed and
 * in the context. */
uint32_t sched_k(uint32_t asked, uint32_t n_tokens, uint32_t n_prompt, uint32_t max_tokens,
	uint32_t n_context);

/* Whose KV pages go when a session needs some. Asked for the sessions of one plan in their order, so that all calls together are
 * linear in the number of sessions. */
struct sched_victims {
	struct sched_session *const *sessions; /* oldest first */
	uint32_t n_sessions; /* those behind have been looked at */
	struct sched_session *const *order; /* sched_order's */
	uint32_t n_order;
};
/* A paused session first, the youngest of them; then the one of the highest rank, but never one of a lower rank than `wanting`: the
 * older sessions of the plan keep their pages. NULL when there is none. Its pages are computed again later, with the same
 * result. */
struct sched_session *sched_victim(
	struct sched_victims *victims, const struct sched_session *wanting);
