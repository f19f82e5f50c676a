/* Knobs of cascade, changed while it is at something: each is in force at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/policy-controller/cascade_session.h"

#include <math.h>

/* What a change of knobs makes of the session at once. Whether something was decided. */
static bool change(struct policy_state *s, const struct settings *settings)
{
	const struct settings before = s->settings;
	struct verdict verdict = {.decided = false};
	assert_int_equal(settings_check(settings, NULL), 0);
	s->settings = *settings;
	s->ops->adjust(s, &before, &verdict);
	return verdict.decided;
}

static void a_change_of_nothing_changes_nothing(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	for (uint32_t i = 0; i < 400; i++) {
		struct policy_state before = s;
		assert_false(change(&s, &before.settings));
		assert_memory_equal(&s, &before, sizeof(s));
		feed(&s, 1, 1000 + s.k * (i < 200 ? 100 : 900), s.k ? 2 : 1);
	}
}

static void another_set_is_the_length_of_the_phase_that_runs(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	struct settings settings = s.settings;
	settings.set = 4096;
	settings.set_max = 65536;
	change(&s, &settings);
	feed(&s, 4, 1000, 1);
	feed(&s, 8, 1600, 2);
	assert_int_equal(s.phase, PHASE_SET);
	assert_int_equal(cascade_own(&s)->left, 4096);
	feed(&s, 10, 1600, 2);
	settings.set = 100;
	assert_false(change(&s, &settings));
	assert_int_equal(cascade_own(&s)->left, 90);
	settings.set = 16;
	assert_false(change(&s, &settings));
	assert_int_equal(cascade_own(&s)->left, 6);
	settings.set = 10;
	assert_true(change(&s, &settings));
	assert_int_equal(s.phase, PHASE_TEST);
	/* Off, S goes on being as many times as long. */
	feed(&s, 8, 4000, 1);
	assert_int_equal(s.phase, PHASE_OFF);
	assert_int_equal(cascade_own(&s)->left, 20);
	feed(&s, 5, 1000, 1);
	settings.set = 30;
	assert_false(change(&s, &settings));
	assert_int_equal(cascade_own(&s)->set_length, 60);
	assert_int_equal(cascade_own(&s)->left, 55);
}

static void another_set_is_that_of_a_phase_whose_baseline_is_measured(void **state)
{
	(void)state;
	for (int64_t set = 300; set > 0; set -= 250) {
		struct policy_state s = begin(0);
		s.settings.set = 1000;
		feed(&s, 4, 1000, 1);
		feed(&s, 8, 1600, 2);
		while (s.phase == PHASE_SET)
			feed(&s, 1, 1600, 2);
		uint32_t over = 1000 - cascade_own(&s)->resume_left;
		assert_in_range(over, 80, 100);
		struct settings settings = s.settings;
		settings.set = set;
		change(&s, &settings);
		feed(&s, 4, 1000, 1);
		assert_int_equal(s.phase, set == 300 ? PHASE_SET : PHASE_TEST);
		if (set == 300)
			assert_int_equal(cascade_own(&s)->left, 300 - over);
	}
}

static void another_set_max_ends_an_off_phase_that_is_longer(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	struct settings settings = s.settings;
	feed(&s, 4, 1000, 1);
	while (s.phase != PHASE_OFF || cascade_own(&s)->set_length < 512)
		feed(&s, 1, s.k ? 3000 : 1000, 1);
	feed(&s, 100, 1000, 1);
	settings.set_max = 256;
	assert_false(change(&s, &settings));
	assert_int_equal(cascade_own(&s)->left, 156);
	settings.set_max = 64;
	assert_true(change(&s, &settings));
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 1);
	feed(&s, 4, 3000, 1);
	assert_int_equal(cascade_own(&s)->left, 64);
}

static void another_trial_is_the_length_of_the_one_that_runs(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.trial = 64;
	struct settings settings = s.settings;
	feed(&s, 4, 1000, 1);
	feed(&s, 10, 1600, 2);
	uint32_t id = s.trial_id;
	settings.trial = 12;
	assert_false(change(&s, &settings));
	assert_int_equal(s.trial_n, 12);
	assert_int_equal(s.trial_id, id);
	assert_int_equal(cascade_own(&s)->left, 2);
	settings.trial = 4;
	assert_true(change(&s, &settings));
	assert_int_equal(s.k, 4);
	assert_int_equal(s.trial_n, 4);
	assert_true(fabsf(s.utility - 1.25f) < 1e-4f);
}

