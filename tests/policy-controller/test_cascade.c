/* Cascade on sessions worked by hand from section 5 of the paper, and on simulated ones whose
 * best K is known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/policy-controller/cascade_session.h"
#include "tests/policy-controller/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void first_iterations_measure_the_baseline_then_k_start_is_tried(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	assert_int_equal(s.phase, PHASE_BASELINE);
	assert_int_equal(s.k, 0);
	assert_int_equal(feed(&s, 3, 1000, 1), 0);
	assert_int_equal(feed(&s, 1, 1000, 1), 1);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 3);
	assert_true(base_ns(&s) == 1000000);
}

/* 3: U = 2/1.6 = 1.25; up: 4: U = 3/2 = 1.5 (rose by 20%); up: 5: U = 3/2.2 = 1.364 (fell, 9.1%
 * < 10%): over, best is 4. */
static void climbing_goes_on_in_the_direction_that_raised_utility(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 1600, 2);
	assert_int_equal(s.k, 4);
	assert_true(fabsf(s.utility - 1.25f) < 1e-4f);
	feed(&s, 4, 2000, 3);
	assert_int_equal(s.k, 5);
	feed(&s, 4, 2200, 3);
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(s.k, 4);
	assert_int_equal(cascade_own(&s)->left, 16);
}

/* 3: U = 1.5; up: 4: U = 1.2 (fell by 20%): back: 2, as 3 was tried; U = 1.05 (fell again):
 * over, best is 3. */
static void falling_utility_turns_back_and_two_falls_end_the_test(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 2000, 3);
	assert_int_equal(s.k, 4);
	feed(&s, 4, 2500, 3);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 2);
	feed(&s, 4, 1905, 2);
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(s.k, 3);
}

/* 3: U = 0.5, down; 2: U = 0.7 (rose by 40%), down; 1: U = 0.9 < 1: the test ends at once, K = 0. */
static void utility_below_one_goes_down_and_turns_off_at_k_one(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 2000, 1);
	assert_int_equal(s.k, 2);
	feed(&s, 4, 1429, 1);
	assert_int_equal(s.k, 1);
	feed(&s, 4, 1111, 1);
	assert_int_equal(s.phase, PHASE_OFF);
	assert_int_equal(s.k, 0);
	assert_int_equal(
		cascade_own(&s)->left, 32); /* the first transition to K = 0 doubles S = 16 */
}

/* One of four iterations takes five times as long: medians do not see it, means do. */
static void a_delayed_iteration_moves_means_and_not_medians(void **state)
{
	(void)state;
	for (int medians = 0; medians < 2; medians++) {
		struct policy_state s = begin(0);
		s.settings.medians = medians;
		feed(&s, 3, 1000, 1);
		feed(&s, 1, 5000, 1);
		assert_true(base_ns(&s) == (medians ? 1000000 : 2000000));
		feed(&s, 3, 1600, 2);
		feed(&s, 1, 8000, 2);
		/* 2 / 1.6 by medians; 2 / (3.2 / 2) by means: both are delayed alike. */
		assert_true(fabsf(s.utility - 1.25f) < 1e-4f);
		feed(&s, 3, 2000, 3);
		feed(&s, 1, 10000, 3);
		assert_true(fabsf(s.utility - 1.5f) < 1e-4f);
		/* No iteration of this trial is delayed. */
		feed(&s, 4, 2200, 3);
		assert_true(fabsf(cascade_own(&s)->trials[2].utility -
				    (medians ? 3 / 2.2f : 3 / 1.1f)) < 1e-3f);
	}
}

static void the_rest_at_zero_while_it_is_off_and_catches_up_before_the_next_trial(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	assert_false(s.unfollowed);
	feed(&s, 12, 2000, 1); /* 3, 2, 1: none pays */
	assert_int_equal(s.phase, PHASE_OFF);
	assert_true(s.unfollowed);
	/* It reads two tokens in an iteration, and gets a few iterations more. */
	uint32_t missed = cascade_own(&s)->set_length - cascade_own(&s)->left;
	while (s.phase == PHASE_OFF) {
		bool soon = cascade_own(&s)->left <= 4 + missed / 2;
		assert_int_equal(s.unfollowed, !soon);
		missed += s.unfollowed;
		feed(&s, 1, 1000, 1);
	}
	assert_in_range(missed, 12, 24);
	assert_false(s.unfollowed);
}

