/*
 * A policy chooses K for sessions from their iteration records. Each policy is one struct
 * policy_ops, listed in one table (policies.c). Policies are pure: no clock, no threads, no
 * allocation. The controller calls them, under the service's mutex.
 */
#pragma once

#include "services/policy-controller/explain.h"
#include "services/policy-controller/settings.h"
#include "shared/spec/policy.h"

#include <stdalign.h>
#include <stddef.h>

/* For display. BASELINE: K = 0 is measured. TEST: a trial. SET: a K above 0 holds. OFF: K = 0
 * holds. The knob `phase` of yield is something else. */
enum phase { PHASE_BASELINE, PHASE_TEST, PHASE_SET, PHASE_OFF };
enum { N_PHASES = PHASE_OFF + 1 };
extern const char *const phase_names[];

/* Bytes that a policy may keep of a session, and that all policies together may keep of all
 * sessions. */
enum { POLICY_STATE_BYTES = 6144, POLICIES_SHARED_BYTES = LIMIT_RUNNING * 12288 + 262144 };

struct policy_ops;
struct passes;

/* Where a session was after an iteration. */
struct policy_place {
	uint64_t iteration; /* the verifier's number of the pass */
	uint32_t n_context; /* committed tokens; 0: no iteration was seen */
};

struct policy_state {
	uint64_t uid;
	uint32_t slot;
	struct settings settings;
	const struct policy_ops *ops;
	/* what the policy asks for while no trial is on. During a trial trial_k is in force; `k` is
	 * then the trial's K (cascade) or the K after it (yield). */
	uint32_t k;
	uint64_t decision; /* number of the decision that it comes from; 0: none yet */
	enum phase phase;
	float utility; /* as last measured; 0: never */
	uint32_t static_k;
	uint32_t n_context; /* tokens that the session began with; set before begin */
	struct passes *passes; /* what passes cost; borrowed; set before begin */
	void *shared; /* what the policy keeps of all sessions; borrowed; set before begin */
	float cut[LIMIT_DRAFT_DEPTH + 1]; /* for the page: bounds of confidence; 0 cuts nothing */
	/* A trial: trial_k for trial_n iterations, and after them k_then until the next decision.
	 * trial_n 0: no trial is on. */
	uint32_t trial_id, trial_n, trial_k, k_then;
	bool unfollowed; /* for the page: the drafter need not follow */
	/* For the page: how wide drafts may be, a fixed shape, and what nodes cost and bring (struct
	 * policy_session). */
	uint32_t width;
	uint8_t shape[DRAFT_SHAPE];
	struct policy_prices prices;
	/* For display; the controller keeps these for every policy. */
	uint64_t iterations, last_ns;
	struct policy_place place; /* at the last record, whatever that measured */
	/* Iterations whose records were lost: all of them, and those since the policy last saw a
	 * record; the policy resets `lost`. */
	uint64_t missing;
	uint32_t lost;
	float etr, drafted, accepted; /* moving averages */
	double iteration_ns, base_ns;
	uint64_t base_age; /* passes since base_ns was last measured */
	uint32_t k_seen; /* of its last record that measured */
	uint64_t class_tpot_ns, class_ttft_ns; /* targets of its class; 0: none */
	uint32_t k_last; /* in force after its last record, whatever settings changed since */
	uint32_t k_fixed; /* of the last record: 0, or 1 + the K that the request fixed */
	float reached[LIMIT_DRAFT_DEPTH],
		taken[LIMIT_DRAFT_DEPTH]; /* counts by depth of drafts; both fade */
	uint32_t depths; /* number of depths seen */
	alignas(max_align_t) unsigned char own[POLICY_STATE_BYTES]; /* private to the policy */
};

/* What a policy decided. If `decided`, the state's k, phase and utility are new. */
struct verdict {
	bool decided;
	char reason[192]; /* words and figures */
};

