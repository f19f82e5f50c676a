#include "services/verifier/pass/drafts.h"

#include "shared/base/clock.h"
#include "shared/spec/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GENERATION (UINT64_C(1) << 62) /* all of its bits are needed */
enum { VOCAB = 50, WAIT_NS = 3000000 };
static const struct tuning tuning = {.draft_wait = WAIT_NS};

struct rig {
	void *memory;
	struct drafts *drafts;
	struct draft_choice *words;
	struct draft_supports supports; /* the other side */
	struct draft_rings drafter;
};

static int setup(void **state)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	size_t bytes = (draft_bytes() + CACHE_LINE) / CACHE_LINE * CACHE_LINE;

	rig->memory = aligned_alloc(CACHE_LINE, bytes);
	rig->drafts =
		aligned_alloc(CACHE_LINE, (sizeof(struct drafts) / CACHE_LINE + 1) * CACHE_LINE);
	rig->words = calloc(1, SUPPORTS_BYTES);
	rig->supports = draft_supports_of(rig->words);
	assert_non_null(rig->memory);
	assert_non_null(rig->words);
	assert_non_null(rig->drafts);
	memset(rig->memory, 0, bytes);
	memset(rig->drafts, 0, sizeof(*rig->drafts));
	draft_format(rig->memory);
	assert_int_equal(draft_attach(&rig->drafter, rig->memory, draft_bytes(), NULL), 0);
	*state = rig;
	return 0;
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	drafts_exit(rig->drafts);
	free(rig->memory);
	free(rig->words);
	free(rig->drafts);
	free(rig);
	return 0;
}

static void begin(struct rig *rig)
{
	assert_int_equal(drafts_init(rig->drafts, rig->memory, draft_bytes(), rig->words,
				 GENERATION, VOCAB, &tuning, NULL),
		0);
	drafts_peer_joined(rig->drafts, 1);
}

/* Asks for a draft that the round waits for. */
static struct draft_request asked(struct rig *rig)
{
	struct draft_request request;

	assert_true(ring_get(&rig->drafter.requests, &request, sizeof(request)));
	return request;
}

static void answer(struct rig *rig, const struct draft_request *request, uint32_t n, int32_t token)
{
	struct draft_node node[LIMIT_DRAFT_NODES];
	struct draft_reply reply = {.session = request->session,
		.sequence = request->sequence,
		.page = request->page,
		.n_tokens = request->n_tokens,
		.n = n,
		.node = node,
		.method = DRAFT_NGRAM};

	for (uint32_t i = 0; i < n; i++)
		node[i] = (struct draft_node){token, (int16_t)((int)i - 1), DRAFT_CONFIDENCE};
	assert_true(draft_send(&rig->drafter.replies, &rig->supports, &reply, false));
}

static void ask(
	struct rig *rig, uint32_t page, uint64_t uid, uint32_t n_tokens, uint32_t k, bool last)
{
	drafts_ask(rig->drafts, page, uid, n_tokens, draft_chain_budget(k), 0, last);
	assert_int_equal(drafts_state(rig->drafts, page, uid, n_tokens), DRAFTS_OUT);
	drafts_await(rig->drafts, page);
}

static void a_round_gets_its_replies_in_any_order(void **state)
{
	struct rig *rig = *state;

	begin(rig);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	ask(rig, 3, 30, 100, 4, false);
	ask(rig, 5, 50, 200, 2, true);
	struct draft_request first = asked(rig), second = asked(rig);
	assert_true(first.session == 30 && first.budget.nodes == 4 && first.budget.depth == 4 &&
		    first.budget.width == 1 && first.n_tokens == 100 && !first.last);
	assert_true(second.session == 50 && second.page == 5 && second.last);
	assert_true(first.sequence > GENERATION && second.sequence > first.sequence);
	answer(rig, &second, 2, 7);
	answer(rig, &first, 1, 8);
	drafts_wait(rig->drafts, WAIT_NS, true);
	assert_int_equal(drafts_reply(rig->drafts, 3)->n, 1);
	assert_int_equal(drafts_reply(rig->drafts, 5)->n, 2);
	assert_int_equal(drafts_reply(rig->drafts, 5)->node[0].token, 7);
	assert_int_equal(drafts_state(rig->drafts, 3, 30, 100), DRAFTS_HERE);
	assert_int_equal(drafts_state(rig->drafts, 4, 40, 100), DRAFTS_NONE);
	/* Of no use behind other tokens, nor to another session with that page. */
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	assert_int_equal(drafts_state(rig->drafts, 3, 30, 101), DRAFTS_NONE);
	assert_int_equal(drafts_state(rig->drafts, 3, 31, 100), DRAFTS_NONE);
	assert_int_equal(drafts_state(rig->drafts, 3, 30, 100), DRAFTS_HERE);
}

