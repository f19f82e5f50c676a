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

/* A recording of n tokens, its own position in each. */
static struct session_page *begin_recording(
	struct fixture *f, uint64_t uid, uint32_t n, float error)
{
	struct session_page *page = fake_begin(&f->fake, 1, uid, DRAFT_REPLAY, prompt, 8);
	int32_t *recorded = session_replay(f->fake.header, page);
	for (uint32_t i = 0; i < n; i++)
		recorded[i] = (int32_t)(1000 + i);
	page->request.n_replay = n;
	page->request.replay_error = error;
	page->request.sampling.seed = uid;
	return page;
}

static struct fake_drafted draft_tree(
	struct fixture *f, uint64_t uid, uint32_t n_tokens, struct draft_budget budget)
{
	struct fake_drafted out;
	fake_ask_tree(&f->fake, 1, uid, n_tokens, budget, true);
	assert_true(fake_take(&f->fake, &out, true));
	return out;
}

/* Each level has as many nodes as the shape says, each token a child of the level before; no two
 * siblings are alike, and the recorded tokens lie on one path. */
static void replay_fills_trees_of_a_fixed_shape(void **state)
{
	struct fixture *f = *state;
	static const struct {
		uint8_t shape[DRAFT_SHAPE];
		uint32_t depth, nodes;
	} cases[] = {{{3}, 1, 3}, {{1, 1, 1}, 3, 3}, {{4, 2, 1}, 3, 4 + 8 + 8},
		{{2, 2, 2, 2, 2, 2, 2, 2}, 8, 510}, {{20, 20}, 2, 420}};
	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
		const uint64_t uid = 300 + c;
		struct draft_budget budget = {.nodes = LIMIT_DRAFT_NODES,
			.depth = (uint8_t)cases[c].depth,
			.width = cases[c].shape[0]};
		memcpy(budget.shape, cases[c].shape, sizeof(budget.shape));
		begin_recording(f, uid, 50, 0);
		const struct fake_drafted r = draft_tree(f, uid, 8, budget);
		assert_int_equal(r.method, DRAFT_REPLAY);
		assert_int_equal(r.n, cases[c].nodes);
		uint32_t children[LIMIT_DRAFT_NODES + 1] = {0}, depth[LIMIT_DRAFT_NODES + 1] = {0},
						      right = 0;
		bool on_path[LIMIT_DRAFT_NODES + 1] = {true};
		for (uint32_t i = 0; i < r.n; i++) {
			const uint32_t at = depth[r.parent[i] + 1];
			children[r.parent[i] + 1]++;
			depth[i + 1] = at + 1;
			on_path[i + 1] =
				on_path[r.parent[i] + 1] && r.token[i] == (int32_t)(1000 + at);
			right += on_path[i + 1];
			for (uint32_t j = 0; j < i; j++)
				assert_false(
					r.parent[j] == r.parent[i] && r.token[j] == r.token[i]);
		}
		for (uint32_t i = 0; i <= r.n; i++)
			if (i == 0 || depth[i] < cases[c].depth)
				assert_int_equal(children[i], cases[c].shape[depth[i]]);
		assert_int_equal(right, cases[c].depth);
	}
}

/* What does not fit as a whole level's brood is left out, and nothing goes beyond the recording. */
static void replay_ends_a_shape_where_there_is_no_room(void **state)
{
	struct fixture *f = *state;
	struct draft_budget budget = {.nodes = 10, .depth = 3, .width = 4, .shape = {4, 2, 1}};
	begin_recording(f, 320, 50, 0);
	struct fake_drafted r = draft_tree(f, 320, 8, budget);
	assert_int_equal(r.n, 4 + 6);
	budget.nodes = LIMIT_DRAFT_NODES;
	begin_recording(f, 321, 2, 0);
	r = draft_tree(f, 321, 8, budget);
	assert_int_equal(r.n, 4 + 8);
}

/* The recorded token is the r-th sibling as often as the header says, whatever the shape. */
static void the_place_of_the_recorded_token_has_its_chance(void **state)
{
	struct fixture *f = *state;
	const struct draft_budget shaped = {
		.nodes = LIMIT_DRAFT_NODES, .depth = 2, .width = 4, .shape = {4, 3}};
	const struct draft_budget grown = {.nodes = 12, .depth = 3, .width = 4};
	for (int way = 0; way < 2; way++) {
		const uint64_t uid = 330 + (uint64_t)way;
		uint32_t at[5] = {0}, rounds = 4000;
		struct session_page *page = begin_recording(f, uid, 400, 0.4f);
		for (uint32_t i = 0; i < rounds; i++) {
			const uint32_t position = i % 390;
			atomic_store(&page->n_tokens, 8);
			page->request.sampling.seed = 1 + i / 390;
			page->n_prompt = 8;
			for (uint32_t t = 0; t < position; t++)
				page->tokens[8 + t] = (int32_t)(1000 + t);
			atomic_store_explicit(&page->n_tokens, 8 + position, memory_order_release);
			const struct fake_drafted r =
				draft_tree(f, uid, 8 + position, way ? grown : shaped);
			uint32_t rank = 0;
			for (uint32_t j = 0; j < r.n; j++) {
				if (r.parent[j] != -1)
					continue;
				if (r.token[j] == (int32_t)(1000 + position))
					break;
				rank++;
			}
			assert_in_range(rank, 0, 4);
			at[rank]++;
		}
		/* 0.6, 0.12, 0.024, 0.0048; four standard deviations at the most. */
		assert_in_range(at[0], 2400 - 124, 2400 + 124);
		assert_in_range(at[1], 480 - 82, 480 + 82);
		assert_in_range(at[2], 96 - 39, 96 + 39);
		assert_in_range(at[3], 1, 19 + 18);
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
		TEST(replay_fills_trees_of_a_fixed_shape),
		TEST(replay_ends_a_shape_where_there_is_no_room),
		TEST(the_place_of_the_recorded_token_has_its_chance),
		TEST(a_restarted_verifiers_new_regions_are_used),
		TEST(a_restarted_drafter_goes_on_from_the_pages),
		TEST(regions_that_are_damaged_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
