#include "services/verifier/state/journal.h"
#include "shared/model/grammar/grammar.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SESSIONS = 4, CONTEXT = 32, VOCAB = 100 };
static const int32_t prompt[] = {5, 6, 7};
static const int32_t replay[] = {8, 9};

struct fixture {
	struct sessions_header header; /* the verifier's own */
	void *payload;
	struct session_page *page, *shared;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	size_t bytes = (sessions_bytes(SESSIONS, CONTEXT) + CACHE_LINE) / CACHE_LINE * CACHE_LINE;

	assert_non_null(f);
	f->payload = aligned_alloc(CACHE_LINE, bytes);
	assert_non_null(f->payload);
	memset(f->payload, 0, bytes);
	f->header = (struct sessions_header){.n_sessions = SESSIONS,
		.n_context = CONTEXT,
		.page_bytes = session_page_bytes(CONTEXT)};
	f->page = journal_page(CONTEXT);
	assert_non_null(f->page);
	f->shared = session_at(&f->header, f->payload, 1);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	free(f->payload);
	free(f->page);
	free(f);
	return 0;
}

static struct session_request request(void)
{
	struct session_request r = {.max_tokens = 10,
		.k = SESSION_K_POLICY,
		.n_replay = 2,
		.n_stops = 2,
		.stops_bytes = 8,
		.grammar_kind = GRAMMAR_REGEX,
		.grammar_bytes = 3,
		.stops = "end\0\n\n\n\0a*b"};

	sampler_params_default(&r.sampling);
	return r;
}

static void admit(struct fixture *f)
{
	struct session_request r = request();

	journal_admit(&f->header, f->page, f->shared, 77, 1, &r, prompt, 3, replay);
}

static void append(struct fixture *f, int32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		f->page->tokens[journal_n_tokens(f->page) + i] = first + (int32_t)i;
	journal_append(f->page, f->shared, n);
}

static int adopt(const struct fixture *f, struct session_page *out)
{
	struct error err;

	return journal_adopt(&f->header, f->shared, VOCAB, out, &err);
}

static void a_page_goes_from_free_through_its_life_and_back(void **state)
{
	struct fixture *f = *state;
	struct session_page *const pages[] = {f->page, f->shared};

	admit(f);
	append(f, 11, 2);
	assert_memory_equal(session_replay(&f->header, f->shared), replay, sizeof(replay));
	uint64_t begun_ns = atomic_load(&f->page->begun_ns);
	for (int i = 0; i < 2; i++) {
		static const int32_t tokens[] = {5, 6, 7, 11, 12};

		assert_int_equal(atomic_load(&pages[i]->uid), 77);
		assert_int_equal(journal_state(pages[i]), SESSION_QUEUED);
		assert_int_equal(journal_n_tokens(pages[i]), 5);
		assert_memory_equal(pages[i]->tokens, tokens, sizeof(tokens));
		assert_true(atomic_load(&pages[i]->begun_ns) == begun_ns && begun_ns > 0);
		assert_int_equal(atomic_load(&pages[i]->ended_ns), 0);
	}
	journal_enter(f->page, f->shared, SESSION_RUNNING);
	atomic_store(&f->page->drafted, 9);
	atomic_store(&f->page->accepted, 4);
	atomic_store(&f->page->k, 3);
	journal_count(f->page, f->shared);
	assert_int_equal(journal_state(f->shared), SESSION_RUNNING);
	assert_int_equal(atomic_load(&f->shared->drafted), 9);
	journal_finish(f->page, f->shared, SESSION_END_STOP);
	uint64_t ended_ns = atomic_load(&f->page->ended_ns);
	assert_true(ended_ns >= begun_ns);
	/* Its hashes are made again: it ended when it did. */
	journal_again(f->page, f->shared, 2);
	assert_int_equal(journal_state(f->shared), SESSION_PREFILL);
	journal_finish(f->page, f->shared, SESSION_END_STOP);
	journal_tell(f->page, f->shared, true);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(atomic_load(&pages[i]->ended_ns), ended_ns);
		assert_int_equal(journal_state(pages[i]), SESSION_DONE);
		assert_int_equal(atomic_load(&pages[i]->end), SESSION_END_STOP);
		assert_int_equal(atomic_load(&pages[i]->told), 1);
		assert_int_equal(pages[i]->admitted, 2);
	}
	journal_free(f->page, f->shared);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(atomic_load(&pages[i]->uid), 0);
		assert_int_equal(journal_state(pages[i]), SESSION_FREE);
	}
	admit(f);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(atomic_load(&pages[i]->drafted), 0);
		assert_int_equal(atomic_load(&pages[i]->accepted), 0);
		assert_int_equal(atomic_load(&pages[i]->k), 0);
		assert_int_equal(atomic_load(&pages[i]->ended_ns), 0);
		assert_int_equal(atomic_load(&pages[i]->told), 0);
	}
}

