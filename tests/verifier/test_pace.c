#include "services/verifier/pass/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { US = 1000, MS = 1000000 };

/* A session whose drafts take and bring that, measured often. */
static struct pace pace_of(uint64_t ns, uint32_t yield)
{
	struct pace pace = {0};

	for (int i = 0; i < 40; i++) {
		pace_took(&pace, ns);
		pace_yielded(&pace, yield);
	}
	return pace;
}

static void times_and_yields_follow_what_is_measured(void **state)
{
	struct pace pace = {0};

	(void)state;
	assert_true(pace_limit_ns(&pace) == UINT64_MAX);
	pace = pace_of(2 * MS, 3);
	assert_in_range(pace.mean_ns, 2 * MS - 10, 2 * MS);
	assert_in_range(pace_limit_ns(&pace), 2 * MS - 10, 2 * MS + 100 * US);
	assert_true(pace.yield > 2.9f && pace.yield <= 3);
	for (int i = 0; i < 40; i++)
		pace_took(&pace, i % 2 ? 2 * MS : 4 * MS);
	assert_in_range(pace.mean_ns, 5 * MS / 2, 7 * MS / 2);
	assert_in_range(pace_limit_ns(&pace), 6 * MS, 9 * MS);
	for (int i = 0; i < 40; i++)
		pace_yielded(&pace, 0);
	assert_true(pace.yield < 0.1f);
}

static void where_nobody_is_ready_the_pass_waits(void **state)
{
	uint64_t limit_ns;
	struct pace_wait wait;
	struct pace poor = pace_of(5 * MS, 0), fresh = {0};

	(void)state;
	/* Whether drafts pay is the policy's affair: it asked. */
	pace_wait_init(&wait, MS, 50 * MS);
	uint32_t group = pace_wait_add(&wait, &poor, 0);
	assert_true(pace_wait_choose(&wait, &limit_ns) > group);
	assert_in_range(limit_ns, 5 * MS - 10, 6 * MS);
	/* Nothing measured: as long as it may. */
	pace_wait_init(&wait, 0, 50 * MS);
	group = pace_wait_add(&wait, &fresh, 0);
	assert_true(pace_wait_choose(&wait, &limit_ns) > group);
	assert_true(limit_ns == 50 * MS);
	/* It is known to take longer than that: it is no use. */
	poor = pace_of(60 * MS, 7);
	pace_wait_init(&wait, MS, 50 * MS);
	pace_wait_add(&wait, &poor, 0);
	assert_int_equal(pace_wait_choose(&wait, &limit_ns), 0);
	assert_int_equal(limit_ns, 0);
}

static void quick_drafts_are_waited_for_and_slow_ones_delay_nobody(void **state)
{
	struct pace quick = pace_of(20 * US, 3), slow = pace_of(8 * MS, 3);
	uint32_t quick_group, slow_group, chosen;
	struct pace_wait wait;
	uint64_t limit_ns;

	(void)state;
	/* Others at K = 0, a pass of 1 ms. */
	pace_wait_init(&wait, MS, 50 * MS);
	pace_wait_ready(&wait, 3);
	quick_group = pace_wait_add(&wait, &quick, 0);
	slow_group = pace_wait_add(&wait, &slow, 0);
	chosen = pace_wait_choose(&wait, &limit_ns);
	assert_true(quick_group < chosen && chosen <= slow_group);
	assert_true(limit_ns < 100 * US);
	/* The slow one among others at K = 0 alone: nobody waits. */
	pace_wait_init(&wait, MS, 50 * MS);
	pace_wait_ready(&wait, 3);
	pace_wait_add(&wait, &slow, 0);
	assert_int_equal(pace_wait_choose(&wait, &limit_ns), 0);
	assert_int_equal(limit_ns, 0);
	/* A gain that is hardly one is none. */
	pace_wait_init(&wait, 2 * MS, 50 * MS);
	pace_wait_ready(&wait, 1);
	for (int i = 0; i < 7; i++)
		slow_group = pace_wait_add(&wait, &slow, 0);
	assert_true(pace_wait_choose(&wait, &limit_ns) > slow_group);
	/* And where nobody goes on without a draft, the pass waits for the quick ones. */
	pace_wait_init(&wait, MS, 50 * MS);
	quick_group = pace_wait_add(&wait, &quick, 0);
	slow_group = pace_wait_add(&wait, &slow, 0);
	chosen = pace_wait_choose(&wait, &limit_ns);
	assert_true(quick_group < chosen && chosen <= slow_group);
	/* Drafts of about the same time are waited for together. */
	pace_wait_init(&wait, MS, 50 * MS);
	for (uint64_t i = 0; i < 8; i++) {
		struct pace some = pace_of((400 + 40 * i) * US, 3);

		slow_group = pace_wait_add(&wait, &some, 0);
	}
	assert_true(pace_wait_choose(&wait, &limit_ns) > slow_group);
	assert_true(limit_ns >= 680 * US);
}

static void a_draft_that_is_late_is_not_waited_for_again(void **state)
{
	struct pace pace = pace_of(MS, 3);
	struct pace_wait wait;
	uint64_t limit_ns;

	(void)state;
	pace_wait_init(&wait, MS / 2, 50 * MS);
	pace_wait_ready(&wait, 1);
	pace_wait_add(&wait, &pace, 20 * MS);
	assert_int_equal(pace_wait_choose(&wait, &limit_ns), 0);
}

static void a_late_session_sits_out_where_its_draft_brings_more_than_the_passes_without_it(
	void **state)
{
	struct pace rich = pace_of(MS, 5), poor = pace_of(MS, 1), fresh = {0};

	(void)state;
	/* It comes within the pass: one pass for six tokens in the next. */
	assert_true(pace_sits_out(&rich, 100 * US, 4 * MS));
	assert_false(pace_sits_out(&poor, 100 * US, 4 * MS));
	/* It needs ten passes. */
	assert_false(pace_sits_out(&rich, 0, 100 * US));
	/* Nobody sits out for good: the longer it takes, the longer it is expected to take. */
	assert_true(pace_sits_out(&rich, 4 * MS, 4 * MS));
	assert_false(pace_sits_out(&rich, 40 * MS, 4 * MS));
	assert_false(pace_sits_out(&fresh, 0, MS));
	assert_false(pace_sits_out(&rich, 0, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(times_and_yields_follow_what_is_measured),
		cmocka_unit_test(where_nobody_is_ready_the_pass_waits),
		cmocka_unit_test(quick_drafts_are_waited_for_and_slow_ones_delay_nobody),
		cmocka_unit_test(a_draft_that_is_late_is_not_waited_for_again),
		cmocka_unit_test(
			a_late_session_sits_out_where_its_draft_brings_more_than_the_passes_without_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
