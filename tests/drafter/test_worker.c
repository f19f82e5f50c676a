/* The draft thread without a model: requests in, drafts out, whatever the other side does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/drafter/fake_verifier.h"

#include <unistd.h>

struct fixture {
	struct drafter_config config;
	struct worker worker;
	struct fake fake;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct error err = {""};
	config_defaults(drafter_config_keys, &f->config);
	assert_int_equal(drafter_config_resolve(&f->config, &err), 0);
	assert_int_equal(worker_init(&f->worker, &f->config, NULL, NULL, &err), 0);
	assert_int_equal(worker_start(&f->worker, &err), 0);
	fake_open(&f->fake, 1);
	fake_offer(&f->fake, &f->worker);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	worker_exit(&f->worker);
	fake_close(&f->fake);
	free(f);
	return 0;
}

static const int32_t prompt[] = {5, 6, 7, 8, 9, 5, 6, 7};

static void ngrams_propose_what_followed_last_time(void **state)
{
	struct fixture *f = *state;
	struct session_page *page = fake_begin(&f->fake, 2, 77, DRAFT_AUTO, prompt, 8);
	struct fake_drafted r = fake_draft(&f->fake, 2, 4);
	const int32_t expected[] = {8, 9, 5, 6};
	assert_int_equal(r.n, 4);
	assert_int_equal(r.method, DRAFT_NGRAM);
	assert_memory_equal(r.token, expected, sizeof(expected));
	for (int i = 0; i < 4; i++) {
		assert_int_equal(r.parent[i], i - 1);
		assert_int_equal(r.n_support[i], 0);
	}
	const int32_t next[] = {8, 9, 20, 21};
	fake_commit(page, next, 4);
	assert_int_equal(fake_draft(&f->fake, 2, 4).n, 0);
	const int32_t again[] = {8, 9};
	fake_commit(page, again, 2);
	assert_int_equal(fake_draft(&f->fake, 2, 4).token[0], 20);
}

/* 1 2 was followed by 3 4, 3 5 and twice by 6 7, the last time by 3 5. */
static void ngram_trees_have_the_different_continuations(void **state)
{
	struct fixture *f = *state;
	static const int32_t text[] = {
		1, 2, 6, 7, 9, 1, 2, 3, 4, 9, 1, 2, 6, 7, 9, 1, 2, 3, 5, 8, 1, 2};
	fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, text, 22);
	struct fake_drafted r = fake_draft_tree(
		&f->fake, 0, (struct draft_budget){.nodes = 20, .depth = 2, .width = 4});
	assert_int_equal(r.method, DRAFT_NGRAM);
	assert_int_equal(r.n, 5);
	int of[10] = {0};
	for (uint32_t i = 0; i < r.n; i++)
		of[r.token[i]] = 1 + (int)i;
	/* The latest comes first, as in a chain. */
	assert_int_equal(of[3], 1);
	assert_int_equal(r.parent[0], -1);
	assert_true(of[6] > 0 && r.parent[of[6] - 1] == -1);
	assert_true(of[7] > 0 && r.parent[of[7] - 1] == of[6] - 1);
	assert_true(of[4] > 0 && r.parent[of[4] - 1] == 0);
	assert_true(of[5] > 0 && r.parent[of[5] - 1] == 0);
	/* The latest of the two is the likelier one, and fewer nodes are the best of these. */
	assert_true(r.confidence[of[5] - 1] > r.confidence[of[4] - 1]);
	struct fake_drafted two = fake_draft_tree(
		&f->fake, 0, (struct draft_budget){.nodes = 2, .depth = 2, .width = 4});
	assert_int_equal(two.n, 2);
	assert_memory_equal(two.token, r.token, 2 * sizeof(int32_t));
	/* A width of one is a chain. */
	r = fake_draft_tree(&f->fake, 0, (struct draft_budget){.nodes = 5, .depth = 5, .width = 1});
	struct fake_drafted chain = fake_draft(&f->fake, 0, 5);
	assert_int_equal(r.n, 5);
	assert_memory_equal(r.token, chain.token, 5 * sizeof(int32_t));
}

