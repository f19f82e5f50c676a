#include "services/verifier/state/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <cmocka.h>

struct feed {
	struct text_stops *stops;
	struct text_stream stream;
	/* The visible text, and how much of it is shown. */
	char out[8192];
	size_t n_all, n;
};

/* The strings one behind the other, as requests have them. */
static void begin(struct feed *f, const char *const *strings, uint32_t n)
{
	static char packed[LIMIT_STOPS_BYTES];
	size_t at = 0;

	memset(f, 0, sizeof(*f));
	for (uint32_t i = 0; i < n; i++) {
		memcpy(packed + at, strings[i], strlen(strings[i]) + 1);
		at += strlen(strings[i]) + 1;
	}
	assert_int_equal(text_stops_create(packed, n, &f->stops), 0);
	text_stream_init(&f->stream, false);
}

static void end(struct feed *f)
{
	text_stops_free(&f->stops);
}

static bool take(struct feed *f, const char *piece, size_t bytes, bool hidden)
{
	bool stopped = text_feed(&f->stream, f->stops, piece, bytes, hidden);

	if (!hidden) {
		memcpy(f->out + f->n_all, piece, bytes);
		f->n_all += bytes;
	}
	assert_true(f->stream.back <= f->n_all && f->n_all - f->stream.back >= f->n);
	f->n = f->n_all - f->stream.back;
	return stopped;
}

static bool put(struct feed *f, const char *piece)
{
	return take(f, piece, strlen(piece), false);
}

/* A control token. */
static bool put_control(struct feed *f, const char *piece)
{
	return take(f, piece, strlen(piece), true);
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
	end(&f);
}

static void what_may_become_a_stop_string_is_held_back_until_it_cannot(void **state)
{
	static const char *const stops[] = {"\n\nQ:"};
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
	end(&f);
}

static void a_stop_string_over_many_pieces_ends_the_text_before_it(void **state)
{
	static const char *const stops[] = {"unused", "</end>"};
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
	end(&f);
}

static void of_two_completed_by_one_byte_the_one_that_began_first_counts(void **state)
{
	static const char *const stops[] = {"cd", "abcd"};
	struct feed f;

	(void)state;
	begin(&f, stops, 2);
	assert_true(put(&f, "xabcd"));
	shown(&f, "x");
	assert_int_equal(f.stream.stop, 1);
	end(&f);
}

static void a_self_overlapping_stop_string_is_found(void **state)
{
	static const char *const stops[] = {"aab"};
	struct feed f;

	(void)state;
	begin(&f, stops, 1);
	assert_true(put(&f, "aaaab"));
	shown(&f, "aa");
	end(&f);
}

static void a_control_token_is_matched_whole_and_never_shown(void **state)
{
	static const char *const stops[] = {"<|im_start|>", "\n<|im_end|>x", ">", "|im_", "end|>!"};
	struct feed f;

	(void)state;
	begin(&f, stops, 1);
	assert_false(put(&f, "yes\n"));
	assert_true(put_control(&f, "<|im_start|>"));
	shown(&f, "yes\n");
	assert_int_equal(f.stream.stop, 0);
	end(&f);
	/* The same written out. */
	begin(&f, stops, 1);
	assert_false(put(&f, "yes <|im_"));
	assert_true(put(&f, "start|> no"));
	shown(&f, "yes ");
	end(&f);
	/* Another token, and what is in the middle of one or goes across its ends. */
	begin(&f, stops, 5);
	assert_false(put(&f, "a"));
	assert_false(put_control(&f, "<|im_end|>"));
	assert_false(put(&f, "!\n"));
	shown(&f, "a!");
	assert_false(put_control(&f, "<|im_end|>"));
	shown(&f, "a!");
	assert_false(put(&f, "y"));
	shown(&f, "a!\ny");
	assert_false(put(&f, "\n"));
	assert_false(put_control(&f, "<|im_end|>"));
	assert_true(put(&f, "xz"));
	shown(&f, "a!\ny");
	assert_int_equal(f.stream.stop, 1);
	end(&f);
	/* A control token that what came before began to spell. */
	begin(&f, (const char *const[]){"<<|a|>"}, 1);
	assert_false(put(&f, "<<|a"));
	assert_false(put_control(&f, "<|a|>"));
	shown(&f, "<<|a");
	assert_false(put(&f, "<<"));
	assert_true(put_control(&f, "<|a|>"));
	shown(&f, "<<|a<");
	end(&f);
	/* The end of an answer gives what is held, but for what is hidden. */
	begin(&f, (const char *const[]){"b<|a|>c"}, 1);
	assert_false(put(&f, "ab"));
	assert_false(put_control(&f, "<|a|>"));
	shown(&f, "a");
	f.n = f.n_all;
	shown(&f, "ab");
	end(&f);
}

