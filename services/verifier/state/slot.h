/*
 * One session as the two threads of the verifier share it: the front (daemon loop) and the engine. Index = index of
 * its session page. Which side may touch what is said at each group; atomics without a named partner are hints.
 */
#pragma once

#include "services/verifier/state/constraint.h"
#include "services/verifier/state/journal.h"
#include "services/verifier/state/stop_match.h"

/* What a session took, in this verifier. The engine's until the page is DONE, the front's after. */
struct slot_usage {
	uint64_t submitted_ns, started_ns, first_ns, last_ns; /* CLOCK_MONOTONIC; 0 = not yet */
	uint64_t draft_ns, verify_ns, sample_ns;
	uint64_t unique_experts, expert_hits, expert_misses;
	uint32_t iterations, drafted, accepted;
	uint32_t k_used[LIMIT_DRAFT_DEPTH + 1], drafted_at[LIMIT_DRAFT_DEPTH],
		accepted_at[LIMIT_DRAFT_DEPTH];
	char message[512]; /* why it ended, for SESSION_END_ERROR */
};

struct slot {
	/* The front's: constant from submission until the session is freed. */
	struct session_page *page, *shared; /* our own, and the one in the region (journal.h) */
	struct stop_match *
		match; /* of the request's stop strings; NULL: it has none. Its tokens are matched by the engine */
	struct constraint
		*constraint; /* of the request's grammar, or NULL; the engine's as match is */
	/* The records, of each output token: a hash of the logits, or NULL; and request.logprobs log probabilities, its own first, or
	 * NULL. */
	uint64_t *hashes; /* [n_context] */
	struct token_logprob *logprobs; /* [n_context][request.logprobs] */
	uint32_t restarts;

	/* Front to engine: the engine looks each iteration. */
	_Atomic uint32_t credit; /* absolute: output tokens the client takes */
	_Atomic bool cancel;
	_Atomic uint64_t client; /* sessions of one client have the same number; 0: not known yet */
	_Atomic bool aside; /* its client is gone or takes nothing: others go first */
	_Atomic bool yield; /* somebody waits for its page: let go of it */

	/* Engine to front. yielded (release, acquire): after yield was set, page and slot are the front's again, although the
	 * session has not ended. The records of so many tokens are there (release, acquire). */
	_Atomic bool yielded;
	_Atomic uint32_t n_recorded;
	_Atomic uint32_t iterations; /* in this verifier */
	_Atomic uint64_t expert_hits, expert_misses;

	struct slot_usage usage;
};

/* Whether the client wants what only the logits of each token can tell: they are computed again where it is lost. */
static inline bool slot_records(const struct slot *slot)
{
	return slot->hashes != NULL || slot->logprobs != NULL;
}