static void pages_come_in_the_order_of_their_admission(void **state)
{
	static const uint64_t admitted[SESSIONS] = {9, 3, 12, 5};
	struct session_page *pages[SESSIONS] = {NULL};
	uint32_t order[SESSIONS];

	(void)state;
	assert_int_equal(journal_order(pages, SESSIONS, order), 0);
	for (uint32_t i = 0; i < SESSIONS; i++) {
		pages[i] = journal_page(CONTEXT);
		pages[i]->admitted = admitted[i];
	}
	assert_int_equal(journal_order(pages, SESSIONS, order), 4);
	assert_memory_equal(order, ((const uint32_t[]){1, 3, 0, 2}), sizeof(order));
	free(pages[3]);
	pages[3] = NULL;
	assert_int_equal(journal_order(pages, SESSIONS, order), 3);
	assert_memory_equal(order, ((const uint32_t[]){1, 0, 2}), 3 * sizeof(*order));
	for (uint32_t i = 0; i < 3; i++)
		free(pages[i]);
}

/* What decides about an answer. */
static bool same(const struct session_page *a, const struct session_page *b)
{
	uint32_t n = journal_n_tokens(a);

	return atomic_load(&a->uid) == atomic_load(&b->uid) && a->n_prompt == b->n_prompt &&
	       n == journal_n_tokens(b) && a->request.stops_bytes == b->request.stops_bytes &&
	       memcmp(&a->request, &b->request, session_request_bytes(&a->request)) == 0 &&
	       memcmp(a->tokens, b->tokens, n * sizeof(*a->tokens)) == 0;
}

static bool same_end(const struct session_page *a, const struct session_page *b)
{
	return atomic_load(&a->end) == atomic_load(&b->end);
}

/* A page of any length is taken over as it was written, whatever was appended at once. */
static void a_sound_page_is_believed(void **state)
{
	struct fixture *f = *state;
	struct session_page *out = journal_page(CONTEXT);

	admit(f);
	for (uint32_t n = 1; journal_n_tokens(f->page) + n <= CONTEXT; n++) {
		assert_int_equal(adopt(f, out), 0);
		assert_true(same(out, f->page) && same_end(out, f->page));
		append(f, (int32_t)n, n);
		journal_append(f->page, f->shared, 0);
	}
	/* A successor appends and ends as its predecessor would have. */
	assert_int_equal(adopt(f, out), 0);
	journal_finish(out, f->shared, SESSION_END_LENGTH);
	assert_int_equal(adopt(f, f->page), 0);
	assert_int_equal(atomic_load(&f->page->end), SESSION_END_LENGTH);
	free(out);
}