static void every_request_of_a_round_is_answered(void **state)
{
	struct fixture *f = *state;
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		fake_begin(&f->fake, i, 100 + i, DRAFT_NGRAM, prompt, 8);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		fake_ask(&f->fake, i, 100 + i, 8, 1 + i, i + 1 == FAKE_SESSIONS);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
		struct fake_drafted r;
		assert_true(fake_reply(&f->fake, &r));
		assert_int_equal(r.n, 1 + r.page);
		assert_int_equal(r.session, 100 + r.page);
	}
}

static void a_round_without_its_last_request_is_answered_all_the_same(void **state)
{
	struct fixture *f = *state;
	struct fake_drafted r;
	fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, prompt, 8);
	fake_ask(&f->fake, 0, 100, 8, 3, false);
	assert_true(fake_reply(&f->fake, &r));
	assert_int_equal(r.n, 3);
}

static void requests_that_make_no_sense_are_answered_with_nothing(void **state)
{
	struct fixture *f = *state;
	struct fake_drafted r;
	struct session_page *page = fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, prompt, 8);
	const struct {
		uint32_t page, n_tokens, k;
		uint64_t uid;
	} wrong[] = {{0, 8, 3, 101}, {0, 9, 3, 100}, {0, UINT32_MAX, 3, 100},
		{FAKE_PAGES, 8, 3, 100}, {UINT32_MAX, 8, 3, 100}, {3, 8, 3, 100}, {0, 0, 3, 100},
		{0, 8, 3, 0}};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		fake_ask(
			&f->fake, wrong[i].page, wrong[i].uid, wrong[i].n_tokens, wrong[i].k, true);
		assert_true(fake_reply(&f->fake, &r));
		assert_int_equal(r.sequence, f->fake.sequence);
		assert_int_equal(r.n, 0);
	}
	/* A page that says more tokens than it holds, or a prompt longer than the context. */
	atomic_store(&page->n_tokens, FAKE_CONTEXT + 1);
	fake_ask(&f->fake, 0, 100, 8, 3, true);
	assert_true(fake_reply(&f->fake, &r));
	assert_int_equal(r.n, 0);
	atomic_store(&page->n_tokens, 8);
	assert_int_equal(fake_draft(&f->fake, 0, 3).n, 3);
	page = fake_begin(&f->fake, 0, 102, DRAFT_REPLAY, prompt, 8);
	page->request.n_replay = UINT32_MAX;
	assert_int_equal(fake_draft(&f->fake, 0, 3).n, 0);
	/* A K beyond what a draft can hold. */
	fake_begin(&f->fake, 0, 103, DRAFT_NGRAM, prompt, 8);
	fake_ask(&f->fake, 0, 103, 8, UINT32_MAX, true);
	assert_true(fake_reply(&f->fake, &r));
	assert_int_equal(r.n, LIMIT_DRAFT_DEPTH);
}

static void following_makes_no_reply_and_a_page_can_change_hands(void **state)
{
	struct fixture *f = *state;
	struct session_page *page = fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, prompt, 8);
	const int32_t more[] = {8, 30, 5, 6, 7, 8};
	fake_ask(&f->fake, 0, 100, 8, 0, true);
	fake_commit(page, more, 6);
	fake_ask(&f->fake, 0, 100, 14, 0, true);
	/* The only reply is to this one. */
	assert_int_equal(fake_draft(&f->fake, 0, 2).token[0], 30);
	const int32_t other[] = {1, 2, 1};
	fake_begin(&f->fake, 0, 200, DRAFT_NGRAM, other, 3);
	assert_int_equal(fake_draft(&f->fake, 0, 2).n, 0);
	const int32_t two = 2;
	fake_commit(page, &two, 1);
	assert_int_equal(fake_draft(&f->fake, 0, 2).token[0], 1);
}

static struct fake_drafted foreseen_after(
	struct fixture *f, struct session_page *page, const int32_t *tokens, uint32_t n)
{
	static struct fake_drafted r;
	fake_commit(page, tokens, n);
	fake_foresee(&f->fake, 0, 100, atomic_load(&page->n_tokens));
	assert_true(fake_reply(&f->fake, &r));
	assert_int_equal(r.session, 100);
	assert_int_equal(r.n_tokens, atomic_load(&page->n_tokens));
	assert_true(r.foreseen > 0);
	return r;
}