/* Text of which each byte belongs to a piece; those of control tokens are hidden. */
struct marked {
	char text[128];
	size_t n, piece[128]; /* where each begins */
	bool hidden[128];
	size_t n_pieces;
};

static size_t piece_of(const struct marked *m, size_t at)
{
	size_t p = 0;

	while (p + 1 < m->n_pieces && m->piece[p + 1] <= at)
		p++;
	return p;
}

/* Whether a match may begin or end here: not within a hidden piece. */
static bool cuts(const struct marked *m, size_t at)
{
	return at == m->n || !m->hidden[piece_of(m, at)] || m->piece[piece_of(m, at)] == at;
}

static size_t seen(const struct marked *m, size_t from, size_t to, char *out)
{
	size_t n = 0;

	for (size_t i = from; i < to; i++)
		if (!m->hidden[piece_of(m, i)])
			out[n++] = m->text[i];
	return n;
}

/* The plain definition: the first end of any stop string, the longest of those that end there; shown is all that is visible but
 * the longest suffix that begins one. */
static size_t naive(
	const struct marked *m, const char *const *stops, uint32_t n_stops, char *out, int *stop)
{
	*stop = -1;
	for (size_t to = 1; to <= m->n && *stop < 0; to++) {
		size_t n = 0;

		for (uint32_t s = 0; s < n_stops && cuts(m, to); s++) {
			size_t bytes = strlen(stops[s]);

			if (bytes <= to && memcmp(m->text + to - bytes, stops[s], bytes) == 0 &&
				cuts(m, to - bytes) &&
				(*stop < 0 || bytes > strlen(stops[*stop]))) {
				*stop = (int)s;
				n = to - bytes;
			}
		}
		if (*stop >= 0)
			return seen(m, 0, n, out);
	}
	size_t held = 0;
	for (uint32_t s = 0; s < n_stops; s++)
		for (size_t b = 1; b < strlen(stops[s]) && b <= m->n; b++)
			if (b > held && memcmp(m->text + m->n - b, stops[s], b) == 0 &&
				cuts(m, m->n - b))
				held = b;
	return seen(m, 0, m->n - held, out);
}

/* One round: pieces of a, b and, rarely, c, of which some are hidden, and stop strings of the same. */
static void compare(int round)
{
	static char texts[12][24];
	const char *stops[12];
	struct marked m = {.n = 0};
	char wanted[128];
	struct feed f;
	uint32_t n_stops = 1 + (uint32_t)rand() % (round % 2 ? 3 : 12);
	int stop, longest = round % 3 ? 6 : 20;

	for (uint32_t s = 0; s < n_stops; s++) {
		int bytes = 1 + rand() % longest;
		for (int i = 0; i < bytes; i++)
			texts[s][i] = (char)('a' + rand() % 2);
		texts[s][bytes] = '\0';
		stops[s] = texts[s];
	}
	while (m.n < 60) {
		size_t bytes = 1 + (size_t)rand() % 5;
		m.piece[m.n_pieces] = m.n;
		m.hidden[m.n_pieces++] = round % 5 && rand() % 3 == 0;
		for (size_t i = 0; i < bytes; i++)
			m.text[m.n++] = (char)('a' + (rand() % 19 == 0 ? 2 : rand() % 2));
	}
	begin(&f, stops, n_stops);
	for (size_t p = 0; p < m.n_pieces; p++)
		take(&f, m.text + m.piece[p],
			(p + 1 < m.n_pieces ? m.piece[p + 1] : m.n) - m.piece[p], m.hidden[p]);
	size_t n = naive(&m, stops, n_stops, wanted, &stop);
	/* Two of the same bytes: either index is right. */
	if (stop >= 0)
		assert_string_equal(text_stop(f.stops, f.stream.stop), stops[stop]);
	else
		assert_int_equal(f.stream.stop, -1);
	assert_int_equal(f.n, n);
	assert_memory_equal(f.out, wanted, n);
	end(&f);
}

