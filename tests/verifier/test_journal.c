#include "services/verifier/journal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SESSIONS = 4, CONTEXT = 32, VOCAB = 100 };
static const int32_t prompt[] = {5, 6, 7};
static const int32_t replay[] = {8, 9};

static int setup(void **state)
{
	struct sessions_header *header = aligned_alloc(CACHE_LINE,
		(sessions_bytes(SESSIONS, CONTEXT) + CACHE_LINE) / CACHE_LINE * CACHE_LINE);

	assert_non_null(header);
	memset(header, 0, sessions_bytes(SESSIONS, CONTEXT));
	header->n_sessions = SESSIONS;
	header->n_context = CONTEXT;
	header->page_bytes = session_page_bytes(CONTEXT);
	*state = header;
	return 0;
}

static int teardown(void **state)
{
	free(*state);
	return 0;
}

static struct session_request request(void)
{
	struct session_request r = {.max_tokens = 10, .k = SESSION_K_POLICY, .n_replay = 2};

	sampler_params_default(&r.sampling);
	return r;
}

static struct session_page *admitted(struct sessions_header *header)
{
	struct session_request r = request();
	struct session_page *page = session_at(header, 1);

	journal_admit(header, page, 77, 1, &r, prompt, 3, replay);
	return page;
}

static void a_page_goes_from_free_through_its_life_and_back(void **state)
{
	struct sessions_header *header = *state;
	struct session_page *page = admitted(header);

	assert_int_equal(atomic_load(&page->uid), 77);
	assert_int_equal(journal_state(page), SESSION_QUEUED);
	assert_int_equal(journal_n_tokens(page), 3);
	assert_memory_equal(page->tokens, prompt, sizeof(prompt));
	assert_memory_equal(session_replay(header, page), replay, sizeof(replay));
	page->tokens[3] = 11;
	page->tokens[4] = 12;
	journal_append(page, 2);
	assert_int_equal(journal_n_tokens(page), 5);
	uint64_t begun_ns = atomic_load(&page->begun_ns);
	assert_true(begun_ns > 0);
	assert_int_equal(atomic_load(&page->ended_ns), 0);
	journal_finish(page, SESSION_END_STOP);
	uint64_t ended_ns = atomic_load(&page->ended_ns);
	assert_true(ended_ns >= begun_ns);
	/* Its hashes are made again: it ended when it did. */
	atomic_store(&page->state, SESSION_PREFILL);
	journal_finish(page, SESSION_END_STOP);
	assert_int_equal(atomic_load(&page->ended_ns), ended_ns);
	atomic_store(&page->drafted, 9);
	atomic_store(&page->accepted, 4);
	atomic_store(&page->k, 3);
	assert_int_equal(journal_state(page), SESSION_DONE);
	assert_int_equal(atomic_load(&page->end), SESSION_END_STOP);
	journal_free(page);
	assert_int_equal(atomic_load(&page->uid), 0);
	assert_int_equal(journal_state(page), SESSION_FREE);
	page = admitted(header);
	assert_int_equal(atomic_load(&page->drafted), 0);
	assert_int_equal(atomic_load(&page->accepted), 0);
	assert_int_equal(atomic_load(&page->k), 0);
	assert_int_equal(atomic_load(&page->ended_ns), 0);
}

static void pages_come_in_the_order_of_their_admission(void **state)
{
	static const uint64_t admitted[SESSIONS] = {9, 3, 12, 5};
	struct sessions_header *header = *state;
	struct session_request r = request();
	uint32_t order[SESSIONS];

	assert_int_equal(journal_order(header, order), 0);
	for (uint32_t i = 0; i < SESSIONS; i++)
		journal_admit(
			header, session_at(header, i), 70 + i, admitted[i], &r, prompt, 3, replay);
	assert_int_equal(journal_order(header, order), 4);
	assert_memory_equal(order, ((const uint32_t[]){1, 3, 0, 2}), sizeof(order));
	journal_free(session_at(header, 3));
	assert_int_equal(journal_order(header, order), 3);
	assert_memory_equal(order, ((const uint32_t[]){1, 0, 2}), 3 * sizeof(*order));
}

static void a_sound_page_is_believed_and_a_damaged_one_is_not(void **state)
{
	struct sessions_header *header = *state;
	struct session_page *page = admitted(header);
	struct error err;

	assert_int_equal(journal_check(header, page, VOCAB, &err), 0);
	page->n_prompt = 4;
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->n_prompt = 0;
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->n_prompt = 3;
	page->tokens[2] = VOCAB;
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->tokens[2] = -1;
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->tokens[2] = 7;
	atomic_store(&page->n_tokens, CONTEXT + 1);
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	atomic_store(&page->n_tokens, 3);
	atomic_store(&page->state, 9);
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	atomic_store(&page->state, SESSION_RUNNING);
	page->request.n_stops = LIMIT_STOPS + 1;
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->request.n_stops = 1;
	memset(page->request.stops, 'x', LIMIT_STOPS_BYTES); /* no NUL */
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->request.stops[LIMIT_STOP_BYTES] = '\0'; /* a byte too long */
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->request.stops[LIMIT_STOP_BYTES - 1] = '\0';
	assert_int_equal(journal_check(header, page, VOCAB, &err), 0);
	page->request.n_stops = 2; /* the second is empty */
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->request.stops[LIMIT_STOP_BYTES] = 'x'; /* the second has no end within its bound */
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->request.stops[LIMIT_STOP_BYTES + 1] = '\0';
	assert_int_equal(journal_check(header, page, VOCAB, &err), 0);
	page->request.n_stops = 3; /* the third has none in the page */
	page->request.stops[LIMIT_STOPS_BYTES - 1] = 'x';
	assert_int_equal(journal_check(header, page, VOCAB, &err), -EINVAL);
	page->request.n_stops = 0;
	assert_int_equal(journal_check(header, page, VOCAB, &err), 0);
}

static void requests_out_of_range_are_refused_by_name(void **state)
{
	struct error err;
	struct session_request r;

	(void)state;
	r = request();
	assert_int_equal(journal_check_request(&r, VOCAB, CONTEXT, &err), 0);
	r.k = LIMIT_DRAFT + 1;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_page_goes_from_free_through_its_life_and_back, setup, teardown),
		cmocka_unit_test_setup_teardown(
			pages_come_in_the_order_of_their_admission, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_sound_page_is_believed_and_a_damaged_one_is_not, setup, teardown),
		cmocka_unit_test(requests_out_of_range_are_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
