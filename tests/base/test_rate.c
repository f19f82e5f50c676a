/* shared/base/rate: tokens per second of the last ten seconds. */
#include "shared/base/rate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TICK UINT64_C(250000000)
#define SECOND UINT64_C(1000000000)

static void nothing_is_known_before_the_first_sample(void **state)
{
	const struct rate rate = {.n = 0};

	(void)state;
	uint64_t ns = 1;

	assert_int_equal(rate_grown(&rate, SECOND, 100, &ns), 0);
	assert_int_equal(ns, 0);
}

static void a_steady_rate_is_found(void **state)
{
	struct rate rate = {.n = 0};

	(void)state;
	for (uint64_t i = 1; i <= 1000; i++)
		rate_note(&rate, i * TICK, i * 5);
	uint64_t ns, grown = rate_grown(&rate, 1000 * TICK, 5000, &ns);

	assert_true(ns > 9 * SECOND && ns <= 10 * SECOND);
	assert_int_equal(grown, ns / TICK * 5);
}

static void what_was_long_ago_does_not_count(void **state)
{
	struct rate rate = {.n = 0};

	(void)state;
	for (uint64_t i = 1; i <= 40; i++)
		rate_note(&rate, i * TICK, i * 100);
	for (uint64_t i = 41; i <= 81; i++)
		rate_note(&rate, i * TICK, 4000);
	uint64_t ns;

	assert_int_equal(rate_grown(&rate, 81 * TICK, 4000, &ns), 0);
	assert_true(ns > 9 * SECOND);
	/* A loop that stood still for a minute: its samples are too old. */
	assert_int_equal(rate_grown(&rate, 81 * TICK + 60 * SECOND, 9000, &ns), 0);
	assert_int_equal(ns, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_known_before_the_first_sample),
		cmocka_unit_test(a_steady_rate_is_found),
		cmocka_unit_test(what_was_long_ago_does_not_count),
	};

	return cmocka_run_group_tests_name("rate", tests, NULL, NULL);
}
