/*
 * One session as the two threads of the verifier share it: the front (daemon loop) and the engine.
 * Its index is that of its session page. Each group of members says which thread may use it;
 * atomics without a named partner are hints.
 */
#pragma once

#include "shared/spec/constraint.h"
#include "services/verifier/state/journal.h"
#include "services/verifier/state/stop_match.h"

/* The costs of a session in this verifier. Belongs to the engine until the page is DONE, to the
 * front after that. */
struct slot_usage {
	uint64_t submitted_ns, started_ns, first_ns, last_ns; /* CLOCK_MONOTONIC; 0 = not yet */
	uint64_t draft_ns, verify_ns, sample_ns;
	uint64_t unique_experts, expert_hits, expert_misses;
	uint32_t iterations, drafted, accepted;
	uint32_t k_used[LIMIT_DRAFT_DEPTH + 1], drafted_at[LIMIT_DRAFT_DEPTH],
		accepted_at[LIMIT_DRAFT_DEPTH];
	char message[512]; /* why it ended, for errors and deadlines */
};

struct slot {
	/* Set by the front; constant from submission until the session is freed. */
	struct session_page *page, *shared; /* our own, and the one in the region (journal.h) */
	/* for the request's stop strings; NULL: it has none. The engine matches the session's
	 * tokens with it */
	struct stop_match *match;
	/* for the request's grammar, or NULL; the engine uses it as it does match */
	struct constraint *constraint;
	/* The records of each output token: a hash of the logits, or NULL; request.logprobs log
	 * probabilities, the token's own first, or NULL; of an audit the token that the model
	 * picks, or NULL. */
	uint64_t *hashes; /* [n_context] */
	struct token_logprob *logprobs; /* [n_context][request.logprobs] */
	int32_t *picked; /* [n_context] */
	uint32_t restarts;

	/* From the front to the engine, which looks at them in each iteration. */
	_Atomic uint32_t credit; /* output tokens that the client takes, counted from the first */
	_Atomic bool cancel;
	_Atomic uint64_t client; /* sessions of one client have the same number; 0: not known yet */
	_Atomic bool aside; /* its client is gone or takes nothing, so other sessions come first */
	_Atomic uint32_t asleep; /* enum session_sleep */
	_Atomic bool yield; /* its page is needed for another session: let go of it */

	/* From the engine to the front. yielded (release, acquire): after yield was set, page and
	 * slot belong to the front again, although the session has not ended. The records of the
	 * first n_recorded tokens are there (release, acquire). */
	_Atomic bool yielded;
	_Atomic uint32_t n_recorded;
	_Atomic uint32_t iterations; /* in this verifier */
	_Atomic uint64_t expert_hits, expert_misses;

	struct slot_usage usage;
};

/* Whether the client wants what only the logits of each token can give. Where it is lost, the
 * logits are computed again. */
static inline bool slot_records(const struct slot *slot)
{
	return slot->hashes != NULL || slot->logprobs != NULL || slot->picked != NULL;
}
