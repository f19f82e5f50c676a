/*
 * A session as the engine knows it, from the time the engine takes it until the engine lets go of it. What lives as long as one pass
 * is in struct pass_part (pass.h). Engine thread.
 */
#pragma once

#include "services/verifier/state/slot.h"
#include "services/verifier/pass/follow.h"
#include "services/verifier/pass/sched_share.h"
#include "services/verifier/pass/scheduler.h"
#include "shared/model/kv/kv.h"
#include "shared/model/text/tokenizer.h"
#include "shared/spec/policy.h"

struct pass_part;

/* What is asked of the drafter. */
struct draft_want {
	uint32_t k, k_asked; /* K, and K before the end of the answer cut it */
	uint32_t nodes; /* K, or those of a tree K deep */
	uint32_t decision; /* of the policy: what K was read with */
};

struct engine_session {
	uint32_t index; /* of its slot and page */
	uint64_t uid;
	struct slot *slot;
	struct session_page *page;
	uint32_t n_tokens; /* that it has: prompt and accepted */
	uint32_t n_fresh; /* of them, not journalled yet: nobody else knows of them */
	struct kv_seq seq; /* owner 0: it holds no pages now */
	bool waits; /* all that seq holds are pages of other sessions: it has not started */
	struct sched_session sched; /* what the scheduler decides from */
	struct follow follow; /* whether the drafter does */
	struct policy_trial trial;
	struct draft_want wanted; /* of the draft that was asked for last */
	struct share_record share; /* what became of its drafts */
	enum session_end end_before; /* reached before: only records are left to make */
	bool live; /* false: page and slot are the front's, and the engine must not look at them */
	struct pass_part *part; /* in the pass under way; NULL: it has none */
};

/* How many of n_tokens committed tokens are output. */
static inline uint32_t session_n_out(const struct engine_session *s, uint32_t n_tokens)
{
	return n_tokens - s->page->n_prompt;
}