static void another_baseline_is_the_length_of_the_one_that_runs(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.baseline = 64;
	struct settings settings = s.settings;
	struct verdict verdict = {.decided = false};
	s.ops->begin(&s, 0, &verdict);
	feed(&s, 10, 1000, 1);
	settings.baseline = 13;
	assert_false(change(&s, &settings));
	assert_int_equal(cascade_own(&s)->left, 3);
	settings.baseline = 5;
	assert_true(change(&s, &settings));
	assert_int_equal(s.phase, PHASE_TEST);
	assert_true(base_ns(&s) == 1000000);
}

static void another_refresh_is_that_of_the_phase_that_runs(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	s.settings.set = 1000;
	s.settings.refresh = 1000;
	struct settings settings = s.settings;
	feed(&s, 4, 1000, 1);
	feed(&s, 8, 1600, 2);
	feed(&s, 150, 1600, 2);
	assert_int_equal(s.phase, PHASE_SET);
	settings.refresh = 100;
	change(&s, &settings);
	feed(&s, 1, 1600, 2);
	assert_int_equal(s.phase, PHASE_BASELINE);
	feed(&s, 4, 1000, 1);
	assert_int_equal(s.phase, PHASE_SET);
}

static void another_threshold_turns_on_and_off(void **state)
{
	(void)state;
	struct policy_state s = begin(0);
	struct settings settings = s.settings;
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 1600, 2);
	assert_int_equal(s.k_then, 3); /* 1.25 */
	settings.threshold = 1.3;
	change(&s, &settings);
	assert_int_equal(s.k_then, 0);
	settings.threshold = 1.2;
	change(&s, &settings);
	assert_int_equal(s.k_then, 3);
	feed(&s, 4, 1600, 2);
	assert_int_equal(s.phase, PHASE_SET);
	feed(&s, 2, 1600, 2);
	settings.threshold = 1.26;
	assert_true(change(&s, &settings));
	assert_int_equal(s.phase, PHASE_OFF);
	assert_int_equal(s.k, 0);
	assert_int_equal(cascade_own(&s)->left, 32);
	settings.threshold = 1;
	assert_true(change(&s, &settings));
	assert_int_equal(s.phase, PHASE_TEST);
	assert_int_equal(s.k, 1);
	/* What the phase has shown counts, not what the test had found. */
	feed(&s, 4, 1600, 2);
	feed(&s, 4, 1600, 2);
	assert_int_equal(s.phase, PHASE_SET);
	feed(&s, 8, 1000, 2);
	settings.threshold = 1.9;
	assert_false(change(&s, &settings));
	assert_int_equal(s.phase, PHASE_SET);
}

static void what_a_test_found_above_k_max_is_not_gone_back_to(void **state)
{
	(void)state;
	struct policy_state s = begin(4);
	struct settings settings = s.settings;
	feed(&s, 4, 1000, 1);
	feed(&s, 4, 1000, 3); /* 4: 3 */
	feed(&s, 4, 2000, 3); /* 5: 1.5 */
	assert_int_equal(s.k, 3);
	assert_int_equal(s.k_then, 4);
	settings.k_max = 3;
	change(&s, &settings);
	assert_int_equal(s.k_then, 0);
	feed(&s, 4, 1250, 1); /* 0.8 */
	feed(&s, 4, 1250, 1);
	assert_int_not_equal(s.phase, PHASE_SET);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_change_of_nothing_changes_nothing),
		TEST(another_set_is_the_length_of_the_phase_that_runs),
		TEST(another_set_is_that_of_a_phase_whose_baseline_is_measured),
		TEST(another_set_max_ends_an_off_phase_that_is_longer),
		TEST(another_trial_is_the_length_of_the_one_that_runs),
		TEST(another_baseline_is_the_length_of_the_one_that_runs),
		TEST(another_refresh_is_that_of_the_phase_that_runs),
		TEST(another_threshold_turns_on_and_off),
		TEST(what_a_test_found_above_k_max_is_not_gone_back_to),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
