/*
 * Cascade (Utility-Driven Speculative Decoding for Mixture-of-Experts, section 5): test-and-set over K with disabling,
 * adaptive back-off and hill climbing, for one session. cascade.c has the phases, cascade_measure.c the baselines and
 * utility, cascade_climb.c the search, cascade_adjust.c changes of knobs; called by the controller as a policy (policy.h).
 * Pure.
 *
 * Utility of a window: U = ETR / (t_spec / t_base) (equation of section 4); K = 0 has utility 1 by definition, which is what
 * the first trial of a test is compared with.
 *
 * Like with like. The paper serves one request at a time. In a batch an iteration also takes as long as it does because of how
 * many sessions are in the pass and of what the others of them draft, which says nothing about this session's K. So every
 * iteration of a window is divided by what one like it takes without this session's draft, and t_spec / t_base is the mean of
 * those shares: the baseline is kept by the size of the batch and the drafted tokens of the others. They choose their K anew
 * in every pass, so there is not one for each number of them; then the nearest is carried over by the curve of what passes
 * take (cost.h), as V(others now) / V(others then), where that is known. Alone, the share is the paper's. What is charged is
 * the whole of V(extra) - V(extra - own), and as it was measured, not a part of the curve: cascade asks what its own K brings
 * while the others do what they do. An iteration that no baseline is good for measures nothing: a test stops for a baseline,
 * once; the second time it ends with what it has found.
 *
 * Time is counted in iterations, not in records: some are lost when their ring is full. What was measured before such a gap is
 * not mixed with what comes after it, a trial is made again, the baseline is measured again before the next test, and one
 * that has grown too old in the gap is good for nothing.
 *
 * Where a first trial's direction leads out of 1 to k_max, the neighbour on the other side is tried (cascade_climb.c).
 *
 * Where the paper is silent: delayed iterations do not count (window.h), nor does the first of a trial before which the
 * drafter rested, whose wait contains what it had to read (the paper's always follows, as with `rest_at_zero` = no); S falls
 * back to its start once a test passes; records of another K from before the verifier could read of this one are skipped,
 * later ones (it cuts K where the context ends) at most `late` in a row; a baseline from when other experts were resident is
 * measured again before each test, unless `refresh_missed` = no: with room for 30 % of the demo model's, an iteration at K = 0
 * took 1.2 ms at the beginning of an answer and 0.65 ms after a hundred tokens, so that every K seemed to pay; while the
 * records of a trial are waited for, K is the best one that paid.
 */
#pragma once

#include "services/policy-controller/policy.h"
#include "services/policy-controller/published/window.h"

#include <stdbool.h>

enum { CASCADE_HISTORY = 16, CASCADE_SAMPLES = 64 };

/* An iteration at K = 0. */
struct cascade_sample {
	uint64_t ns, at; /* at: cascade.clock */
	uint32_t sessions, others; /* in the batch; drafted tokens of the others */
	uint32_t run; /* those of one run were measured together */
};

struct cascade {
	struct window window; /* of the trial or phase that runs */
	struct cascade_sample samples[CASCADE_SAMPLES];
	uint32_t n_samples; /* counts on; the last CASCADE_SAMPLES are kept */
	uint32_t run, first_run; /* of the samples to come; of those that are still good */
	uint32_t sessions, others; /* of the last record's batch */
	uint64_t iteration; /* of the last record */
	uint64_t clock; /* iterations since the policy took the session over, seen or not */
	bool missed,
		gap; /* since the baseline was measured: experts were not resident; records were lost */
	bool drafted; /* the last record had a draft */
	bool stale; /* since the last draft the drafter did not follow all the time */
	uint32_t set_length; /* S now */
	uint32_t length, left; /* iterations of the phase; of them, those that are left */
	uint32_t resume_k,
		resume_left; /* a set phase that goes on after the baseline; left 0: none does */
	uint32_t mismatched; /* records in a row of another K than asked */
	uint32_t trial, falls; /* trials made in this test; successive falls of utility */
	uint32_t tested; /* bit k: K = k was tried in this test */
	uint32_t prev_k, best_k, start_k;
	uint32_t kept_k; /* while records of a trial are waited for */
	uint32_t unread; /* tokens that the drafter did not follow */
	float prev_utility, best_utility;
	bool restarted; /* this test already began again because the batch changed */
	uint32_t n_history; /* counts on; the last CASCADE_HISTORY are kept */
	struct cascade_result {
		uint32_t k;
		float utility;
	} history[CASCADE_HISTORY];
	/* For display: the trials of the last test, and what ended it (NULL: it goes on). */
	uint32_t n_trials;
	struct cascade_trial {
		uint32_t k;
		double etr, time_ns, base_ns; /* base: at K = 0, as it was known then */
		float utility;
	} trials[SETTINGS_TRIALS_MAX];
	const char *ended;
};

