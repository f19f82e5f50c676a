/* The n-gram index against a search that looks at every place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "services/drafter/ngram.h"
#include "shared/base/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The most recent earlier occurrence of the longest suffix, by looking. */
static uint32_t brute(
	const int32_t *tokens, uint32_t n, uint32_t min, uint32_t max, uint32_t *length)
{
	for (uint32_t l = n < max ? n : max; l >= min; l--)
		for (uint32_t from = n - 1; from >= l; from--)
			if (memcmp(tokens + from - l, tokens + n - l, l * sizeof(*tokens)) == 0) {
				*length = l;
				return from;
			}
	*length = 0;
	return NGRAM_NONE;
}

static void the_longest_suffix_and_its_latest_place_are_found(void **state)
{
	(void)state;
	enum { CAPACITY = 300 };
	int32_t tokens[CAPACITY];
	for (unsigned seed = 0; seed < 400; seed++) {
		srand(seed);
		uint32_t min = 1 + (uint32_t)rand() % 3, max = min + (uint32_t)rand() % 8;
		int32_t alphabet = 1 + rand() % 6;
		struct ngram ngram;
		assert_int_equal(ngram_init(&ngram, min, max, CAPACITY, seed), 0);
		for (uint32_t n = 1; n <= CAPACITY; n++) {
			tokens[n - 1] = rand() % alphabet * 1000003 - 5;
			/* Not always after each token: several are committed at once. */
			if (rand() % 3 == 0 && n < CAPACITY)
				continue;
			uint32_t length, expected_length;
			ngram_update(&ngram, tokens, n);
			uint32_t expected = brute(tokens, n, min, max, &expected_length);
			assert_int_equal(ngram_find(&ngram, tokens, n, &length), expected);
			assert_int_equal(length, expected_length);
		}
		ngram_exit(&ngram);
	}
}

static void a_proposal_past_the_end_goes_on_with_itself(void **state)
{
	(void)state;
	const int32_t tokens[] = {9, 1, 2, 3, 1, 2, 3};
	int32_t out[8];
	ngram_propose(tokens, 7, 4, 8, out);
	const int32_t expected[] = {1, 2, 3, 1, 2, 3, 1, 2};
	assert_memory_equal(out, expected, sizeof(expected));
}

static void one_token_repeated_costs_no_more_than_others(void **state)
{
	(void)state;
	enum { CAPACITY = 200000 };
	int32_t *tokens = calloc(CAPACITY, sizeof(*tokens));
	struct ngram ngram;
	uint32_t length;
	assert_int_equal(ngram_init(&ngram, 2, 8, CAPACITY, 1), 0);
	ngram_update(&ngram, tokens, CAPACITY);
	assert_int_equal(ngram_find(&ngram, tokens, CAPACITY, &length), CAPACITY - 1);
	assert_int_equal(length, 8);
	ngram_exit(&ngram);
	free(tokens);
}

static void lengths_that_make_no_sense_are_refused(void **state)
{
	(void)state;
	struct ngram ngram;
	assert_int_equal(ngram_init(&ngram, 0, 8, 10, 0), -EINVAL);
	assert_int_equal(ngram_init(&ngram, 4, 3, 10, 0), -EINVAL);
	assert_int_equal(ngram_init(&ngram, 1, LIMIT_NGRAM + 1, 10, 0), -EINVAL);
	assert_int_equal(ngram_init(&ngram, 1, 2, 0, 0), -EINVAL);
}

static void all_places_of_a_suffix_are_found(void **state)
{
	(void)state;
	enum { CAPACITY = 200 };
	int32_t tokens[CAPACITY];
	uint32_t places[CAPACITY], total = 0;
	for (unsigned seed = 0; seed < 100; seed++) {
		srand(seed);
		uint32_t min = 1 + (uint32_t)rand() % 3;
		int32_t alphabet = 1 + rand() % 6;
		struct ngram ngram;
		assert_int_equal(ngram_init(&ngram, min, min + 4, CAPACITY, seed), 0);
		for (uint32_t n = 1; n <= CAPACITY; n++) {
			tokens[n - 1] = rand() % alphabet;
			ngram_update(&ngram, tokens, n);
			uint32_t found = ngram_places(&ngram, tokens, n, places, CAPACITY), at = 0;
			for (uint32_t from = n - 1; n >= min && from >= min; from--)
				if (memcmp(tokens + from - min, tokens + n - min,
					    min * sizeof(*tokens)) == 0)
					assert_int_equal(places[at++], from);
			assert_int_equal(found, at);
			total += found;
			assert_int_equal(
				ngram_places(&ngram, tokens, n, places, 2), found < 2 ? found : 2);
		}
		ngram_exit(&ngram);
	}
	assert_true(total > 10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_places_of_a_suffix_are_found),
		cmocka_unit_test(the_longest_suffix_and_its_latest_place_are_found),
		cmocka_unit_test(a_proposal_past_the_end_goes_on_with_itself),
		cmocka_unit_test(one_token_repeated_costs_no_more_than_others),
		cmocka_unit_test(lengths_that_make_no_sense_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