static void any_cutting_into_pieces_gives_what_the_definition_says(void **state)
{
	(void)state;
	srand(7);
	for (int round = 0; round < 60000; round++)
		compare(round);
}

/* Where control tokens are shown they are held back, and cut off, like any text. */
static void shown_control_tokens_are_matched_whole_too(void **state)
{
	const char *const stops[] = {"b<|c|>d"};
	struct feed f;

	(void)state;
	begin(&f, stops, 1);
	text_stream_init(&f.stream, true);
	assert_false(text_feed(&f.stream, f.stops, "a", 1, false));
	assert_false(text_feed(&f.stream, f.stops, "<|c|>", 5, true));
	assert_int_equal(f.stream.back, 0);
	assert_false(text_feed(&f.stream, f.stops, "b", 1, false));
	assert_false(text_feed(&f.stream, f.stops, "<|c|>", 5, true));
	assert_int_equal(f.stream.back, 6);
	assert_true(text_feed(&f.stream, f.stops, "de", 2, false));
	assert_int_equal(f.stream.back, 8);
	assert_true(text_feed(&f.stream, f.stops, "<|c|>", 5, true));
	assert_int_equal(f.stream.back, 13);
	end(&f);
}

/* As many and as long as may be, over a text that almost has them all, all the time. */
static void many_long_stop_strings_take_no_more_time_than_few(void **state)
{
	static char stops[LIMIT_STOPS][LIMIT_STOP_BYTES], piece[4096];
	const struct itimerval patience = {.it_value.tv_sec = 60}, none = {.it_value.tv_sec = 0};
	const char *list[LIMIT_STOPS];
	struct feed f;
	uint32_t held = 0;

	(void)state;
	/* Three of the longest, and short ones. */
	for (uint32_t s = 0; s < LIMIT_STOPS; s++) {
		size_t bytes = s < 3 ? LIMIT_STOP_BYTES - 2 : 12;
		memset(stops[s], 'a', bytes);
		stops[s][bytes] = (char)(1 + s % 90);
		list[s] = stops[s];
	}
	setitimer(ITIMER_PROF, &patience, NULL);
	begin(&f, list, LIMIT_STOPS);
	memset(piece, 'a', sizeof(piece));
	for (int round = 0; round < 4000; round++) {
		/* Now in one piece, now byte by byte. */
		for (size_t at = 0, step = round % 2 ? 1 : sizeof(piece); at < sizeof(piece);
			at += step)
			assert_false(text_feed(&f.stream, f.stops, piece + at, step, false));
		if (round > 0)
			assert_int_equal(f.stream.back, held);
		held = f.stream.back;
	}
	assert_false(put(&f, "zz"));
	assert_int_equal(f.stream.n_held, 0);
	end(&f);
	setitimer(ITIMER_PROF, &none, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_stop_strings_everything_is_shown_at_once),
		cmocka_unit_test(what_may_become_a_stop_string_is_held_back_until_it_cannot),
		cmocka_unit_test(a_stop_string_over_many_pieces_ends_the_text_before_it),
		cmocka_unit_test(of_two_completed_by_one_byte_the_one_that_began_first_counts),
		cmocka_unit_test(a_self_overlapping_stop_string_is_found),
		cmocka_unit_test(a_control_token_is_matched_whole_and_never_shown),
		cmocka_unit_test(shown_control_tokens_are_matched_whole_too),
		cmocka_unit_test(many_long_stop_strings_take_no_more_time_than_few),
		cmocka_unit_test(any_cutting_into_pieces_gives_what_the_definition_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