/* A writer that is killed between any two of its stores: they are made one by one in their order. */
static void a_writer_killed_at_any_store_leaves_a_sound_page(void **state)
{
	struct fixture *f = *state;
	struct session_page *out = journal_page(CONTEXT);

	admit(f);
	append(f, 11, 3);
	/* The sum that is of what comes next is there, or half of it; the tokens are; n_tokens is not yet changed. */
	struct session_sum *next = &f->shared->sums[0];
	assert_int_equal(atomic_load(&next->n_tokens), 3);
	atomic_store(&next->sum, 99);
	assert_int_equal(adopt(f, out), 0);
	atomic_store(&next->n_tokens, 8);
	assert_int_equal(adopt(f, out), 0);
	f->shared->tokens[6] = 20;
	f->shared->tokens[7] = 21;
	assert_int_equal(adopt(f, out), 0);
	assert_int_equal(journal_n_tokens(out), 6);
	/* Of the end its sum alone, then the end without the state. */
	struct session_page *before = journal_page(CONTEXT);
	memcpy(before, f->shared, sizeof(*before));
	journal_finish(f->page, f->shared, SESSION_END_EOS);
	uint64_t end_sum = atomic_load(&f->shared->end_sum);
	memcpy(f->shared, before, sizeof(*before));
	atomic_store(&f->shared->end_sum, end_sum);
	assert_int_equal(adopt(f, out), 0);
	assert_int_equal(atomic_load(&out->end), SESSION_END_NONE);
	atomic_store(&f->shared->end, SESSION_END_EOS);
	assert_int_equal(adopt(f, out), 0);
	assert_int_equal(atomic_load(&out->end), SESSION_END_EOS);
	free(before);
	free(out);
}

/* Whatever byte is written to: the page is given up, or says what it said. */
static void flip_every_byte(struct fixture *f, bool ended)
{
	struct session_page *out = journal_page(CONTEXT);
	unsigned char *bytes = (unsigned char *)f->shared;
	size_t n = sizeof(*f->shared) + journal_n_tokens(f->page) * sizeof(int32_t);
	unsigned refused = 0;

	for (size_t i = 0; i < n; i++) {
		static const unsigned char with[] = {0x01, 0x80, 0xff};

		for (size_t j = 0; j < sizeof(with); j++) {
			bytes[i] ^= with[j];
			if (adopt(f, out) != 0)
				refused++;
			else
				assert_true(same(out, f->page) &&
					    (same_end(out, f->page) ||
						    (ended && atomic_load(&out->end) == 0)));
			bytes[i] ^= with[j];
		}
	}
	assert_true(refused > 3 * session_request_bytes(&f->page->request));
	assert_int_equal(adopt(f, out), 0);
	free(out);
}

static void a_byte_that_was_written_to_is_found_or_does_not_matter(void **state)
{
	struct fixture *f = *state;

	admit(f);
	append(f, 11, 9);
	flip_every_byte(f, false);
	journal_finish(f->page, f->shared, SESSION_END_EOS);
	flip_every_byte(f, false);
	/* Ended, and its hashes are being made again: without its end it is computed to the same end. */
	journal_again(f->page, f->shared, 5);
	flip_every_byte(f, true);
}

