/*
 * The controller: records in, the policy page out, and a bounded memory of the decisions in
 * between. No threads and no sockets: the records thread and the admin handlers take turns under a
 * mutex of the service (records.h).
 *
 * Records come in bunches where iterations are short. All of them are measured; plans, which are what
 * costs, are made once for the newest pass of a bunch (controller_settle), for nobody would see the
 * others.
 */
#pragma once

#include "services/policy-controller/estimates/passes.h"
#include "services/policy-controller/policy.h"
#include "shared/base/bits.h"
#include "shared/base/uids.h"

enum { CONTROLLER_DECISIONS = 1024 };

struct decision {
	uint64_t number, session, time_ns;
	uint32_t k_old, k_new; /* new: in force now, as a trial for trial_n iterations (0: none) */
	uint32_t trial_n, k_then; /* then: after the trial */
	enum phase phase;
	float utility;
	char reason[192];
};

struct controller {
	struct policy_page *page; /* borrowed */
	struct settings settings; /* of new sessions */
	struct policy_defaults defaults; /* as published */
	bool unfollowed; /* what was decided last, of whatever session */
	struct policy_state sessions[LIMIT_SESSIONS]; /* by slot; uid 0 = none */
	struct uids uids; /* their slots */
	uint64_t n_records, n_refused, n_decisions; /* decisions are numbered from 1 */
	uint64_t iteration, clock; /* of the last record; passes, those that left none too */
	uint64_t first_decision; /* the number before this controller's first */
	struct decision decisions[CONTROLLER_DECISIONS];
	uint64_t last_iteration_ns, last_ns; /* of whatever session: its time, and when it ended */
	uint64_t
		now_ns; /* of what is decided: the end of the newest iteration, or a change of settings */
	double base_ns[LIMIT_RUNNING + 1]; /* time at K = 0 by batch size; 0 = never seen */
	uint64_t base_at[LIMIT_RUNNING + 1]; /* clock when it was seen last */
	struct passes passes_seen;
	alignas(max_align_t) unsigned char shared[POLICIES_SHARED_BYTES]; /* policies_init */
	/* Two passes: the one whose records come, [gathering], and the one before it. n_passes: since the
	 * last plan; when not 0, the other one is to be planned for. */
	struct controller_pass {
		uint64_t iteration;
		uint32_t sessions, seen,
			others; /* all of it; records so far; extra tokens of the rest */
		uint32_t slots[LIMIT_RUNNING], n; /* its sessions, as far as their policy plans */
		uint64_t has[BITS_WORDS(LIMIT_SESSIONS)]; /* a bit for each of slots */
	} passes[2];
	uint32_t gathering, n_passes;
	/* A bit for each slot: what was seen; what is to be published. */
	uint64_t known[BITS_WORDS(LIMIT_SESSIONS)], touched[BITS_WORDS(LIMIT_SESSIONS)];
	uint32_t newest; /* slot of the last record */
};

/* Takes the page over: locks that a dead writer left are repaired, knobs stay. settings have
 * been checked. */
void controller_init(
	struct controller *c, struct policy_page *page, const struct settings *settings);

/* One record, and the state of its session after it. Anything out of range is counted and dropped: NULL. Nobody sees what it
 * changes before controller_settle. */
const struct policy_state *controller_record(
	struct controller *c, const struct iteration_record *record);
/* After the records that there were: plans for the newest pass that is whole, and publishes. */
void controller_settle(struct controller *c);

/* When the next record that something may be decided from should come (CLOCK_MONOTONIC); 0: none is waited for. */
uint64_t controller_due_ns(const struct controller *c);

/* New settings for one session (uid) or, with uid 0, for all and those to come, but for what was
 * set for a session alone. A session keeps its state where its policy stays. What is decided thereby is decided at now_ns
 * (CLOCK_MONOTONIC). settings have been checked. -ENOENT: no such session. */
int controller_set(struct controller *c, const struct settings *settings, uint64_t uid,
	uint64_t now_ns, struct error *err);
const struct settings *controller_settings(const struct controller *c, uint64_t uid);

/* The state of a session, NULL when there is none. Until the next call that changes something. */
const struct policy_state *controller_session(const struct controller *c, uint64_t uid);

/* What its utility is held against, as its policy has it: an iteration at K = 0, and how many iterations ago that was measured.
 * 0: not known. */
void controller_baseline(const struct policy_state *s, double *base_ns, uint64_t *age);

/* The oldest kept decision with a number above after, or NULL. */
const struct decision *controller_decision(const struct controller *c, uint64_t after);