static void a_drafter_that_may_not_rest_follows_all_the_time(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.rest_at_zero = false;
	uint32_t off = 0;
	for (uint32_t i = 0; i < 300; i++) {
		feed(&s, 1, s.k ? 3000 : 1000, 1);
		off += s.phase == PHASE_OFF;
		assert_false(s.unfollowed);
	}
	assert_true(off > 200);
	/* Nor in a session that begins off. */
	struct policy_state next = {.uid = 8,
		.settings = s.settings,
		.ops = &policy_cascade,
		.passes = &passes,
		.shared = &shared,
		.unfollowed = true};
	shared = (struct cascade_shared){.off_before = 512, .off_left = 300};
	struct verdict verdict = {.decided = false};
	policy_cascade.begin(&next, 0, &verdict);
	assert_int_equal(next.phase, PHASE_OFF);
	assert_false(next.unfollowed);
}

/* Its first draft is waited for until the drafter has read what it missed; that is no part of what K takes. */
static void the_first_iteration_after_a_rest_is_not_part_of_a_trial(void **state)
{
	(void)state;
	for (uint32_t rests = 0; rests < 2; rests++) {
		struct policy_state s = begin(0);
		feed(&s, 4, 1000, 1);
		feed(&s, 12, 2000, 1);
		while (s.phase == PHASE_OFF) {
			struct verdict verdict = {.decided = false};
			struct iteration_record r = {.session = 7,
				.emitted = 1,
				.batch_sessions = 1,
				.iteration_ns = 1000000,
				.unfollowed = rests && s.unfollowed};
			s.ops->observe(&s, &r, &verdict);
		}
		assert_int_equal(s.k, 1);
		assert_int_equal(s.trial_n, 4);
		/* One more has a draft: of their two times the median is the mean. */
		for (uint32_t i = 0; i < 4; i++) {
			struct verdict verdict = {.decided = false};
			struct iteration_record r = {.session = 7,
				.k = 1,
				.depth = i == 0 || i == 3,
				.drafted = i == 0 || i == 3,
				.accepted = i == 3,
				.emitted = 1 + (i == 3),
				.batch_sessions = 1,
				.iteration_ns = i == 0 ? 9000000 : 1000000};
			s.ops->observe(&s, &r, &verdict);
		}
		float all = 5 / 4.0f / 3.0f, but_first = 4 / 3.0f;
		assert_true(fabsf(s.utility - (rests ? but_first : all)) < 1e-3f);
		/* The ones after it are whole. */
		assert_int_equal(s.phase, rests ? PHASE_TEST : PHASE_OFF);
		if (!rests)
			continue;
		feed(&s, 2, 5000, 1);
		feed(&s, 2, 3000, 1);
		assert_true(fabsf(cascade_own(&s)->trials[1].utility - 0.25f) < 1e-3f);
	}
}

static void a_session_that_waits_leaves_time_for_its_prompt_to_be_read(void **state)
{
	(void)state;
	struct policy_state s = {.uid = 8,
		.settings = defaults(),
		.ops = &policy_cascade,
		.passes = &passes,
		.shared = &shared,
		.n_context = 200};
	shared = (struct cascade_shared){.off_before = 512, .off_left = 6};
	struct verdict verdict = {.decided = false};
	policy_cascade.begin(&s, 0, &verdict);
	assert_int_equal(s.phase, PHASE_OFF);
	assert_false(s.unfollowed);
	assert_int_equal(cascade_own(&s)->left, 4 + 200 / 2);
}

static void utilities_within_a_tenth_end_the_test(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 1600, 2);
	assert_int_equal(feed(&s, 4, 1550, 2), 1); /* 1.25 and 1.29 */
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(s.k, 4);
}

static void a_test_has_at_most_m_trials(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 2000, 3); /* K = 3: 1.5 */
	feed(&s, 4, 2000, 4); /* K = 4: 2.0 */
	feed(&s, 4, 2000, 5); /* K = 5: 2.5 */
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 6);
	feed(&s, 4, 2000, 6); /* K = 6: 3.0, the fourth */
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(s.k, 6);
}