static void what_would_have_been_drafted_is_told_where_the_policy_has_zero(void **state)
{
	struct fixture *f = *state;
	struct session_page *page = fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, prompt, 8);
	fake_foresee(&f->fake, 0, 100, 8); /* 8, 9, 5, 6, ... */
	const int32_t two_right[] = {8, 9, 20}, again[] = {8, 9}, come[] = {20}, other[] = {30};
	struct fake_drafted r = foreseen_after(f, page, two_right, 3);
	assert_int_equal(r.method, DRAFT_NGRAM);
	assert_int_equal(r.n, r.foreseen);
	assert_int_equal(r.right, 2);
	assert_float_equal(r.confidence[0], ngram_confidence(3, 0), 1e-4);
	/* Behind 20 there is nothing to propose, which is known with the next token. */
	r = foreseen_after(f, page, again, 2);
	assert_int_equal(r.n, 0);
	assert_int_equal(r.right, 0);
	/* Behind 8 and 9 it is 20, and as long as what came agrees nothing is told. */
	fake_commit(page, come, 1);
	fake_foresee(&f->fake, 0, 100, 14);
	r = foreseen_after(f, page, other, 1);
	assert_int_equal(r.right, 1);
	/* A draft that is asked for takes the place of what was kept back. */
	assert_int_equal(fake_draft(&f->fake, 0, 2).foreseen, 0);
	fake_commit(page, prompt, 1);
	fake_foresee(&f->fake, 0, 100, 16);
	assert_int_equal(fake_draft(&f->fake, 0, 2).foreseen, 0);
}

/* A verifier that does not look: what it will wait for has room all the same. */
static void what_is_foreseen_leaves_room_for_drafts(void **state)
{
	struct fixture *f = *state;
	struct session_page *page = fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, prompt, 8);
	struct fake_drafted r;
	uint32_t n = 0;
	/* Behind a token that is new there is nothing to propose: that is known at once. */
	for (int32_t i = 0; i < DRAFT_FORESEEN_SLOTS + 100; i++) {
		fake_commit(page, &(int32_t){100 + i}, 1);
		fake_foresee(&f->fake, 0, 100, atomic_load(&page->n_tokens));
		while (ring_length(&f->fake.rings.requests) > 0)
			usleep(10);
	}
	fake_ask(&f->fake, 0, 100, atomic_load(&page->n_tokens), 2, true);
	do
		assert_true(fake_reply(&f->fake, &r));
	while (r.foreseen > 0 && ++n);
	assert_int_equal(r.sequence, f->fake.sequence);
	assert_int_equal(n, DRAFT_FORESEEN_SLOTS);
}

static void none_proposes_nothing(void **state)
{
	struct fixture *f = *state;
	fake_begin(&f->fake, 0, 100, DRAFT_NONE, prompt, 8);
	struct fake_drafted r = fake_draft(&f->fake, 0, 4);
	assert_int_equal(r.n, 0);
	assert_int_equal(r.method, DRAFT_NONE);
}

static void replay_follows_the_recording_by_output_index(void **state)
{
	struct fixture *f = *state;
	struct session_page *page = fake_begin(&f->fake, 1, 100, DRAFT_REPLAY, prompt, 8);
	int32_t *recorded = session_replay(f->fake.header, page);
	for (int i = 0; i < 100; i++)
		recorded[i] = 1000 + i;
	page->request.n_replay = 100;
	for (uint32_t at = 0; at < 100; at += 3) {
		struct fake_drafted r = fake_draft(&f->fake, 1, 5);
		assert_int_equal(r.n, 100 - at < 5 ? 100 - at : 5);
		assert_memory_equal(r.token, recorded + at, r.n * sizeof(int32_t));
		/* What is committed need not be what was recorded. */
		const int32_t other[] = {3, 3, 3};
		fake_commit(page, other, 3);
	}
	assert_int_equal(fake_draft(&f->fake, 1, 5).n, 0);
}

