/* What a key may ask for: buckets that fill, requests at a time, tokens that overdraw. */
#include "services/gateway/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define S UINT64_C(1000000000)

static void no_limit_is_never_met(void **state)
{
	const struct limits none = {0};
	struct allowance left = {0};
	double retry_s;

	(void)state;
	for (int i = 0; i < 10000; i++)
		assert_int_equal(limits_begin(&none, &left, S, &retry_s), LIMITS_NONE);
	limits_take_tokens(&left, 1000000);
	assert_int_equal(limits_begin(&none, &left, S, &retry_s), LIMITS_NONE);
}

static void a_minute_of_requests_may_come_at_once(void **state)
{
	const struct limits limits = {.requests_per_minute = 6};
	struct allowance left = {0};
	double retry_s = 0;

	(void)state;
	for (int i = 0; i < 6; i++)
		assert_int_equal(limits_begin(&limits, &left, S, &retry_s), LIMITS_NONE);
	assert_int_equal(limits_begin(&limits, &left, S, &retry_s), LIMITS_REQUESTS);
	assert_true(retry_s > 9.99 && retry_s < 10.01);
	assert_int_equal(limits_begin(&limits, &left, 10 * S, &retry_s), LIMITS_REQUESTS);
	assert_true(retry_s > 0.99 && retry_s < 1.01);
	assert_int_equal(limits_begin(&limits, &left, 11 * S + S / 100, &retry_s), LIMITS_NONE);
	assert_int_equal(limits_begin(&limits, &left, 11 * S + S / 50, &retry_s), LIMITS_REQUESTS);
	/* It never holds more than a minute's. */
	for (int i = 0; i < 6; i++)
		assert_int_equal(limits_begin(&limits, &left, 9999 * S, &retry_s), LIMITS_NONE);
	assert_int_equal(limits_begin(&limits, &left, 9999 * S, &retry_s), LIMITS_REQUESTS);
}

static void so_many_at_a_time(void **state)
{
	const struct limits limits = {.concurrent = 2};
	struct allowance left = {0};
	double retry_s = 0;

	(void)state;
	assert_int_equal(limits_begin(&limits, &left, S, &retry_s), LIMITS_NONE);
	assert_int_equal(limits_begin(&limits, &left, S, &retry_s), LIMITS_NONE);
	assert_int_equal(limits_begin(&limits, &left, S, &retry_s), LIMITS_CONCURRENT);
	assert_true(retry_s > 0);
	limits_end(&left);
	assert_int_equal(limits_begin(&limits, &left, S, &retry_s), LIMITS_NONE);
}

/* An answer that takes more tokens than there are is finished; the debt is waited for. */
static void tokens_are_overdrawn_and_paid_back(void **state)
{
	const struct limits limits = {.tokens_per_minute = 60};
	struct allowance left = {0};
	double retry_s = 0;

	(void)state;
	assert_int_equal(limits_begin(&limits, &left, S, &retry_s), LIMITS_NONE);
	limits_take_tokens(&left, 100);
	limits_end(&left);
	assert_int_equal(limits_begin(&limits, &left, S, &retry_s), LIMITS_TOKENS);
	assert_true(retry_s > 40.99 && retry_s < 41.01);
	assert_int_equal(limits_begin(&limits, &left, 41 * S, &retry_s), LIMITS_TOKENS);
	assert_int_equal(limits_begin(&limits, &left, 42 * S + S / 100, &retry_s), LIMITS_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_limit_is_never_met),
		cmocka_unit_test(a_minute_of_requests_may_come_at_once),
		cmocka_unit_test(so_many_at_a_time),
		cmocka_unit_test(tokens_are_overdrawn_and_paid_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