static void what_is_foreseen_answers_nothing_and_is_told_once(void **state)
{
	struct rig *rig = *state;
	struct drafts_foresight seen;
	struct draft_part said = {.session = 30,
		.page = 3,
		.method = DRAFT_NGRAM,
		.foreseen = 8,
		.n = 8,
		.right = 2,
		.supports = UINT32_MAX,
		.node = {{0, -1, DRAFT_CONFIDENCE / 2}, {0, 0, 3 * (DRAFT_CONFIDENCE / 4)}}};

	begin(rig);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	ask(rig, 3, 30, 100, 8, true);
	struct draft_request request = asked(rig);
	said.sequence = request.sequence;
	assert_true(ring_put(&rig->drafter.replies, &said, sizeof(said)));
	answer(rig, &request, 1, 7);
	drafts_wait(rig->drafts, WAIT_NS, true);
	assert_int_equal(drafts_reply(rig->drafts, 3)->n, 1);
	assert_false(drafts_foresight(rig->drafts, 3, 31, &seen));
	assert_true(drafts_foresight(rig->drafts, 3, 30, &seen));
	assert_true(seen.foreseen == 8 && seen.drafted == 8 && seen.right == 2);
	assert_true(seen.method == DRAFT_NGRAM && seen.confidence[1] > 0.749f &&
		    seen.confidence[1] < 0.751f);
	assert_false(drafts_foresight(rig->drafts, 3, 30, &seen));
	/* What cannot be is not passed on. */
	struct draft_part bad[] = {said, said, said, said, said};
	bad[0].foreseen = LIMIT_DRAFT_DEPTH + 1;
	bad[1].n = 9;
	bad[2].right = 9;
	bad[3].method = DRAFT_METHODS;
	bad[4].page = LIMIT_SESSIONS;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_true(ring_put(&rig->drafter.replies, &bad[i], sizeof(bad[i])));
		assert_true(drafts_begin(rig->drafts, clock_ns()));
		assert_false(drafts_foresight(rig->drafts, 3, 30, &seen));
	}
}

/* With what each token needs; where a draft says that badly, it is a draft without it. */
static void drafts_bring_what_their_tokens_need(void **state)
{
	enum { SETS = 3, OF = 5 };
	struct rig *rig = *state;
	uint64_t needs[SETS * OF];
	struct draft_node node[] = {{7, -1, 0}, {8, 0, 0}};
	struct draft_reply reply = {.n = 2, .node = node, .method = DRAFT_MTP};

	for (uint32_t i = 0; i < SETS * OF; i++)
		needs[i] = UINT64_C(0x100000001) * (i + 1);
	begin(rig);
	for (int bad = 0; bad < 3; bad++) {
		assert_true(drafts_begin(rig->drafts, clock_ns()));
		drafts_ask(rig->drafts, 3, 30, 100, draft_chain_budget(4), OF, true);
		drafts_await(rig->drafts, 3);
		struct draft_request request = asked(rig);
		assert_int_equal(request.needs_words, OF);
		reply.session = request.session;
		reply.sequence = request.sequence;
		reply.page = request.page;
		reply.n_tokens = request.n_tokens;
		reply.needs = bad == 1 ? NULL : needs;
		reply.needs_words = OF;
		assert_true(draft_send(&rig->drafter.replies, &rig->supports, &reply, false));
		/* The reply is one part, the newest in the ring. */
		struct ring *ring = &rig->drafter.replies;
		struct draft_part *part = (struct draft_part *)(uintptr_t)ring_peek(ring);
		assert_non_null(part);
		if (bad == 2)
			part->supports = NEEDS_WORDS - SETS * OF + 1;
		drafts_wait(rig->drafts, WAIT_NS, true);
		const struct draft_reply *got = drafts_reply(rig->drafts, 3);
		assert_int_equal(got->n, 2);
		if (bad == 0)
			assert_memory_equal(got->needs, needs, sizeof(needs));
		else
			assert_null(got->needs);
	}
}

