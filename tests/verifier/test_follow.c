#include "services/verifier/pass/follow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Every combination of what is known, from every state. */
static void each_state_comes_from_what_is_known_alone(void **state)
{
	(void)state;
	for (int from = FOLLOW_OFF; from <= FOLLOW_ASKED; from++) {
		for (uint32_t bits = 0; bits < 32; bits++) {
			struct follow_view v = {bits & 1, bits & 2, bits & 4, bits & 8, bits & 16};
			struct follow f = {(enum follow_state)from, 100};
			enum follow_state expected =
				!v.allowed ? FOLLOW_OFF
				: v.hints  ? (v.foresight ? FOLLOW_CLOSE_LEARNING : FOLLOW_CLOSE)
				: v.drafts && !v.unfollowed
					? (v.foresight ? FOLLOW_LEARNING : FOLLOW_LOOSE)
					: FOLLOW_OFF;

			follow_pass(&f, &v, 101);
			assert_int_equal(f.state, expected);
			assert_int_equal(follow_on(&f), expected != FOLLOW_OFF);
			assert_int_equal(follow_learns(&f), follow_on(&f) && v.foresight);
			follow_ask(&f, 102);
			assert_int_equal(f.state, FOLLOW_ASKED);
			assert_int_equal(f.n_tokens, 102);
			assert_true(follow_on(&f) && !follow_learns(&f));
		}
	}
}

/* How often the drafter is told while a session goes from one token to n. */
static uint32_t told(struct follow *f, const struct follow_view *view, uint32_t from, uint32_t to)
{
	uint32_t n = 0;

	for (uint32_t n_tokens = from; n_tokens < to; n_tokens++)
		n += follow_pass(f, view, n_tokens);
	return n;
}

static void the_drafter_is_told_as_often_as_the_state_says(void **state)
{
	const struct follow_view loose = {.allowed = true, .drafts = true},
				 close = {.allowed = true, .hints = true},
				 off = {.allowed = true, .drafts = true, .unfollowed = true};
	struct follow f = {0};

	(void)state;
	/* At once, then every sixteenth token. */
	assert_int_equal(told(&f, &loose, 10, 11), 1);
	assert_int_equal(told(&f, &loose, 11, 26), 0);
	assert_int_equal(told(&f, &loose, 26, 27), 1);
	assert_int_equal(told(&f, &loose, 27, 27 + 160), 10);
	assert_int_equal(told(&f, &close, 187, 200), 13);
	assert_int_equal(told(&f, &off, 200, 300), 0);
	/* What it was told before counts when it follows again. */
	assert_int_equal(f.n_tokens, 199);
	assert_int_equal(told(&f, &loose, 300, 301), 1);
	/* A request for a draft tells it too. */
	follow_ask(&f, 301);
	assert_int_equal(told(&f, &loose, 302, 317), 0);
	assert_int_equal(told(&f, &loose, 317, 318), 1);
}

/* A session that is computed again from its beginning is not told twice of what the drafter has. */
static void the_same_tokens_are_not_told_again(void **state)
{
	const struct follow_view close = {.allowed = true, .hints = true};
	struct follow f = {0};

	(void)state;
	assert_true(follow_pass(&f, &close, 50));
	assert_false(follow_pass(&f, &close, 50));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_state_comes_from_what_is_known_alone),
		cmocka_unit_test(the_drafter_is_told_as_often_as_the_state_says),
		cmocka_unit_test(the_same_tokens_are_not_told_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