static void values_out_of_range_are_refused_whatever_the_sums_say(void **state)
{
	struct fixture *f = *state;
	struct session_page *out = journal_page(CONTEXT), *good = journal_page(CONTEXT);

	admit(f);
	memcpy(good, f->shared, sizeof(*good));
	f->shared->n_prompt = 0;
	assert_int_equal(adopt(f, out), -EINVAL);
	memcpy(f->shared, good, sizeof(*good));
	atomic_store(&f->shared->n_tokens, CONTEXT + 1);
	assert_int_equal(adopt(f, out), -EINVAL);
	atomic_store(&f->shared->n_tokens, UINT32_MAX);
	assert_int_equal(adopt(f, out), -EINVAL);
	memcpy(f->shared, good, sizeof(*good));
	atomic_store(&f->shared->state, 9);
	assert_int_equal(adopt(f, out), -EINVAL);
	atomic_store(&f->shared->state, SESSION_DONE); /* without an end */
	assert_int_equal(adopt(f, out), -EINVAL);
	memcpy(f->shared, good, sizeof(*good));
	f->shared->request.grammar_kind = GRAMMAR_KINDS;
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.grammar_kind = GRAMMAR_NONE; /* of which it would be the source */
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.grammar_kind = GRAMMAR_GBNF; /* not what was written there */
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.grammar_kind = GRAMMAR_REGEX;
	f->shared->request.grammar_bytes = LIMIT_GRAMMAR_BYTES + 1;
	assert_int_equal(adopt(f, out), -EINVAL);
	memcpy(f->shared, good, sizeof(*good));
	f->shared->request.stops[f->shared->request.stops_bytes] = 'c'; /* of the grammar */
	assert_int_equal(adopt(f, out), -EINVAL);
	memcpy(f->shared, good, sizeof(*good));
	f->shared->request.n_stops = LIMIT_STOPS + 1;
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.n_stops = 1;
	f->shared->request.stops_bytes = LIMIT_STOPS_BYTES + 1; /* more than there are */
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.stops_bytes = LIMIT_STOPS_BYTES;
	memset(f->shared->request.stops, 'x', LIMIT_STOPS_BYTES); /* no NUL */
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.stops[LIMIT_STOP_BYTES] = '\0'; /* a byte too long */
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.stops[LIMIT_STOP_BYTES - 1] = '\0';
	f->shared->request.n_stops = 2; /* the second is empty */
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.stops[LIMIT_STOP_BYTES] =
		'x'; /* the second has no end within its bound */
	assert_int_equal(adopt(f, out), -EINVAL);
	f->shared->request.stops[LIMIT_STOP_BYTES + 1] = '\0';
	f->shared->request.n_stops = 3; /* the third has none in the page */
	f->shared->request.stops[LIMIT_STOPS_BYTES - 1] = 'x';
	assert_int_equal(adopt(f, out), -EINVAL);
	memcpy(f->shared, good, sizeof(*good));
	assert_int_equal(adopt(f, out), 0);
	free(out);
	free(good);
}

static void requests_out_of_range_are_refused_by_name(void **state)
{
	struct error err;
	struct session_request r;

	(void)state;
	r = request();
	assert_int_equal(journal_check_request(&r, VOCAB, CONTEXT, &err), 0);
	r.k = LIMIT_DRAFT_DEPTH + 1;
	assert_int_equal(journal_check_request(&r, VOCAB, CONTEXT, &err), -EINVAL);
	assert_non_null(strstr(err.text, "k:"));
	r = request();
	r.draft_method = DRAFT_METHODS;
	assert_int_equal(journal_check_request(&r, VOCAB, CONTEXT, &err), -EINVAL);
	assert_non_null(strstr(err.text, "draft_method"));
	r = request();
	r.n_replay = CONTEXT + 1;
	assert_int_equal(journal_check_request(&r, VOCAB, CONTEXT, &err), -EINVAL);
	assert_non_null(strstr(err.text, "replay"));
	r = request();
	r.replay_error = (float)strtod("nan", NULL);
	assert_int_equal(journal_check_request(&r, VOCAB, CONTEXT, &err), -EINVAL);
	assert_non_null(strstr(err.text, "replay error"));
}