/* Of all sessions: what was found last in one of them, where a new one begins: the K that paid, and the off phase that it was
 * in: its length and how much of it was left (0: it was in none). */
struct cascade_shared {
	uint32_t k_before, off_before, off_left;
};

/* The state of a session under cascade, and that of all of them. */
static inline struct cascade *cascade_own(struct policy_state *s)
{
	return (struct cascade *)s->own;
}

static inline const struct cascade *cascade_of(const struct policy_state *s)
{
	return (const struct cascade *)s->own;
}

static inline struct cascade_shared *cascade_shared(const struct policy_state *s)
{
	return s->shared;
}

/* What a window says of the K that it was made with. base_ns: what the same iterations would have taken at K = 0. */
struct cascade_measure {
	double etr, time_ns, base_ns, utility;
};

/* What an iteration at K = 0 takes. */
struct cascade_base {
	double ns;
	uint32_t sessions, others, age; /* the batch it was measured in; iterations since */
};

/* cascade_measure.c. Drafted tokens of the rest of the record's batch. */
uint32_t cascade_others(const struct iteration_record *record);
/* An iteration at K = 0. */
void cascade_sample(struct cascade *c, const struct iteration_record *record);
/* As measured in a batch like the last record's, or else in the newest one; false: nothing was measured yet. */
bool cascade_base(const struct policy_state *s, struct cascade_base *out);
/* Iterations since one at K = 0 in a batch of so many sessions, 0: of whatever size; UINT32_MAX: none is known. */
uint32_t cascade_age(const struct cascade *c, uint32_t sessions);
/* Whether the iteration can be held against a baseline: of a batch of that size, not older than it gets where it is measured
 * again as `refresh` says, and what the others draft is much the same or the curve knows both. */
bool cascade_comparable(const struct policy_state *s, const struct iteration_record *record);
/* A comparable iteration into the window. */
void cascade_add(struct cascade *c, const struct iteration_record *record);
/* False: the window is empty, or its baseline is too old by now. */
bool cascade_measured(const struct policy_state *s, struct cascade_measure *out);

/* cascade.c. The phase is over. */
void cascade_finish_phase(struct policy_state *s, struct verdict *verdict);
void cascade_turn_off(struct policy_state *s);
/* Whether the drafter need not follow the session: off for long. */
bool cascade_rests(const struct policy_state *s);
/* Whether the baseline is of other resident experts than there are now, as far as `refresh_missed` asks. */
bool cascade_is_of_others(const struct policy_state *s);

/* cascade_climb.c. A K as far as k_max allows it. */
uint32_t cascade_allowed(const struct policy_state *s, uint32_t k);
void cascade_remember(struct cascade *c, uint32_t k, double utility);
/* The K that the next test begins with (section 5.3). */
uint32_t cascade_start_k(const struct policy_state *s);
/* The K to try after a trial of this utility; 0: nothing is left. */
uint32_t cascade_next_k(const struct policy_state *s, float utility);
/* Why the test ends with this trial, next being what would be tried; NULL: it does not. */
const char *cascade_early_exit(const struct policy_state *s, float utility, uint32_t next);

/* policy_ops.adjust (cascade_adjust.c). */
void cascade_adjust(struct policy_state *s, const struct settings *before, struct verdict *verdict);
/* policy_ops.explain (cascade_explain.c). */
void cascade_explain(const struct policy_state *s, struct explanation *out);
