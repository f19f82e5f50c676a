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
	/* Its first n_fast tokens are computed in whole chunks of sched_limits.fast_chunk tokens, n_kv
	 * being a multiple of that. */
	uint32_t n_fast;
	uint64_t client; /* sessions of one client have the same number; 0: not known */
	int32_t priority; /* -LIMIT_PRIORITY..LIMIT_PRIORITY: the greater come first */
	uint64_t begun_ns; /* when it was admitted */
	/* A pass in which it decodes is to take no longer than this; 0: it does not matter. */
	uint64_t pass_ns_max;
	/* Positions where a chunk of prompt tokens ends, ascending; 0: none. page: it ends at a multiple
	 * of that if it can; 0: wherever. */
	uint32_t stops[2], page;
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
	uint32_t fast_chunk; /* at most prefill_chunk; needed where a session has n_fast */
};

struct sched_ageing {
	uint64_t now_ns;
	uint64_t step_ns; /* not 0: after this long a session gains one step */
};

/* Of n sessions (oldest first), puts the sessions that may run into order[n], and sets their ranks.
 * Returns how many. The greatest priority is first. Among sessions of one priority clients take
 * turns: first the oldest session of each, then the second of each, and so on; within a turn the
 * older session is served first. Sessions with `aside` come behind all others. Takes n log n time.
 *
 * Nobody starves. With each step of its age a session gains one priority, up to the greatest that
 * is there, and then one turn. So
 *
 *     (greatest priority - its own + its turn) * step_ns
 *
 * after its admission no session that is admitted later comes before it any more: it waits for
 * earlier ones alone, and these end. Its age does not depend on whether it ran, so two sessions
 * never take turns at pushing each other out; what a session had computed would be lost each time.
 */
uint32_t sched_order(struct sched_session *const *sessions, uint32_t n,
	const struct sched_ageing *ageing, struct sched_session **order);

/* What passes cost, measured: the time of a pass is taken to be a constant, for the sessions that
 * decode, and so much per prompt token. A line is fitted to recent passes, the last ones the most.
 */
struct sched_cost {
	double weight, n, ns, n_n, n_ns; /* sums over passes: 1, tokens, time, and products */
	double base_ns, token_ns; /* of the line; token_ns 0: not known yet */
};
/* A pass with n prompt tokens took ns. */
void sched_learn(struct sched_cost *cost, uint32_t n, uint64_t ns);
/* How many prompt tokens a pass may have so that it takes no longer than ns_max (0: no matter how
 * long), as far as that is known: SCHED_CHUNK_MIN..most. The least lets prompts go on however
 * little time there is; a target that it breaks cannot be met. */
enum { SCHED_CHUNK_MIN = 16 };
uint32_t sched_chunk(const struct sched_cost *cost, uint64_t ns_max, uint32_t most);
/* The least of pass_ns_max of the sessions that will decode; 0: it does not matter. */
uint64_t sched_pass_ns_max(
	struct sched_session *const *order, uint32_t n, const struct sched_limits *limits);
/* How long it will take until n prompt tokens are computed, in passes of `chunk`; 0: not known. */
uint64_t sched_prefill_ns(const struct sched_cost *cost, uint64_t n, uint32_t chunk);

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