static void climbing_stops_at_k_max(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.k_max = 4;
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 2000, 3);
	feed(&s, 4, 2000, 4);
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(s.k, 4);
}

/* K = 3: U = 1.14, more than at K = 0, and 4 may not be tried: back to 2, 1.33, and 1, 1.6. */
static void a_climb_that_begins_at_k_max_turns_back(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.k_max = 3;
	feed(&s, 4, 1000, 1);
	assert_int_equal(s.k, 3);
	feed(&s, 4, 1754, 2);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 2);
	feed(&s, 4, 1504, 2);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 1);
	feed(&s, 4, 1250, 2);
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(s.k, 1);
	/* It paid: nothing "reached 0". */
	assert_string_equal(cascade_own(&s)->ended, "no lower K is left");
}

/* With a threshold below 1: K = 1 has 0.8 and K = 0 more, but K = 2 has not been seen. */
static void a_climb_that_begins_at_k_one_turns_up(void **state)
{
	(void)state;
	struct policy_state s = begin(1);
	s.settings.threshold = 0.5;
	feed(&s, 4, 1000, 1);
	assert_int_equal(s.k, 1);
	feed(&s, 4, 1250, 1);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 2);
	feed(&s, 4, 1500, 1); /* 0.67: back, where nothing is left */
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(s.k, 1);
	assert_string_equal(cascade_own(&s)->ended, "no lower K is left");
}

/* While off: t + S iterations, one trial at K = 1; S doubles each time, up to set_max; a passing
 * trial brings it back. */
static void back_off_doubles_up_to_its_cap_and_falls_back(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.set_max = 128;
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 3000, 1); /* K = 3 */
	feed(&s, 4, 2900, 1); /* K = 2: within a tenth */
	const uint32_t lengths[] = {32, 64, 128, 128};
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		assert_int_equal(s.phase, PHASE_OFF);
		assert_int_equal(cascade_own(&s)->left, lengths[i]);
		feed(&s, lengths[i] - 1, 1000, 1);
		assert_int_equal(s.phase, PHASE_OFF);
		feed(&s, 1, 1000, 1);
		assert_int_equal(s.phase, PHASE_TEST);
		assert_int_equal(s.k, 1);
		feed(&s, 4, i + 1 < sizeof(lengths) / sizeof(lengths[0]) ? 1500 : 1250,
			i + 1 < sizeof(lengths) / sizeof(lengths[0]) ? 1 : 2);
	}
	/* The last probe had utility 1.6: the climb goes on from K = 1. */
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 2);
	feed(&s, 4, 1250, 2);
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(cascade_own(&s)->set_length, 16);
}

static void the_next_test_starts_from_the_best_k_of_history(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 1600, 2); /* 3: 1.25 */
	feed(&s, 4, 2000, 4); /* 4: 2.0 */
	feed(&s, 4, 2000, 4); /* 5: 2.0, close */
	assert_int_equal(s.k, 4);
	feed(&s, 16, 2000, 4);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 4);
}

static void the_baseline_is_measured_again_after_a_hundred_iterations(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	uint32_t since = 0;
	while (s.phase != PHASE_BASELINE && since < 1000) {
		feed(&s, 1, 1000, s.k > 2 ? 3 : 2);
		since++;
	}
	assert_in_range(since, 100, 132);
	assert_int_equal(s.k, 0);
	feed(&s, 4, 800, 1);
	assert_true(base_ns(&s) == 800000);
	assert_int_equal(s.phase, PHASE_TEST);
}

static void iterations_of_an_off_phase_are_the_baseline(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 3000, 1);
	while (s.phase != PHASE_OFF || cascade_own(&s)->left < 256)
		feed(&s, 1, s.k ? 3000 : 1000, 1);
	assert_true(base_ns(&s) == 1000000);
	feed(&s, 100, 700, 1);
	assert_int_equal(s.phase, PHASE_OFF);
	assert_true(base_ns(&s) == 700000);
	assert_int_equal(cascade_age(cascade_of(&s), 1), 0);
}