static void late_replies_are_dropped_and_a_slow_drafter_is_not_waited_for_again(void **state)
{
	struct rig *rig = *state;

	begin(rig);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	ask(rig, 0, 1, 10, 4, true);
	struct draft_request late = asked(rig);
	/* Alone it waits as long as it may, however quick drafts were. */
	uint64_t start_ns = clock_ns();
	drafts_wait(rig->drafts, 0, false);
	assert_true(clock_ns() - start_ns >= WAIT_NS);
	assert_int_equal(drafts_state(rig->drafts, 0, 1, 10), DRAFTS_OUT);
	assert_false(drafts_begin(rig->drafts, clock_ns()));
	answer(rig, &late, 2, 7);
	/* It lives: asked again at once, and the old reply is not taken for the new one. */
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	ask(rig, 0, 1, 12, 4, true);
	answer(rig, &late, 2, 7);
	struct draft_request now = asked(rig);
	answer(rig, &now, 1, 9);
	drafts_wait(rig->drafts, WAIT_NS, true);
	assert_int_equal(drafts_reply(rig->drafts, 0)->node[0].token, 9);
}

/* Two sessions, of which one is late: the round ends when the other's draft is there, and the late one's is of use for as long as the
 * session stays where it is. */
static void a_late_draft_is_waited_for_by_nobody_and_kept_when_it_comes(void **state)
{
	struct rig *rig = *state;

	begin(rig);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	drafts_ask(rig->drafts, 1, 10, 100, draft_chain_budget(4), 0, false);
	struct draft_request late = asked(rig);
	ask(rig, 2, 20, 100, 4, true);
	struct draft_request quick = asked(rig);
	answer(rig, &quick, 2, 7);
	uint64_t start_ns = clock_ns();
	drafts_wait(rig->drafts, 60000000000u, true);
	assert_true(clock_ns() - start_ns < 5000000000u);
	assert_int_equal(drafts_state(rig->drafts, 2, 20, 100), DRAFTS_HERE);
	/* The next pass: it sat out, or went on without. Others are asked for all the same. */
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	assert_int_equal(drafts_state(rig->drafts, 1, 10, 100), DRAFTS_OUT);
	assert_int_equal(drafts_state(rig->drafts, 1, 10, 101), DRAFTS_BEHIND);
	assert_true(drafts_elapsed_ns(rig->drafts, 1, clock_ns()) > 0);
	answer(rig, &late, 3, 8);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	assert_int_equal(drafts_state(rig->drafts, 1, 10, 100), DRAFTS_HERE);
	assert_int_equal(drafts_reply(rig->drafts, 1)->n, 3);
	assert_int_equal(drafts_state(rig->drafts, 1, 10, 101), DRAFTS_NONE);
	/* Each has its own pace, and a session that is new that of all. */
	assert_int_equal(drafts_pace(rig->drafts, 1, 10)->n_times, 1);
	assert_int_equal(drafts_pace(rig->drafts, 2, 20)->n_times, 1);
	assert_int_equal(drafts_pace(rig->drafts, 3, 30)->n_times, 2);
	drafts_yielded(rig->drafts, 1, 3);
	assert_true(pace_yield(drafts_pace(rig->drafts, 1, 10)) > 2.9f);
}

/* A request that a drafter has lost is made anew. */
static void what_is_never_answered_is_asked_again(void **state)
{
	struct rig *rig = *state;

	begin(rig);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	drafts_ask(rig->drafts, 1, 10, 100, draft_chain_budget(4), 0, false);
	assert_int_equal(drafts_state(rig->drafts, 1, 10, 105), DRAFTS_BEHIND);
	for (uint32_t i = 0; drafts_state(rig->drafts, 1, 10, 105) == DRAFTS_BEHIND; i++) {
		struct draft_request request;

		assert_true(i < 10000);
		usleep(1000);
		/* Others are answered. */
		if (drafts_begin(rig->drafts, clock_ns()))
			drafts_ask(rig->drafts, 2, 20, 200 + i, draft_chain_budget(4), 0, true);
		while (ring_get(&rig->drafter.requests, &request, sizeof(request)))
			if (request.page == 2)
				answer(rig, &request, 1, 7);
	}
	assert_int_equal(drafts_state(rig->drafts, 1, 10, 105), DRAFTS_NONE);
}

