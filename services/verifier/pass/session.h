/*
 * A session as the engine knows it, from the time the engine takes it until it lets go of it. What
 * lives only as long as a pass is in struct pass_part (pass.h). Engine thread.
 */
#pragma once

#include "services/verifier/state/slot.h"
#include "services/verifier/pass/follow.h"
#include "services/verifier/pass/node_chance.h"
#include "services/verifier/pass/recall.h"
#include "services/verifier/pass/sched_share.h"
#include "services/verifier/pass/scheduler.h"
#include "shared/model/kv/kv.h"
#include "shared/model/kv/kv_prefix.h"
#include "shared/model/pass/forward.h"
#include "shared/model/text/tokenizer.h"
#include "shared/spec/policy.h"

struct pass_part;

/* What is to be asked of the drafter. */
struct draft_want {
	uint32_t k, k_asked; /* K, and K before it was limited by the end of the answer */
	uint32_t nodes; /* K, or the nodes of a tree of depth K */
	uint32_t width; /* children of one token: 1 for a chain */
	uint8_t shape[DRAFT_SHAPE]; /* of a tree of fixed shape (struct draft_budget) */
	struct policy_prices prices; /* token 0: all of its nodes are verified */
	uint32_t decision; /* number of the policy's decision from which K came */
};

struct engine_session {
	uint32_t index; /* of its slot and page */
	uint64_t uid;
	struct slot *slot;
	struct session_page *page;
	uint32_t n_tokens; /* tokens that it has: of the prompt, and accepted ones */
	/* how many of them are not journalled yet, so that only the engine knows them */
	uint32_t n_fresh;
	struct kv_seq seq; /* owner 0: it holds no pages now */
	/* How many of its tokens are fast (forward_fast_tokens), and under which domains its pages are
	 * found: what is exact behind a fast beginning may be fast in a longer prompt. */
	uint32_t n_fast;
	struct kv_domains domains;
	/* With recurrent layers: how many of its tokens have pages that others had before, when it
	 * began; and the page of the snapshot that it made last while it decoded (snapshots.h). */
	uint32_t n_met, last_snapshot;
	bool waits; /* all pages in seq are shared with other sessions: it has not started */
	struct recall recall; /* its reads from disk */
	bool asleep; /* it is not computed, and gives up its pages (recall.h) */
	struct sched_session sched; /* what the scheduler decides from */
	struct follow follow; /* how closely the drafter is kept informed */
	uint64_t text; /* of its first text_n tokens (hidden_feed.h) */
	uint32_t text_n;
	struct policy_trial trial;
	struct draft_want wanted; /* of the draft that was asked for last */
	struct share_record share; /* what became of its drafts */
	float pace; /* output tokens per pass in which it decodes, smoothed; 0: not known */
	struct chance_record chances; /* the same by confidence and rank */
	/* the end of an answer that was finished before: only its records are made again */
	enum session_end end_before;
	bool live; /* false: page and slot are the front's, and the engine must not touch them */
	struct pass_part *part; /* its part of the pass in progress; NULL: it has none */
};

/* How many of its tokens it may take over from others, or from disk. If it wants the logits of its
 * output again, these are only of its prompt. */
static inline uint32_t session_prefix_tokens(const struct engine_session *s)
{
	return (s->sched.recorded ? s->sched.n_prompt : s->sched.n_tokens) - 1;
}

/* Up to which of n tokens the session can go on: fast ones are computed in whole chunks. */
static inline uint32_t session_goes_on(const struct engine_session *s, uint32_t n)
{
	return n < s->n_fast ? n / FORWARD_FAST_CHUNK * FORWARD_FAST_CHUNK : n;
}

/* How many of n_tokens committed tokens are output. */
static inline uint32_t session_n_out(const struct engine_session *s, uint32_t n_tokens)
{
	return n_tokens - s->page->n_prompt;
}