static void what_was_kept_of_a_page_is_the_session_again(void **state)
{
	struct fixture *f = *state;
	const uint32_t states[][2] = {{SESSION_RUNNING, SESSION_QUEUED},
		{SESSION_QUEUED, SESSION_QUEUED}, {SESSION_DONE, SESSION_DONE}};

	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		struct session_page *page = journal_page(CONTEXT), *adopted = journal_page(CONTEXT);
		struct session_page *other = session_at(&f->header, f->payload, 3);
		size_t bytes;

		admit(f);
		append(f, 11, 2);
		if (states[i][0] == SESSION_DONE)
			journal_finish(f->page, f->shared, SESSION_END_EOS);
		else
			journal_enter(f->page, f->shared, (enum session_state)states[i][0]);
		atomic_store(&f->page->drafted, 9);
		uint64_t begun_ns = atomic_load(&f->page->begun_ns);
		uint64_t ended_ns = atomic_load(&f->page->ended_ns);
		struct session_page *kept = journal_keep(&f->header, f->page, f->shared, &bytes);
		assert_non_null(kept);
		assert_true(bytes >= sizeof(*page) + 7 * sizeof(int32_t));
		journal_free(f->page, f->shared);
		memset(f->page->tokens, 0, 5 * sizeof(int32_t));
		memset(session_replay(&f->header, f->shared), 0, sizeof(replay));
		journal_restore(&f->header, page, other, kept, 6);
		free(kept);
		/* A successor believes the page, which says the same as this process's own. */
		assert_int_equal(
			journal_adopt(&f->header, other, VOCAB, adopted, &(struct error){}), 0);
		const struct session_page *const pages[] = {page, other, adopted};
		for (size_t p = 0; p < 3; p++) {
			static const int32_t tokens[] = {5, 6, 7, 11, 12};

			assert_int_equal(atomic_load(&pages[p]->uid), 77);
			assert_int_equal(journal_state(pages[p]), states[i][1]);
			assert_int_equal(journal_n_tokens(pages[p]), 5);
			assert_int_equal(pages[p]->n_prompt, 3);
			assert_int_equal(pages[p]->admitted, 6);
			assert_memory_equal(pages[p]->tokens, tokens, sizeof(tokens));
			assert_int_equal(atomic_load(&pages[p]->drafted), 9);
			assert_true(atomic_load(&pages[p]->begun_ns) == begun_ns);
			assert_true(atomic_load(&pages[p]->ended_ns) == ended_ns);
			assert_int_equal(atomic_load(&pages[p]->end),
				states[i][0] == SESSION_DONE ? SESSION_END_EOS : SESSION_END_NONE);
		}
		assert_memory_equal(session_replay(&f->header, other), replay, sizeof(replay));
		journal_free(page, other);
		free(page);
		free(adopted);
	}
}

/* The front sends the tokens that it finds in our own page; a successor has those in the region. A child appends one, and after each of
 * its instructions we look at both. */
static void a_token_is_in_the_region_before_anybody_may_send_it(void **state)
{
	struct fixture *f = *state, shared;
	size_t bytes = sessions_bytes(SESSIONS, CONTEXT), own = journal_page_bytes(CONTEXT);
	unsigned char *memory = mmap(NULL, bytes + CACHE_LINE + own, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint32_t steps = 0, ahead = 0, behind = 0;
	int status = 0;

	assert_true(memory != MAP_FAILED);
	shared = *f;
	shared.page = (struct session_page *)memory;
	shared.shared =
		session_at(&f->header, memory + (own + CACHE_LINE) / CACHE_LINE * CACHE_LINE, 0);
	admit(&shared);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
			_exit(77);
		raise(SIGSTOP);
		append(&shared, 11, 1);
		_exit(0);
	}
	while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
		uint32_t ours = journal_n_tokens(shared.page),
			 theirs = journal_n_tokens(shared.shared);

		ahead += ours > theirs;
		behind += ours < theirs;
		steps++;
		if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0)
			break;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("# no process may be traced here\n");
		skip();
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_true(steps > 10);
	assert_int_equal(ahead, 0);
	assert_true(behind > 0);
	assert_int_equal(journal_n_tokens(shared.page), 4);
	munmap(memory, bytes + CACHE_LINE + own);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			what_was_kept_of_a_page_is_the_session_again, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_page_goes_from_free_through_its_life_and_back, setup, teardown),
		cmocka_unit_test_setup_teardown(
			pages_come_in_the_order_of_their_admission, setup, teardown),
		cmocka_unit_test_setup_teardown(a_sound_page_is_believed, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_writer_killed_at_any_store_leaves_a_sound_page, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_byte_that_was_written_to_is_found_or_does_not_matter, setup, teardown),
		cmocka_unit_test_setup_teardown(
			values_out_of_range_are_refused_whatever_the_sums_say, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_token_is_in_the_region_before_anybody_may_send_it, setup, teardown),
		cmocka_unit_test(requests_out_of_range_are_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