static void a_set_phase_that_is_longer_than_refresh_measures_the_baseline_in_between(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.set = 1000;
	feed(&s, 4, 1000, 1);
	feed(&s, 8, 1600, 2);
	assert_int_equal(s.phase, PHASE_SET);
	const uint32_t k = s.k;
	uint32_t kept = 0, measured = 0;
	while (s.phase == PHASE_SET || s.phase == PHASE_BASELINE) {
		kept += s.phase == PHASE_SET;
		measured += s.phase == PHASE_BASELINE;
		assert_int_equal(s.k, s.phase == PHASE_SET ? k : 0);
		feed(&s, 1, s.k ? 1600 : 800, s.k ? 2 : 1);
		assert_true(cascade_age(cascade_of(&s), 1) <= 100);
	}
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(kept, 1000);
	assert_in_range(measured, 9 * 4, 10 * 4);
	assert_true(base_ns(&s) == 800000);
	assert_true(fabsf(s.utility - 1) < 1e-4f);
}

static void a_baseline_of_another_batch_size_is_measured_again(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	/* Seven more sessions join: each iteration takes three times as long, which says nothing
	 * about K. */
	for (int i = 0; i < 4; i++) {
		struct verdict verdict = {.decided = false};
		struct iteration_record r = {.session = 7,
			.k = 3,
			.depth = 3,
			.drafted = 3,
			.emitted = 2,
			.accepted = 1,
			.batch_sessions = 8,
			.iteration_ns = 3000000};
		s.ops->observe(&s, &r, &verdict);
	}
	assert_int_equal(s.phase, PHASE_BASELINE);
	for (int i = 0; i < 4; i++) {
		struct verdict verdict = {.decided = false};
		struct iteration_record r = {
			.session = 7, .emitted = 1, .batch_sessions = 8, .iteration_ns = 2500000};
		s.ops->observe(&s, &r, &verdict);
	}
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 3);
	assert_true(base_ns(&s) == 2500000);
}

/* An iteration of a batch in which the others draft `others` tokens: 1 ms a session, 0.3 ms a drafted token, whosever it is. */
static void share(struct policy_state *s, uint32_t sessions, uint32_t others, uint32_t emitted)
{
	struct verdict verdict = {.decided = false};
	static uint64_t pass;
	struct iteration_record r = {.session = s->uid,
		.iteration = ++pass,
		.k = (uint8_t)s->k,
		.depth = (uint8_t)s->k,
		.drafted = (uint16_t)s->k,
		.emitted = (uint8_t)(s->k ? emitted : 1),
		.batch_sessions = (uint16_t)sessions,
		.batch_tokens = sessions + s->k + others,
		.iteration_ns = sessions * 1000000 + (s->k + others) * UINT64_C(300000)};
	r.accepted = (uint8_t)(r.emitted - 1);
	s->ops->observe(s, &r, &verdict);
}

static void what_others_draft_is_not_held_against_a_k_nor_in_its_favour(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	uint32_t drafting = 0;
	/* Nothing is ever accepted: no K has a utility above 1, whatever the others do when. */
	for (uint32_t i = 1; i < 1000; i++) {
		share(&s, 2, i / 6 % 2 ? 0 : 7, 1);
		drafting += s.k > 0;
		assert_true(s.utility < 1);
		assert_int_not_equal(s.phase, PHASE_SET);
	}
	assert_in_range(drafting, 4, 50);
}

/* They choose anew in every pass, so no baseline is of as many tokens as they draft now: the curve carries it over. */
static void a_baseline_is_carried_over_to_what_others_draft_now(void **state)
{
	(void)state;
	for (uint32_t emitted = 1; emitted <= 2; emitted++) {
		uint32_t trials = 0, set = 0;
		struct policy_state s = begin(0);
		passes_init(&passes);
		srand(7);
		for (uint32_t i = 1; i < 2000; i++) {
			uint32_t before = cascade_own(&s)->n_history;
			share(&s, 4, (uint32_t)rand() % 22, emitted);
			set += s.phase == PHASE_SET;
			if (cascade_own(&s)->n_history == before)
				continue;
			/* The mean of the others' tokens: 10.5. */
			struct cascade_result last =
				cascade_own(&s)->history[before % CASCADE_HISTORY];
			double alone = 4 + 0.3 * 10.5, with = alone + 0.3 * last.k;
			assert_true(fabs((double)last.utility * with / alone / emitted - 1) < 0.15);
			trials++;
		}
		assert_true(trials >= 6);
		assert_true(emitted == 1 ? set == 0 : set > 1000);
	}
}