struct policy_ops {
	const char *name;
	/* Bytes of its private state of a session, at most POLICY_STATE_BYTES, and of all sessions;
	 * 0: none. */
	size_t state_bytes, shared_bytes;
	/* The policy whose memory of all sessions it uses; its own shared_bytes are then 0. NULL:
	 * none. */
	const struct policy_ops *shares;
	/* Initialises what it keeps of all sessions, before the first session. NULL if that is
	 * nothing. */
	void (*init)(void *shared);
	/* The K of sessions that have not been seen yet. */
	uint32_t (*first_k)(const struct settings *settings, const void *shared);
	/* Takes over a session. Set before: state->uid, settings, static_k, unfollowed, passes and
	 * shared; own is zero. k_hint: the K that it has now, from an earlier controller or from
	 * first_k. */
	void (*begin)(struct policy_state *state, uint32_t k_hint, struct verdict *verdict);
	/* The session's settings have changed; both old and new ones allow the policy and its K.
	 * The policy applies them to what is under way. May be NULL. */
	void (*adjust)(
		struct policy_state *state, const struct settings *before, struct verdict *verdict);
	/* Takes one decode iteration of the session that measured K: the pass had no prompt tokens,
	 * and the request did not fix K. */
	void (*observe)(struct policy_state *state, const struct iteration_record *record,
		struct verdict *verdict);
	/* Explains the K that is asked for: words, figures, and what is known of each K. */
	void (*explain)(const struct policy_state *state, struct explanation *out);
	/* In how many iterations, at the earliest, a record may lead to a decision; 0: none is
	 * awaited. May be NULL, which means 0. */
	uint32_t (*awaits)(const struct policy_state *state);
	/* The time of an iteration at K = 0 that the policy has itself measured, and how many
	 * iterations ago; replaces what the controller saw. May be NULL. */
	void (*baseline)(const struct policy_state *state, double *base_ns, uint64_t *age);
	/* A sentence below the table of `explain`: what the figures of each K are; "" when it has
	 * none. */
	const char *options_are;
	bool tells_drafted, tells_doubt; /* these fields of struct explained_k are filled in */
	bool foresight; /* it learns from drafts that are kept back (drafter/foresight.h) */
	/* Chooses for all n sessions of a pass that this policy serves, after their records.
	 * sessions: all sessions in the pass. others: extra tokens of the sessions that it does not
	 * serve. passes: number of passes since the last plan, this one included. verdicts: [n].
	 * NULL: the policy decides for each session separately, in observe. */
	void (*plan)(struct policy_state **states, uint32_t n, uint32_t sessions, uint32_t others,
		uint32_t passes, struct verdict *verdicts);
};

extern const struct policy_ops policy_static, policy_cascade, policy_yield, policy_goodput;
extern const struct policy_ops *const policies_all[]; /* ended by NULL */

/* Initialises the memory for what all policies keep of all sessions (POLICIES_SHARED_BYTES, aligned
 * like malloc's); and returns the part of one policy. */
void policies_init(void *memory);
void *policy_shared(void *memory, const struct policy_ops *policy);

/* The most children of a token in a fixed shape. */
enum { POLICY_SHAPE_WIDTH = 32 };
/* The shape that "static:4x2x1" names: 4 tokens behind the committed ones, 2 behind each of these,
 * 1 behind each of those; up to DRAFT_SHAPE levels and LIMIT_DRAFT_NODES tokens. Returns its depth;
 * 0, and no shape, if the text names none. */
uint32_t policy_shape(const char *text, uint8_t shape[DRAFT_SHAPE]);
/* Parses "cascade", "static:3" or "static:4x2x1" to the policy and its K; NULL when no policy has that name. */
const struct policy_ops *policy_parse(const char *text, uint32_t *k);
/* True when the record's pass began before the verifier could read what the state asks for now. */
bool policy_is_older(const struct policy_state *state, const struct iteration_record *record);
/* How many iterations of a session are missing between two of its records, and their tokens;
 * emitted: tokens of the later record. An iteration emits at least one token, and a session has at
 * most one in each pass, so the smaller of the two counts is returned. */
uint32_t policy_missing(const struct policy_place *before, const struct policy_place *after,
	uint32_t emitted, uint32_t *tokens);
void policy_decide(struct verdict *verdict, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
