#include "services/verifier/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct feed {
	struct text_stops stops;
	struct text_stream stream;
	char out[4096];
	size_t n;
};

static void begin(struct feed *f, const char (*text)[LIMIT_STOP_BYTES], uint32_t n)
{
	memset(f, 0, sizeof(*f));
	text_stops_init(&f->stops, text, n);
	text_stream_init(&f->stream);
}

static bool put(struct feed *f, const char *piece)
{
	return text_feed(&f->stream, &f->stops, piece, strlen(piece), f->out, &f->n);
}

static void shown(const struct feed *f, const char *want)
{
	assert_int_equal(f->n, strlen(want));
	assert_memory_equal(f->out, want, f->n);
}

static void without_stop_strings_everything_is_shown_at_once(void **state)
{
	struct feed f;

	(void)state;
	begin(&f, NULL, 0);
	assert_false(put(&f, "abc"));
	assert_false(put(&f, ""));
	assert_false(put(&f, "def"));
	shown(&f, "abcdef");
}

static void what_may_become_a_stop_string_is_held_back_until_it_cannot(void **state)
{
	static const char stops[][LIMIT_STOP_BYTES] = {"\n\nQ:"};
	struct feed f;

	(void)state;
	begin(&f, stops, 1);
	assert_false(put(&f, "yes\n"));
	shown(&f, "yes");
	assert_false(put(&f, "\nQ"));
	shown(&f, "yes");
	assert_false(put(&f, "uite"));
	shown(&f, "yes\n\nQuite");
	assert_int_equal(f.stream.stop, -1);
}

static void a_stop_string_over_many_pieces_ends_the_text_before_it(void **state)
{
	static const char stops[][LIMIT_STOP_BYTES] = {"unused", "</end>"};
	struct feed f;

	(void)state;
	begin(&f, stops, 2);
	assert_false(put(&f, "a <<"));
	assert_false(put(&f, "/e"));
	assert_false(put(&f, "n"));
	assert_true(put(&f, "d>tail"));
	shown(&f, "a <");
	assert_int_equal(f.stream.stop, 1);
	assert_true(put(&f, "more"));
	shown(&f, "a <");
}

static void of_two_completed_by_one_byte_the_one_that_began_first_counts(void **state)
{
	static const char stops[][LIMIT_STOP_BYTES] = {"cd", "abcd"};
	struct feed f;

	(void)state;
	begin(&f, stops, 2);
	assert_true(put(&f, "xabcd"));
	shown(&f, "x");
	assert_int_equal(f.stream.stop, 1);
}

static void a_self_overlapping_stop_string_is_found(void **state)
{
	static const char stops[][LIMIT_STOP_BYTES] = {"aab"};
	struct feed f;

	(void)state;
	begin(&f, stops, 1);
	assert_true(put(&f, "aaaab"));
	shown(&f, "aa");
}

/* Against the plain definition: the first end of any stop string, the longest of those that end there; shown is all
 * but the longest suffix that begins one. */
static void naive(const char *text, size_t n, const char (*stops)[LIMIT_STOP_BYTES],
	uint32_t n_stops, size_t *n_shown, int *stop)
{
	*stop = -1;
	for (size_t end = 1; end <= n && *stop < 0; end++)
		for (uint32_t s = 0; s < n_stops; s++) {
			size_t m = strlen(stops[s]);

			if (m <= end && memcmp(text + end - m, stops[s], m) == 0 &&
				(*stop < 0 || m > strlen(stops[*stop]))) {
				*stop = (int)s;
				*n_shown = end - m;
			}
		}
	if (*stop >= 0)
		return;
	size_t held = 0;
	for (uint32_t s = 0; s < n_stops; s++)
		for (size_t m = 1; m < strlen(stops[s]) && m <= n; m++)
			if (m > held && memcmp(text + n - m, stops[s], m) == 0)
				held = m;
	*n_shown = n - held;
}

static void any_cutting_into_pieces_gives_what_the_definition_says(void **state)
{
	char stops[3][LIMIT_STOP_BYTES], text[64];

	(void)state;
	srand(7);
	for (int round = 0; round < 20000; round++) {
		uint32_t n_stops = 1 + (uint32_t)rand() % 3;
		size_t n = (size_t)rand() % 40, n_shown = 0;
		struct feed f;
		int stop;

		for (uint32_t s = 0; s < n_stops; s++) {
			int m = 1 + rand() % 6;
			for (int i = 0; i < m; i++)
				stops[s][i] = (char)('a' + rand() % 2);
			stops[s][m] = '\0';
		}
		for (size_t i = 0; i < n; i++)
			text[i] = (char)('a' + (rand() % 9 == 0 ? 2 : rand() % 2));
		begin(&f, (const char(*)[LIMIT_STOP_BYTES])stops, n_stops);
		for (size_t i = 0; i < n;) {
			size_t m = 1 + (size_t)rand() % 4;
			if (m > n - i)
				m = n - i;
			text_feed(&f.stream, &f.stops, text + i, m, f.out, &f.n);
			i += m;
		}
		naive(text, n, (const char(*)[LIMIT_STOP_BYTES])stops, n_stops, &n_shown, &stop);
		/* Two of the same bytes: either index is right. */
		if (stop >= 0)
			assert_string_equal(stops[f.stream.stop], stops[stop]);
		else
			assert_int_equal(f.stream.stop, -1);
		assert_int_equal(f.n, n_shown);
		assert_memory_equal(f.out, text, n_shown);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_stop_strings_everything_is_shown_at_once),
		cmocka_unit_test(what_may_become_a_stop_string_is_held_back_until_it_cannot),
		cmocka_unit_test(a_stop_string_over_many_pieces_ends_the_text_before_it),
		cmocka_unit_test(of_two_completed_by_one_byte_the_one_that_began_first_counts),
		cmocka_unit_test(a_self_overlapping_stop_string_is_found),
		cmocka_unit_test(any_cutting_into_pieces_gives_what_the_definition_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