static void every_iteration_is_held_against_a_batch_of_its_own_size(void **state)
{
	(void)state;
	for (uint32_t every = 1; every < 24; every++) {
		struct policy_state s = begin(0);
		uint32_t set = 0;
		for (uint32_t i = 0; i < 1500; i++) {
			uint32_t before = cascade_own(&s)->n_history,
				 sessions = i / every % 2 ? 4 : 1;
			struct verdict verdict = {.decided = false};
			struct iteration_record r = {.session = 7,
				.k = (uint8_t)s.k,
				.depth = (uint8_t)s.k,
				.drafted = (uint16_t)s.k,
				.emitted = s.k ? 2 : 1,
				.accepted = s.k ? 1 : 0,
				.batch_sessions = (uint16_t)sessions,
				.iteration_ns = (sessions == 1 ? 100000 : 250000) * (10 + s.k)};
			s.ops->observe(&s, &r, &verdict);
			set += s.phase == PHASE_SET;
			if (cascade_own(&s)->n_history == before)
				continue;
			struct cascade_result last =
				cascade_own(&s)->history[before % CASCADE_HISTORY];
			assert_true(fabs((double)last.utility * (1 + 0.1 * last.k) / 2 - 1) < 0.01);
		}
		/* And a batch that never stays what it is does not keep it from finding out. */
		assert_true(set > 500);
	}
}

/* A test whose batch becomes another, again and again, of sizes never seen: it ends with what it has found. */
static void a_batch_that_keeps_changing_ends_the_test(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	uint32_t sessions = 1, phases[N_PHASES] = {0};
	for (uint32_t i = 0; i < 60; i++) {
		/* Another with each trial. */
		sessions += s.phase == PHASE_TEST && cascade_own(&s)->left == 4;
		share(&s, sessions, 0, 1);
		phases[s.phase]++;
		assert_true(s.utility < 1 && s.phase != PHASE_SET);
	}
	assert_in_range(phases[PHASE_BASELINE] + phases[PHASE_TEST], 1, 24);
	assert_int_equal(cascade_own(&s)->set_length, s.settings.set);
	assert_string_equal(cascade_own(&s)->ended, "the batch kept changing");
}

/* What K = 0 takes depends on what is resident: after a set phase in which something was not, the baseline is another. */
static void a_baseline_of_other_resident_experts_is_measured_again(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		struct policy_state s = begin(0);
		/* As the paper has it: by age alone. */
		s.settings.refresh_missed = i < 2;
		uint32_t missing = i > 0, misses = i == 1;
		feed(&s, 4, 1000, 1);
		feed(&s, 8, 1600, 2); /* K = 3 and 4, alike */
		assert_int_equal(s.phase, PHASE_SET);
		struct verdict verdict = {.decided = false};
		struct iteration_record missed = {.session = s.uid,
			.k = (uint8_t)s.k,
			.depth = (uint8_t)s.k,
			.drafted = (uint16_t)s.k,
			.emitted = 2,
			.accepted = 1,
			.batch_sessions = 1,
			.iteration_ns = 1600000,
			.expert_hits = 10,
			.expert_misses = missing};
		s.ops->observe(&s, &missed, &verdict);
		feed(&s, 15, 1600, 2);
		assert_int_equal(s.phase, misses ? PHASE_BASELINE : PHASE_TEST);
		feed(&s, misses ? 4 : 0, 700, 1);
		assert_int_equal(s.phase, PHASE_TEST);
		assert_true(base_ns(&s) == (misses ? 700000 : 1000000));
	}
}

