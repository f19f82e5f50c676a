/*
 * Cascade (Utility-Driven Speculative Decoding for Mixture-of-Experts, section 5): test-and-set
 * over K for one session, with disabling, adaptive back-off and hill climbing. cascade.c has the
 * phases, cascade_measure.c the baselines and utility, cascade_climb.c the search, cascade_adjust.c
 * changes of knobs. The controller calls it as a policy (policy.h). Pure.
 *
 * The utility of a window is U = ETR / (t_spec / t_base) (equation of section 4). K = 0 has utility
 * 1 by definition; the first trial of a test is compared with that.
 *
 * Comparing like with like. The paper serves one request at a time. In a batch, an iteration's time
 * also depends on how many sessions are in the pass and on what the others draft, which says
 * nothing about this session's K. So every iteration of a window is divided by the time that such
 * an iteration takes without this session's draft, and t_spec / t_base is the mean of those shares.
 * The baseline is kept by the size of the batch and by the drafted tokens of the others. The others
 * choose their K anew in every pass, so not every number of them has a baseline. Then the nearest
 * baseline is scaled by the curve of pass times (cost.h), as V(others now) / V(others then), where
 * the curve knows both. With a single session, the share is the paper's. The session is charged the
 * whole V(extra) - V(extra - own), as it was measured and not by the curve: cascade asks what its
 * own K brings while the others do what they do. An iteration for which no baseline is usable
 * measures nothing. The first time in a test, the test stops to measure a baseline; the second time
 * it ends with what it has found.
 *
 * Time is counted in iterations, not in records, because records are lost when their ring is full.
 * Measurements before such a gap are not mixed with those after it: a trial is repeated, and the
 * baseline is measured again before the next test. A baseline that has grown too old during the gap
 * is not used.
 *
 * Where the direction after the first trial leads out of 1 to k_max, the neighbour on the other
 * side is tried (cascade_climb.c).
 *
 * Where the paper is silent:
 *
 * - Delayed iterations do not count (window.h).
 * - The first iteration of a trial does not count if the drafter rested before it, since its wait
 *   includes what the drafter had to read. The paper's drafter always follows, as with
 *   `rest_at_zero` = no.
 * - S falls back to its start once a test passes.
 * - Records with another K from before the verifier could read the present one are skipped. Later
 *   ones (the verifier cuts K where the context ends) are skipped at most `late` times in a row.
 * - A baseline from a time when other experts were resident is measured again before each test,
 *   unless `refresh_missed` = no. With room for 30 % of the demo model's experts, an iteration at K
 *   = 0 took 1.2 ms at the beginning of an answer and 0.65 ms after a hundred tokens, so that every
 *   K seemed to pay.
 * - While the records of a trial are awaited, K is the best one that paid.
 */
#pragma once

#include "services/policy-controller/policy.h"
#include "services/policy-controller/published/window.h"

#include <stdbool.h>

enum { CASCADE_HISTORY = 16, CASCADE_SAMPLES = 64 };

/* An iteration at K = 0. */
struct cascade_sample {
	uint64_t ns, at; /* at: the value of cascade.clock */
	/* sessions: in the batch; others: drafted tokens of the others */
	uint32_t sessions, others;
	uint32_t run; /* samples of one run were measured together */
};