static void replay_errs_as_often_as_it_is_told(void **state)
{
	struct fixture *f = *state;
	const float rates[] = {0, 0.1f, 0.3f, 1};
	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		uint32_t wrong = 0, total = 0;
		for (uint64_t seed = 1; seed <= 20; seed++) {
			struct session_page *page = fake_begin(
				&f->fake, 1, seed + 1000 * (i + 1), DRAFT_REPLAY, prompt, 8);
			int32_t *recorded = session_replay(f->fake.header, page);
			for (int j = 0; j < 400; j++)
				recorded[j] = j % 7;
			page->request.n_replay = 400;
			page->request.replay_error = rates[i];
			page->request.sampling.seed = seed;
			for (uint32_t at = 0; at < 400; at += 8) {
				struct fake_drafted r = fake_draft(&f->fake, 1, 8);
				for (uint32_t j = 0; j < r.n; j++) {
					assert_in_range(r.token[j], 0, 6);
					wrong += r.token[j] != recorded[at + j];
				}
				total += r.n;
				fake_commit(page, recorded + at, 8);
			}
		}
		/* 8000 draws: four standard deviations are 0.02 at most. */
		double got = (double)wrong / total;
		assert_int_equal(total, 8000);
		assert_true(got > (double)rates[i] - 0.021 && got < (double)rates[i] + 0.021);
	}
}

static void a_restarted_verifiers_new_regions_are_used(void **state)
{
	struct fixture *f = *state;
	fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, prompt, 8);
	assert_int_equal(fake_draft(&f->fake, 0, 3).n, 3);
	for (uint64_t i = 0; i < 10; i++) {
		struct fake old = f->fake;
		fake_open(&f->fake, 1);
		/* Requests may be on their way while the regions change. */
		fake_ask(&old, 0, 100, 8, 3, true);
		fake_offer(&f->fake, &f->worker);
		fake_close(&old);
		fake_begin(&f->fake, 0, 200 + i, DRAFT_NGRAM, prompt, 8);
		assert_int_equal(fake_draft(&f->fake, 0, 3).n, 3);
	}
}

static void a_restarted_drafter_goes_on_from_the_pages(void **state)
{
	struct fixture *f = *state;
	struct error err;
	struct session_page *page = fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, prompt, 8);
	const int32_t more[] = {8, 40, 5, 6};
	assert_int_equal(fake_draft(&f->fake, 0, 3).n, 3);
	fake_commit(page, more, 4);
	worker_exit(&f->worker);
	/* Nobody is there to answer this one; the successor finds it in the ring. */
	fake_ask(&f->fake, 0, 100, 12, 2, true);
	assert_int_equal(worker_init(&f->worker, &f->config, NULL, NULL, &err), 0);
	assert_int_equal(worker_start(&f->worker, &err), 0);
	fake_offer(&f->fake, &f->worker);
	struct fake_drafted r;
	assert_true(fake_reply(&f->fake, &r));
	assert_int_equal(r.token[0], 7);
	assert_int_equal(fake_draft(&f->fake, 0, 3).token[1], 8);
	assert_true(worker_alive(&f->worker));
}

static void regions_that_are_damaged_are_refused(void **state)
{
	struct fixture *f = *state;
	struct fake bad;
	struct fake_drafted r;
	fake_open(&bad, 1);
	bad.header->n_sessions = LIMIT_SESSIONS + 1;
	fake_offer(&bad, &f->worker);
	fake_ask(&bad, 0, 100, 8, 3, true);
	assert_true(fake_reply(&bad, &r));
	assert_int_equal(r.n, 0);
	fake_offer(&f->fake, &f->worker);
	fake_begin(&f->fake, 0, 100, DRAFT_NGRAM, prompt, 8);
	assert_int_equal(fake_draft(&f->fake, 0, 3).n, 3);
	fake_close(&bad);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(ngrams_propose_what_followed_last_time),
		TEST(ngram_trees_have_the_different_continuations),
		TEST(every_request_of_a_round_is_answered),
		TEST(a_round_without_its_last_request_is_answered_all_the_same),
		TEST(requests_that_make_no_sense_are_answered_with_nothing),
		TEST(following_makes_no_reply_and_a_page_can_change_hands),
		TEST(what_would_have_been_drafted_is_told_where_the_policy_has_zero),
		TEST(what_is_foreseen_leaves_room_for_drafts),
		TEST(none_proposes_nothing),
		TEST(replay_follows_the_recording_by_output_index),
		TEST(replay_errs_as_often_as_it_is_told),
		TEST(a_restarted_verifiers_new_regions_are_used),
		TEST(a_restarted_drafter_goes_on_from_the_pages),
		TEST(regions_that_are_damaged_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