/* They count as what they were, whatever phase they were of; and a baseline from before them is old. */
static void lost_iterations_are_part_of_their_phase(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 2, 9000, 1);
	s.lost = 3;
	feed(&s, 3, 1000, 1); /* the baseline, again */
	assert_int_equal(s.phase, PHASE_BASELINE);
	feed(&s, 1, 1000, 1);
	assert_true(base_ns(&s) == 1000000);
	feed(&s, 3, 9000, 2);
	uint32_t trial_id = s.trial_id;
	s.lost = 1;
	feed(&s, 3, 1600, 2); /* the trial, again */
	assert_int_not_equal(s.trial_id, trial_id);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 3);
	feed(&s, 1, 1600, 2);
	assert_true(fabsf(s.utility - 1.25f) < 1e-4f);
	feed(&s, 4, 1600, 2);
	assert_int_equal(s.phase, PHASE_SET);
	s.lost = 10;
	feed(&s, 5, 1600, 2);
	assert_int_equal(s.phase, PHASE_SET);
	feed(&s, 1, 1600, 2);
	assert_int_equal(s.phase, PHASE_BASELINE);
	feed(&s, 4, 1000, 1);
	feed(&s, 12, 3000, 1); /* 3, 2, 1: none pays */
	assert_int_equal(s.phase, PHASE_OFF);
	s.lost = 500;
	feed(&s, 3, 2000, 1);
	assert_int_equal(s.phase, PHASE_OFF);
	feed(&s, 1, 2000, 1);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_true(base_ns(&s) == 2000000);
}

static void what_is_lost_while_a_baseline_is_refreshed_is_of_the_set_phase(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.set = 1000;
	feed(&s, 4, 1000, 1);
	feed(&s, 8, 1600, 2);
	while (s.phase == PHASE_SET)
		feed(&s, 1, 1600, 2);
	uint32_t left = cascade_own(&s)->resume_left;
	feed(&s, 3, 9000, 1);
	s.lost = 500;
	feed(&s, 3, 1000, 1);
	assert_int_equal(s.phase, PHASE_BASELINE);
	feed(&s, 1, 1000, 1);
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(cascade_own(&s)->left, left - 500);
	assert_true(base_ns(&s) == 1000000);
}

/* Where other experts are resident, so were they for every number of tokens that others draft. */
static void no_baseline_from_before_missing_experts_is_carried_over(void **state)
{
	(void)state;
	for (uint32_t by_age = 0; by_age < 2; by_age++) {
		struct policy_state s = begin(0);
		s.settings.refresh_missed = !by_age;
		for (uint32_t i = 0; i < 4; i++)
			share(&s, 2, 5, 1);
		while (s.phase != PHASE_SET)
			share(&s, 2, 5, 2);
		cascade_own(&s)->missed = true;
		while (s.phase == PHASE_SET)
			share(&s, 2, 5, 2);
		assert_int_equal(s.phase, by_age ? PHASE_TEST : PHASE_BASELINE);
		while (s.phase == PHASE_BASELINE)
			share(&s, 2, 0, 1);
		struct iteration_record like = {
			.batch_sessions = 2, .batch_tokens = 2 + 5, .iteration_ns = 1};
		struct cascade_base base;
		cascade_own(&s)->others = cascade_others(&like);
		assert_true(cascade_base(&s, &base));
		assert_int_equal(base.others, by_age ? 5 : 0);
	}
}

static void one_slow_iteration_does_not_decide_a_trial(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	feed(&s, 1, 50000, 2);
	feed(&s, 3, 1600, 2);
	assert_true(fabsf(s.utility - 1.25f) < 1e-4f);
}

static void records_of_the_previous_k_are_not_counted(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	struct verdict verdict = {.decided = false};
	struct iteration_record late = {
		.session = 7, .k = 0, .emitted = 1, .batch_sessions = 1, .iteration_ns = 1000000};
	s.ops->observe(&s, &late, &verdict);
	assert_int_equal(cascade_own(&s)->left, 4);
	assert_int_equal(feed(&s, 3, 1600, 2), 0);
	assert_int_equal(feed(&s, 1, 1600, 2), 1);
}

static void records_from_before_a_trial_never_count_for_it(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.decision = 1;
	feed(&s, 4, 1000, 1);
	s.decision = 2;
	assert_int_equal(s.trial_k, s.settings.k_start);
	struct verdict verdict = {.decided = false};
	/* Far more than `late`: on a small model a hundred iterations lie between two looks. */
	struct iteration_record older = {.session = 7,
		.decision = 1,
		.k = 2,
		.depth = 2,
		.drafted = 2,
		.emitted = 1,
		.batch_sessions = 1,
		.iteration_ns = 9000000};
	for (int64_t i = 0; i < 4 * s.settings.late; i++)
		s.ops->observe(&s, &older, &verdict);
	assert_false(verdict.decided);
	assert_int_equal(cascade_own(&s)->left, s.settings.trial);
	assert_int_equal(cascade_own(&s)->window.n, 0);
	for (int i = 0; i < 4; i++) {
		struct iteration_record r = {.session = 7,
			.decision = 2,
			.k = (uint8_t)s.settings.k_start,
			.depth = (uint8_t)s.settings.k_start,
			.drafted = (uint16_t)s.settings.k_start,
			.accepted = 1,
			.emitted = 2,
			.batch_sessions = 1,
			.iteration_ns = 1600000};
		s.ops->observe(&s, &r, &verdict);
	}
	assert_true(verdict.decided);
	assert_int_equal(cascade_own(&s)->trials[0].k, s.settings.k_start);
	assert_true(fabsf(cascade_own(&s)->trials[0].utility - 1.25f) < 1e-4f);
}

