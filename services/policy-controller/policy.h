/*
 * A policy chooses K for one session from its iteration records. All alternatives are one vtable
 * each, in one table (policies.c). Pure: no clock, no threads, no allocation; the caller
 * serialises.
 */
#pragma once

#include "services/policy-controller/explain.h"
#include "services/policy-controller/settings.h"
#include "shared/spec/policy.h"

#include <stdalign.h>
#include <stddef.h>

enum phase { PHASE_BASELINE, PHASE_TEST, PHASE_SET, PHASE_OFF };
enum { N_PHASES = PHASE_OFF + 1 };
extern const char *const phase_names[];

/* The most that a policy keeps of a session, and that all policies keep of all sessions. */
enum { POLICY_STATE_BYTES = 6144, POLICIES_SHARED_BYTES = LIMIT_RUNNING * 12288 + 262144 };

struct policy_ops;
struct passes;

/* Where a session is behind an iteration. */
struct policy_place {
	uint64_t iteration; /* the verifier's number of the pass */
	uint32_t n_context; /* committed tokens; 0: no iteration was seen */
};

struct policy_state {
	uint64_t uid;
	uint32_t slot;
	struct settings settings;
	const struct policy_ops *ops;
	uint32_t k; /* what the policy asks for now */
	uint64_t decision; /* number of the one that it comes from; 0: none yet */
	enum phase phase;
	float utility; /* last measured; 0 = never */
	uint32_t static_k;
	uint32_t n_context; /* tokens it began with; set before begin */
	struct passes *passes; /* what passes take; borrowed; set before begin */
	void *shared; /* what the policy keeps of all sessions; borrowed; set before begin */
	float cut[LIMIT_DRAFT_DEPTH + 1]; /* of the page; 0 cuts nothing */
	/* A trial of trial_k for trial_n iterations, and k_then after them until something is
	 * decided; trial_n 0: none is on. */
	uint32_t trial_id, trial_n, trial_k, k_then;
	bool unfollowed; /* of the page */
	/* For display, kept by the controller whatever the policy. */
	uint64_t iterations, last_ns;
	struct policy_place place; /* of the last record, whatever it measured */
	/* Iterations between records, whose own were lost: all of them, and those since the policy saw one, which takes them. */
	uint64_t missing;
	uint32_t lost;
	float etr, drafted, accepted; /* moving averages */
	double iteration_ns, base_ns;
	uint64_t base_age; /* passes since base_ns was seen last */
	uint32_t k_last; /* in force behind its last record, whatever settings came since */
	uint32_t k_fixed; /* as in the last record: 0, or 1 + the K that the request fixed */
	float reached[LIMIT_DRAFT_DEPTH],
		taken[LIMIT_DRAFT_DEPTH]; /* depths of drafts; both fade */
	uint32_t depths; /* those that were seen */
	alignas(max_align_t) unsigned char own
		[POLICY_STATE_BYTES]; /* what the policy keeps of it */
};

/* A decision, when one was made: the state's k, phase and utility are the new ones. */
struct verdict {
	bool decided;
	char reason[192]; /* words and figures */
};

struct policy_ops {
	const char *name;
	/* What it keeps, known to nobody else: of a session, at most POLICY_STATE_BYTES; and of all sessions. 0: nothing. */
	size_t state_bytes, shared_bytes;
	/* What it keeps of all sessions, before the first. NULL where that is nothing. */
	void (*init)(void *shared);
	/* K of sessions that have not been seen. */
	uint32_t (*first_k)(const struct settings *settings, const void *shared);
	/* Takes a session over: state->uid, settings, static_k, unfollowed, passes and shared are set, own is 0; k_hint is the
	 * K it has (an earlier controller's, or first_k). */
	void (*begin)(struct policy_state *state, uint32_t k_hint, struct verdict *verdict);
	/* The settings are other than they were, the policy and its K are allowed by both: what is going on is from now on as
	 * they have it. May be NULL. */
	void (*adjust)(
		struct policy_state *state, const struct settings *before, struct verdict *verdict);
	/* One decode iteration of the session that measured K: no prompt tokens in the pass, K
	 * not fixed by the request. */
	void (*observe)(struct policy_state *state, const struct iteration_record *record,
		struct verdict *verdict);
	/* Words, figures and what is known of each K, of the K that is asked for now. */
	void (*explain)(const struct policy_state *state, struct explanation *out);
	/* In how many iterations at the earliest a record may be decided from; 0: none is waited
	 * for. May be NULL: 0. */
	uint32_t (*awaits)(const struct policy_state *state);
	/* Where the state itself has measured the time at K = 0: that, and how many iterations ago, in place of what the
	 * controller saw. May be NULL. */
	void (*baseline)(const struct policy_state *state, double *base_ns, uint64_t *age);
	/* What the figures of each K in `explain` are, a sentence for below the table; "" where it tells none. */
	const char *options_are;
	bool tells_drafted, tells_doubt; /* whether these of struct explained_k are among them */
	bool foresight; /* learns from drafts that are kept back (drafter/foresight.h) */
	/* Chooses for all n sessions of a pass that it serves at once, after their records. sessions: in the pass; others: extra
	 * tokens that the rest of them had; passes: since the last plan, this one among them. verdicts: [n]. NULL: each is
	 * chosen for by itself. */
	void (*plan)(struct policy_state **states, uint32_t n, uint32_t sessions, uint32_t others,
		uint32_t passes, struct verdict *verdicts);
};

extern const struct policy_ops policy_static, policy_cascade, policy_yield;
extern const struct policy_ops *const policies_all[]; /* ended by NULL */

/* Memory of POLICIES_SHARED_BYTES for what all policies keep of all sessions, aligned as malloc's; and where in it a policy has
 * its own. */
void policies_init(void *memory);
void *policy_shared(void *memory, const struct policy_ops *policy);

/* "cascade", "static:3" -> the policy and its K; NULL when there is none of that name. */
const struct policy_ops *policy_parse(const char *text, uint32_t *k);
/* Whether the record's pass began before what the state asks for now was to be read. */
bool policy_is_older(const struct policy_state *state, const struct iteration_record *record);
/* How many iterations of a session are missing between two of its records, the later one of `emitted` tokens, and their tokens.
 * An iteration emits a token or more, and a session has one in each pass unless it has to wait: it is the fewer of the two. */
uint32_t policy_missing(const struct policy_place *before, const struct policy_place *after,
	uint32_t emitted, uint32_t *tokens);
void policy_decide(struct verdict *verdict, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
