/* What rows, experts and missing experts cost, from the times of passes. */
#include "services/policy-controller/estimates/prices.h"

#include <stdint.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static double noise(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (double)(*seed >> 40) / (1 << 24);
}

static void passes_of_all_kinds_tell_the_prices_apart(void **state)
{
	struct prices prices;
	double out[PRICES_TERMS];
	uint64_t seed = 3;

	(void)state;
	prices_init(&prices);
	assert_false(prices_get(&prices, out));
	for (int i = 0; i < 1000; i++) {
		double rows = 1 + (double)(int)(noise(&seed) * 16);
		double experts = 40 + rows * 15 * noise(&seed), missing = experts * noise(&seed);
		double ns = 1e6 + 20e3 * rows + 5e3 * experts + 30e3 * missing;

		prices_observe(&prices, rows, experts, missing, ns * (0.95 + noise(&seed) / 10));
	}
	assert_true(prices_get(&prices, out));
	assert_true(out[0] > 5e3 && out[0] < 40e3);
	assert_true(out[1] > 3e3 && out[1] < 8e3);
	assert_true(out[2] > 27e3 && out[2] < 33e3);
}

/* At K = 0 with everything resident nothing varies: the prior says that experts are what costs. */
static void without_variation_the_prior_decides(void **state)
{
	struct prices prices;
	double out[PRICES_TERMS];

	(void)state;
	prices_init(&prices);
	for (int i = 0; i < 100; i++)
		prices_observe(&prices, 1, 48, 0, 1e6);
	assert_true(prices_get(&prices, out));
	assert_true(out[0] > 0 && out[0] < out[1] * 48);
	assert_true(out[1] * 48 < 1e6);
	assert_true(out[2] > out[1]);
	/* A dense model has no experts to price. */
	prices_init(&prices);
	for (int i = 0; i < 100; i++)
		prices_observe(&prices, 1 + i % 4, 0, 0, 1e6 + 1e5 * (i % 4));
	assert_true(prices_get(&prices, out));
	assert_true(out[0] > 0.8e5 && out[0] < 1.2e5);
	assert_true(out[1] <= 0 && out[2] <= 0);
}

/* More rows that take less time make no row cheaper than nothing; a wild sample moves little. */
static void prices_are_never_negative(void **state)
{
	struct prices prices;
	double out[PRICES_TERMS];

	(void)state;
	prices_init(&prices);
	for (int i = 0; i < 500; i++)
		prices_observe(&prices, 1 + i % 8, 50 + i % 8, i % 3, 1e6 - 5e4 * (i % 8));
	assert_true(prices_get(&prices, out));
	for (int i = 0; i < PRICES_TERMS; i++)
		assert_true(out[i] >= 0);
	prices_observe(&prices, 1, 50, 0, 0);
	prices_observe(&prices, 1, 50, 0, -5);
	assert_true(prices_get(&prices, out));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(passes_of_all_kinds_tell_the_prices_apart),
		cmocka_unit_test(without_variation_the_prior_decides),
		cmocka_unit_test(prices_are_never_negative),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