static void while_a_trials_records_are_waited_for_k_is_what_paid(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	assert_int_equal(s.k_then, 0); /* of nothing is it known that it pays */
	feed(&s, 4, 1000, 2);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k_then, s.settings.k_start);
	while (s.phase != PHASE_SET)
		feed(&s, 4, 2000, 2);
	uint32_t kept = s.k;
	feed(&s, (uint32_t)s.settings.set, 1000, 2);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k_then, kept);
	/* In a set phase that did not pay it is 0. */
	while (s.phase != PHASE_SET)
		feed(&s, 4, 1900, 2);
	feed(&s, (uint32_t)s.settings.set, 3000, 2);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k_then, 0);
}

static void a_k_the_verifier_keeps_cutting_counts_in_the_end(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	feed(&s, 4, 1000, 1);
	uint32_t decided = 0;
	for (int i = 0; i < 40; i++) {
		struct verdict verdict = {.decided = false};
		struct iteration_record r = {.session = 7,
			.k = 2,
			.depth = 2,
			.drafted = 2,
			.emitted = 1,
			.batch_sessions = 1,
			.iteration_ns = 1500000};
		s.ops->observe(&s, &r, &verdict);
		decided += verdict.decided;
	}
	assert_true(decided >= 1);
}

static void an_earlier_controllers_k_is_where_the_search_starts(void **state)
{
	(void)state;
	struct policy_state s = begin(6);
	feed(&s, 4, 1000, 1);
	assert_int_equal(s.k, 6);
}

static void what_did_not_pay_in_the_session_before_waits_and_is_probed(void **state)
{
	(void)state;
	struct policy_state s = {.uid = 8,
		.settings = defaults(),
		.ops = &policy_cascade,
		.passes = &passes,
		.shared = &shared};
	shared = (struct cascade_shared){.off_before = 512, .off_left = 64};
	struct verdict verdict = {.decided = false};
	policy_cascade.begin(&s, 0, &verdict);
	assert_int_equal(s.phase, PHASE_OFF);
	assert_int_equal(feed(&s, 63, 1000, 1), 0);
	assert_int_equal(s.k, 0);
	feed(&s, 1, 1000, 1);
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 1);
	feed(&s, 4, 1000, 2); /* utility 2: it pays here */
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 2);
}

static void what_paid_in_the_session_before_is_where_the_search_starts(void **state)
{
	(void)state;
	struct policy_state s = {.uid = 9,
		.settings = defaults(),
		.ops = &policy_cascade,
		.passes = &passes,
		.shared = &shared};
	shared = (struct cascade_shared){.k_before = 5};
	struct verdict verdict = {.decided = false};
	policy_cascade.begin(&s, 0, &verdict);
	assert_int_equal(s.phase, PHASE_BASELINE);
	feed(&s, 4, 1000, 1);
	assert_int_equal(s.k, 5);
}

/* 2000 iterations of random sessions: where speculation pays, Cascade earns most of what the
 * best K would; where it does not, it loses little. */