static void a_draft_from_masks_is_told_and_no_other(void **state)
{
	struct rig *rig = *state;
	static const int32_t tokens[] = {7, 9};

	begin(rig);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	for (uint32_t i = 0; i < 3; i++) {
		const struct drafts_own own = {
			i == 1 ? DRAFT_NONE : DRAFT_MTP_LORA, 2, tokens, NULL};

		drafts_put(rig->drafts, 1, 10, 100, &own);
		drafts_follow(rig->drafts, 1, 10, i == 2 ? 101 : 100, false);
		struct draft_request request = asked(rig);

		assert_int_equal(request.budget.nodes, 0);
		assert_int_equal(request.n_own, i == 0 ? 2 : 0);
		assert_true(i > 0 || (request.own[0] == 7 && request.own[1] == 9));
	}
}

static void a_dead_drafter_ends_the_wait_at_once(void **state)
{
	struct rig *rig = *state;

	begin(rig);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	ask(rig, 0, 1, 10, 4, true);
	drafts_peer_left(rig->drafts);
	uint64_t start_ns = clock_ns();
	drafts_wait(rig->drafts, 60000000000u, true);
	assert_true(clock_ns() - start_ns < 5000000000u);
	assert_false(drafts_begin(rig->drafts, clock_ns()));
	drafts_peer_joined(rig->drafts, 2);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
}

static void replies_to_a_predecessor_and_bad_ones_do_no_harm(void **state)
{
	struct rig *rig = *state;
	struct draft_request old = {.session = 1,
		.sequence = GENERATION - 1000000,
		.page = 0,
		.n_tokens = 10,
		.budget = draft_chain_budget(4)};

	answer(rig, &old, 2, 7); /* lies in the ring when the successor starts */
	begin(rig);
	assert_null(ring_peek(&rig->drafts->rings.replies));
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	ask(rig, 0, 1, 10, 4, true);
	answer(rig, &old, 2, 7);
	struct draft_request now = asked(rig), wild = now;
	wild.page = UINT16_MAX;
	answer(rig, &wild, 1, 7);
	answer(rig, &now, 3, VOCAB); /* a token that is none */
	drafts_wait(rig->drafts, WAIT_NS, true);
	assert_int_equal(drafts_reply(rig->drafts, 0)->n, 0);
	assert_true(drafts_begin(rig->drafts, clock_ns()));
	ask(rig, 0, 1, 10, 4, true);
	now = asked(rig);
	answer(rig, &now, 5, 7); /* more than asked for */
	drafts_wait(rig->drafts, WAIT_NS, true);
	assert_int_equal(drafts_reply(rig->drafts, 0)->n, 0);
}

static void rings_that_somebody_overwrote_carry_drafts_again(void **state)
{
	struct rig *rig = *state;

	begin(rig);
	for (uint32_t i = 0; i < 4; i++) {
		struct ring *ring = i & 1 ? &rig->drafter.replies : &rig->drafter.requests;

		atomic_store(i & 2 ? &ring->shared->head : &ring->shared->tail, UINT64_MAX / 2);
		/* The first round finds and mends it, whatever becomes of its own requests. */
		if (drafts_begin(rig->drafts, clock_ns()))
			ask(rig, 3, 77, 10, 2, true);
		struct draft_request request;
		while (ring_get(&rig->drafter.requests, &request, sizeof(request)))
			;
		/* For so long a drafter that did not answer is left alone. */
		usleep(25 * WAIT_NS / 1000);
		assert_true(drafts_begin(rig->drafts, clock_ns()));
		ask(rig, 3, 77, 10, 2, true);
		request = asked(rig);
		answer(rig, &request, 2, 5);
		drafts_wait(rig->drafts, WAIT_NS, true);
		assert_int_equal(drafts_state(rig->drafts, 3, 77, 10), DRAFTS_HERE);
		assert_int_equal(drafts_reply(rig->drafts, 3)->n, 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_round_gets_its_replies_in_any_order, setup, teardown),
		cmocka_unit_test_setup_teardown(
			what_is_foreseen_answers_nothing_and_is_told_once, setup, teardown),
		cmocka_unit_test_setup_teardown(
			late_replies_are_dropped_and_a_slow_drafter_is_not_waited_for_again, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			a_late_draft_is_waited_for_by_nobody_and_kept_when_it_comes, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			what_is_never_answered_is_asked_again, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_draft_from_masks_is_told_and_no_other, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_dead_drafter_ends_the_wait_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(
			replies_to_a_predecessor_and_bad_ones_do_no_harm, setup, teardown),
		cmocka_unit_test_setup_teardown(
			drafts_bring_what_their_tokens_need, setup, teardown),
		cmocka_unit_test_setup_teardown(
			rings_that_somebody_overwrote_carry_drafts_again, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
