/*
 * The controller: it takes iteration records, writes the policy page, and keeps the latest
 * decisions in a bounded memory. It has no threads and no sockets. The records thread and the admin
 * handlers call it in turn, under a mutex of the service (records.h).
 *
 * When iterations are short, records come in bunches. Every record is measured. Plans are what
 * costs, so they are made once, for the newest pass of a bunch (controller_settle); the verifier
 * would never see the others.
 */
#pragma once

#include "services/policy-controller/estimates/passes.h"
#include "services/policy-controller/policy.h"
#include "shared/base/bits.h"
#include "shared/base/uids.h"

enum { CONTROLLER_DECISIONS = 1024 };

struct decision {
	uint64_t number, session, time_ns;
	/* k_new: now in force; during a trial of trial_n iterations (0: no trial) it is the trial's
	 * K */
	uint32_t k_old, k_new;
	uint32_t trial_n, k_then; /* k_then: after the trial */
	enum phase phase;
	float utility;
	char reason[192];
};

struct controller {
	struct policy_page *page; /* borrowed */
	struct settings settings; /* those of new sessions */
	struct policy_defaults defaults; /* as last published */
	bool unfollowed; /* of the session of the last record; new sessions begin with it */
	struct policy_state sessions[LIMIT_SESSIONS]; /* by slot; uid 0: unused */
	struct uids uids; /* from uid to slot */
	uint64_t n_records, n_refused, n_decisions; /* decisions are numbered from 1 */
	/* iteration: of the last record; clock: passes, including passes that left no record */
	uint64_t iteration, clock;
	uint64_t first_decision; /* number before this controller's first decision */
	struct decision decisions[CONTROLLER_DECISIONS];
	/* of the last record: how long its iteration took, and when that ended */
	uint64_t last_iteration_ns, last_ns;
	/* when the present decision was made: at the end of the newest iteration, or at a change of
	 * settings */
	uint64_t now_ns;
	double base_ns[LIMIT_RUNNING + 1]; /* time at K = 0 by size of the batch; 0: never seen */
	uint64_t base_at[LIMIT_RUNNING + 1]; /* value of clock when it was last seen */
	struct passes passes_seen;
	/* what policies keep of all sessions (policies_init) */
	alignas(max_align_t) unsigned char shared[POLICIES_SHARED_BYTES];
	/* Two passes: passes[gathering], whose records are arriving, and the one before it.
	 * n_passes: passes since the last plan; when not 0, the other one is to be planned for. */
	struct controller_pass {
		uint64_t iteration;
		/* sessions: in the pass; seen: records so far; others: extra tokens of the sessions
		 * that no policy plans for */
		uint32_t sessions, seen, others;
		uint32_t slots[LIMIT_RUNNING], n; /* the sessions that a policy plans for */
		uint64_t has[BITS_WORDS(LIMIT_SESSIONS)]; /* bit s is set: slot s is among slots */
	} passes[2];
	uint32_t gathering, n_passes;
	/* One bit for each slot: it was seen; it must be published. */
	uint64_t known[BITS_WORDS(LIMIT_SESSIONS)], touched[BITS_WORDS(LIMIT_SESSIONS)];
	uint32_t newest; /* slot of the last record */
};

/* Takes over the page: repairs locks that a dead writer left, and leaves what it says of each
 * session (K, cuts, trial) as it is. settings must have been checked. */
void controller_init(
	struct controller *c, struct policy_page *page, const struct settings *settings);

/* Takes one record and returns the state of its session after it. A record with a value out of
 * range is counted and dropped: NULL. The page does not show the changes before controller_settle.
 */
const struct policy_state *controller_record(
	struct controller *c, const struct iteration_record *record);
/* Call when all waiting records were taken: plans for the newest complete pass, and publishes. */
void controller_settle(struct controller *c);

/* When the next record is expected from which something may be decided (CLOCK_MONOTONIC ns); 0:
 * none is awaited. */
uint64_t controller_due_ns(const struct controller *c);

/* Changes the settings of one session (uid), or with uid 0 of all present and future sessions;
 * values that were set for one session alone stay. A session keeps its state if its policy stays
 * and its K is at most the new k_max. Otherwise it begins anew, and the policy's estimates of it
 * are lost. (`static` keeps its state in any case.) now_ns: time of any decision that follows
 * (CLOCK_MONOTONIC). settings must have been checked. -ENOENT: no such session. */
int controller_set(struct controller *c, const struct settings *settings, uint64_t uid,
	uint64_t now_ns, struct error *err);
const struct settings *controller_settings(const struct controller *c, uint64_t uid);

/* The state of a session, NULL when there is none. Valid until the next call that changes anything.
 */
const struct policy_state *controller_session(const struct controller *c, uint64_t uid);

/* The baseline of the session's utility, according to its policy: the time of an iteration at K =
 * 0, and how many iterations ago it was measured. 0: unknown. */
void controller_baseline(const struct policy_state *s, double *base_ns, uint64_t *age);

/* The gamma-tolerance of batches of this size (tolerance.h): out[0 .. most-1]. Returns how many points
 * there are; 0: no such batch was seen. */
uint32_t controller_tolerance(
	struct controller *c, uint32_t sessions, uint32_t most, struct tolerance_point *out);

/* The oldest kept decision with a number above `after`, or NULL. */
const struct decision *controller_decision(const struct controller *c, uint64_t after);