static void cascade_is_near_the_best_k_on_simulated_sessions(void **state)
{
	(void)state;
	for (uint32_t seed = 0; seed < 60; seed++) {
		srand(seed);
		double p = 0.05 + 0.9 * (rand() % 1000) / 1000.0;
		double cost = 0.02 + 0.6 * (rand() % 1000) / 1000.0;
		struct simulated sim = simulated_make(1, 0, p, cost);
		struct policy_state s = begin(0);
		sim.jitter_ms = seed % 2 ? 3 : 0;
		double tokens = 0, ms = 0;
		for (int i = 0; i < 2000; i++) {
			struct verdict verdict = {.decided = false};
			struct iteration_record r = simulated_step(&sim, s.k);
			tokens += r.emitted;
			ms += sim.base_ms * (1 + cost * s.k);
			assert_true(s.k <= s.settings.k_max);
			s.ops->observe(&s, &r, &verdict);
		}
		uint32_t best = simulated_best_k(&sim, (uint32_t)s.settings.k_max);
		double got = tokens / (ms / sim.base_ms);
		/* The worst of these sessions is at 0.89; at K = 0 utility is 1 by definition. */
		assert_true(got > 0.87 * simulated_utility(&sim, best));
	}
}

static void phases_of_a_session_are_followed(void **state)
{
	(void)state;
	struct simulated good = simulated_make(1, 0, 0.9, 0.1),
			 bad = simulated_make(1, 0, 0.05, 0.5);
	struct policy_state s = begin(0);
	struct verdict verdict = {.decided = false};
	for (int i = 0; i < 300; i++) {
		struct iteration_record r = simulated_step(&bad, s.k);
		s.ops->observe(&s, &r, &verdict);
	}
	assert_int_equal(s.phase == PHASE_OFF || s.k <= 1, 1);
	for (int i = 0; i < 600; i++) {
		struct iteration_record r = simulated_step(&good, s.k);
		s.ops->observe(&s, &r, &verdict);
	}
	assert_true(s.phase == PHASE_BASELINE || s.k >= 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(first_iterations_measure_the_baseline_then_k_start_is_tried),
		TEST(climbing_goes_on_in_the_direction_that_raised_utility),
		TEST(falling_utility_turns_back_and_two_falls_end_the_test),
		TEST(utility_below_one_goes_down_and_turns_off_at_k_one),
		TEST(a_delayed_iteration_moves_means_and_not_medians),
		TEST(the_rest_at_zero_while_it_is_off_and_catches_up_before_the_next_trial),
		TEST(a_drafter_that_may_not_rest_follows_all_the_time),
		TEST(the_first_iteration_after_a_rest_is_not_part_of_a_trial),
		TEST(a_session_that_waits_leaves_time_for_its_prompt_to_be_read),
		TEST(utilities_within_a_tenth_end_the_test),
		TEST(a_test_has_at_most_m_trials),
		TEST(climbing_stops_at_k_max),
		TEST(a_climb_that_begins_at_k_max_turns_back),
		TEST(a_climb_that_begins_at_k_one_turns_up),
		TEST(back_off_doubles_up_to_its_cap_and_falls_back),
		TEST(the_next_test_starts_from_the_best_k_of_history),
		TEST(the_baseline_is_measured_again_after_a_hundred_iterations),
		TEST(iterations_of_an_off_phase_are_the_baseline),
		TEST(a_set_phase_that_is_longer_than_refresh_measures_the_baseline_in_between),
		TEST(a_baseline_of_another_batch_size_is_measured_again),
		TEST(what_others_draft_is_not_held_against_a_k_nor_in_its_favour),
		TEST(a_baseline_is_carried_over_to_what_others_draft_now),
		TEST(every_iteration_is_held_against_a_batch_of_its_own_size),
		TEST(a_batch_that_keeps_changing_ends_the_test),
		TEST(a_baseline_of_other_resident_experts_is_measured_again),
		TEST(lost_iterations_are_part_of_their_phase),
		TEST(what_is_lost_while_a_baseline_is_refreshed_is_of_the_set_phase),
		TEST(no_baseline_from_before_missing_experts_is_carried_over),
		TEST(one_slow_iteration_does_not_decide_a_trial),
		TEST(records_of_the_previous_k_are_not_counted),
		TEST(records_from_before_a_trial_never_count_for_it),
		TEST(while_a_trials_records_are_waited_for_k_is_what_paid),
		TEST(a_k_the_verifier_keeps_cutting_counts_in_the_end),
		TEST(an_earlier_controllers_k_is_where_the_search_starts),
		TEST(what_did_not_pay_in_the_session_before_waits_and_is_probed),
		TEST(what_paid_in_the_session_before_is_where_the_search_starts),
		TEST(cascade_is_near_the_best_k_on_simulated_sessions),
		TEST(phases_of_a_session_are_followed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
