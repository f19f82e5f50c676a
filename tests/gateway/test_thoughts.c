/* How many tokens of an answer were thoughts, however it is cut into events. */
#include "services/gateway/thoughts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { OPEN = 1, CLOSE, CHANNEL, ANALYSIS, FINAL, START };

static const struct thoughts_marks tags = {OPEN, CLOSE, -1, -1, -1},
				   harmony = {OPEN, CLOSE, CHANNEL, ANALYSIS, START},
				   none = {-1, -1, -1, -1, -1};

static void expect(const struct thoughts_marks *marks, bool within, const int32_t *tokens, size_t n,
	uint32_t expected)
{
	for (size_t step = 1; step <= n; step++) {
		struct thoughts_count count = {.within = within};

		for (size_t at = 0; at < n; at += step)
			thoughts_add(&count, marks, tokens + at, step < n - at ? step : n - at);
		assert_int_equal(count.n, expected);
	}
}
#define EXPECT(marks, within, expected, ...)                     \
	expect(&(marks), within, (const int32_t[]){__VA_ARGS__}, \
		sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t), expected)

static void tokens_between_tags_are_thoughts(void **state)
{
	(void)state;
	EXPECT(tags, false, 3, OPEN, 20, 21, 22, CLOSE, 23, 24);
	EXPECT(tags, false, 0, 20, 21);
	EXPECT(tags, false, 0, OPEN, CLOSE, 20);
	EXPECT(tags, false, 2, 30, OPEN, 20, 21);
	EXPECT(tags, true, 2, 20, 21, CLOSE, 22, 23);
	/* A tag in the middle of an answer is a word. */
	EXPECT(tags, false, 0, 20, 21, OPEN, 22, CLOSE);
	EXPECT(tags, true, 1, 20, CLOSE, 21, OPEN, 22);
	EXPECT(tags, true, 0, CLOSE, OPEN, 22);
	EXPECT(none, true, 0, 20, OPEN, 21, CLOSE);
}

static void messages_of_the_analysis_are_thoughts(void **state)
{
	(void)state;
	EXPECT(harmony, false, 2, CHANNEL, ANALYSIS, OPEN, 20, 21, CLOSE, START, 40, CHANNEL, FINAL,
		OPEN, 22, 23, 24);
	EXPECT(harmony, false, 0, CHANNEL, FINAL, OPEN, 20, ANALYSIS, 21);
	EXPECT(harmony, false, 3, CHANNEL, ANALYSIS, OPEN, 20, CLOSE, START, 40, CHANNEL, ANALYSIS,
		OPEN, 21, 22, CLOSE);
	EXPECT(harmony, false, 1, CHANNEL, ANALYSIS, 50, OPEN, 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokens_between_tags_are_thoughts),
		cmocka_unit_test(messages_of_the_analysis_are_thoughts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
