/*
 * What goes into the next batch: decisions over plain numbers, without side effects, which the
 * engine carries out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sched_session {
	uint32_t index; /* for the caller */
	uint32_t n_tokens; /* committed */
	uint32_t n_kv; /* of them in the KV cache; always < n_tokens */
	uint32_t n_pages; /* KV pages that it holds */
	bool paused; /* its client takes no more tokens for now */
	bool aside; /* its client is gone or takes nothing, so other sessions come first */
	bool recorded; /* wants the logits of output positions also where they are computed again */
	uint32_t n_prompt;
	uint64_t client; /* sessions of one client have the same number; 0: not known */
	uint32_t rank; /* set by sched_order: 0 is served first; not set for a paused session */
};

struct sched_entry {
	const struct sched_session *session;
	uint32_t n; /* committed tokens of it to be computed */
	bool emits; /* these include the newest token, whose logits give the next one */
	bool decodes; /* they are the newest token alone, so drafts may follow it */
};

struct sched_limits {
	uint32_t sessions_max; /* entries of a batch */
	uint32_t prefill_chunk; /* tokens of all prefilling entries together */
	uint32_t rows; /* rows of logits of one session in a pass */
};

/* Of n sessions (oldest first), puts the sessions that may run into order[n], and sets their ranks.
 * Returns how many. Clients take turns: first the oldest session of each, then the second of each,
 * and so on; within a turn the older session is served first. Sessions with `aside` have turns of
 * their own, behind all others. Takes time linear in n. */
uint32_t sched_order(
	struct sched_session *const *sessions, uint32_t n, struct sched_session **order);

/* Plans a batch in the given order: a session that lacks one token decodes; the others share
 * prefill_chunk. Returns the number of entries in out, at most sessions_max, in that order. */
uint32_t sched_plan(struct sched_session *const *order, uint32_t n,
	const struct sched_limits *limits, struct sched_entry *out);

/* The largest K of use: an iteration yields up to K + 1 tokens, and each must be within max_tokens
 * and the context. */
uint32_t sched_k(uint32_t asked, uint32_t n_tokens, uint32_t n_prompt, uint32_t max_tokens,
	uint32_t n_context);

/* For the choice of the session that loses its KV pages when another needs some. Use one for all
 * sessions of a plan, in their order; then all calls together take time linear in the number of
 * sessions. */
struct sched_victims {
	struct sched_session *const *sessions; /* oldest first */
	uint32_t n_sessions; /* those from this index on were looked at */
	struct sched_session *const *order; /* as set by sched_order */
	uint32_t n_order;
};
/* The session that is to lose its pages to `wanting`: the youngest paused one that has some; then
 * the one of the highest rank, but never one of a lower rank than wanting, so that sessions earlier
 * in the order keep their pages. NULL when there is none. The pages are computed again later, with
 * the same result. */
struct sched_session *sched_victim(
	struct sched_victims *victims, const struct sched_session *wanting);