struct cascade {
	struct window window; /* of the present trial or phase */
	struct cascade_sample samples[CASCADE_SAMPLES];
	uint32_t n_samples; /* number ever taken; the last CASCADE_SAMPLES are kept */
	/* run: of the samples to come; first_run: the oldest run that is still usable */
	uint32_t run, first_run;
	uint32_t sessions, others; /* in the last record's batch */
	uint64_t iteration; /* of the last record */
	uint64_t clock; /* iterations since the policy took over the session, whether seen or not */
	/* since the baseline was measured: missed: experts were not resident; gap: records were
	 * lost */
	bool missed, gap;
	bool drafted; /* the last record had a draft */
	bool stale; /* since its last draft, the drafter has not followed all the time */
	uint32_t set_length; /* S at present */
	uint32_t length, left; /* length of the phase in iterations, and how many are left */
	/* the set phase that continues after the baseline; resume_left 0: none */
	uint32_t resume_k, resume_left;
	uint32_t mismatched; /* records in a row with another K than asked for */
	uint32_t trial, falls; /* trials in this test; successive falls of utility */
	uint32_t tested; /* bit k is set: K = k was tried in this test */
	uint32_t prev_k, best_k, start_k;
	uint32_t kept_k; /* K while records of a trial are awaited */
	uint32_t unread; /* tokens that the drafter did not follow */
	float prev_utility, best_utility;
	bool restarted; /* this test has begun again once because the batch changed */
	uint32_t n_history; /* number ever added; the last CASCADE_HISTORY are kept */
	struct cascade_result {
		uint32_t k;
		float utility;
	} history[CASCADE_HISTORY];
	/* For display: the trials of the last test, and why it ended (NULL: it goes on). */
	uint32_t n_trials;
	struct cascade_trial {
		uint32_t k;
		/* base_ns: of an iteration at K = 0, as known at the time */
		double etr, time_ns, base_ns;
		float utility;
	} trials[SETTINGS_TRIALS_MAX];
	const char *ended;
};

/* What cascade keeps of all sessions: the findings of the last session, with which a new one
 * begins. k_before: the K that paid. off_before and off_left: the length of its off phase and how
 * much of it was left (0: it was in none). */
struct cascade_shared {
	uint32_t k_before, off_before, off_left;
};

/* The state of a session under cascade, and the state of all sessions. */
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

/* What a window tells about its K. base_ns: the time that the same iterations would have taken at K
 * = 0. */
struct cascade_measure {
	double etr, time_ns, base_ns, utility;
};

/* The time of an iteration at K = 0. */
struct cascade_base {
	double ns;
	/* sessions, others: the batch in which it was measured; age: iterations since */
	uint32_t sessions, others, age;
};

/* cascade_measure.c. Drafted tokens of the rest of the record's batch. */
uint32_t cascade_others(const struct iteration_record *record);
/* Takes an iteration at K = 0 as a sample. */
void cascade_sample(struct cascade *c, const struct iteration_record *record);
/* The baseline for a batch like the last record's, or else the newest one. False: nothing was
 * measured yet. */
bool cascade_base(const struct policy_state *s, struct cascade_base *out);
/* Iterations since one at K = 0 was measured in a batch of this size (0: of any size); UINT32_MAX:
 * none was. */
uint32_t cascade_age(const struct cascade *c, uint32_t sessions);
/* True when the iteration can be compared with a baseline. The baseline must be of a batch of the
 * same size and no older than `refresh` lets one get; and the others must draft much the same, or
 * the curve must know both cases. */
bool cascade_comparable(const struct policy_state *s, const struct iteration_record *record);
/* Adds a comparable iteration to the window. */
void cascade_add(struct cascade *c, const struct iteration_record *record);
/* Measures the window. False: it is empty, or its baseline has become too old. */
bool cascade_measured(const struct policy_state *s, struct cascade_measure *out);

/* cascade.c. Ends the phase. */
void cascade_finish_phase(struct policy_state *s, struct verdict *verdict);
void cascade_turn_off(struct policy_state *s);
/* True when the drafter need not follow the session, because it is off for long. */
bool cascade_rests(const struct policy_state *s);
/* True when other experts were resident during the baseline than are now, as far as
 * `refresh_missed` asks about that. */
bool cascade_is_of_others(const struct policy_state *s);

/* cascade_climb.c. K, limited by k_max. */
uint32_t cascade_allowed(const struct policy_state *s, uint32_t k);
void cascade_remember(struct cascade *c, uint32_t k, double utility);
/* The K that the next test begins with (section 5.3). */
uint32_t cascade_start_k(const struct policy_state *s);
/* The K to try after a trial with this utility; 0: none is left. */
uint32_t cascade_next_k(const struct policy_state *s, float utility);
/* Why the test ends with this trial; next: the K that would be tried. NULL: the test goes on. */
const char *cascade_early_exit(const struct policy_state *s, float utility, uint32_t next);

/* policy_ops.adjust (cascade_adjust.c). */
void cascade_adjust(struct policy_state *s, const struct settings *before, struct verdict *verdict);
/* policy_ops.explain (cascade_explain.c). */
void cascade_explain(const struct policy_state *s, struct explanation *out);
