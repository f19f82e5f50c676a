#include "services/verifier/pass/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct sched_limits limits = {.sessions_max = 3, .prefill_chunk = 100, .rows = 16};

static void running_sessions_decode_and_prefill_shares_one_chunk_oldest_first(void **state)
{
	struct sched_session s[] = {{.n_tokens = 50, .n_kv = 49}, {.n_tokens = 80, .n_kv = 10},
		{.n_tokens = 500, .n_kv = 0}};
	struct sched_entry e[3];

	(void)state;
	sched_rank(s, 3);
	assert_int_equal(sched_plan(s, 3, &limits, e), 3);
	assert_true(e[0].decodes && e[0].emits && e[0].n == 1);
	assert_true(!e[1].decodes && e[1].emits && e[1].n == 70);
	assert_true(!e[2].decodes && !e[2].emits && e[2].n == 30);
}

static void the_oldest_runnable_sessions_take_part(void **state)
{
	struct sched_session s[] = {{.n_tokens = 5, .n_kv = 4, .paused = true},
		{.n_tokens = 5, .n_kv = 4}, {.n_tokens = 5, .n_kv = 4}, {.n_tokens = 5, .n_kv = 4},
		{.n_tokens = 5, .n_kv = 4}};
	struct sched_entry e[3];

	(void)state;
	sched_rank(s, 5);
	assert_int_equal(sched_plan(s, 5, &limits, e), 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(e[i].session, i + 1);
}

static void sessions_that_stand_aside_get_what_the_others_leave(void **state)
{
	struct sched_session s[] = {{.n_tokens = 90, .n_kv = 0, .aside = true},
		{.n_tokens = 5, .n_kv = 4, .aside = true}, {.n_tokens = 95, .n_kv = 0},
		{.n_tokens = 5, .n_kv = 4}};
	struct sched_entry e[3];

	(void)state;
	sched_rank(s, 4);
	assert_int_equal(sched_plan(s, 4, &limits, e), 3);
	assert_int_equal(e[0].session, 2);
	assert_int_equal(e[0].n, 95);
	assert_int_equal(e[1].session, 3);
	assert_int_equal(e[2].session, 0);
	assert_int_equal(e[2].n, 5);
	/* Alone they are served as all are. */
	s[2].paused = s[3].paused = true;
	sched_rank(s, 4);
	assert_int_equal(sched_plan(s, 4, &limits, e), 2);
	assert_int_equal(e[0].session, 0);
	assert_int_equal(e[1].session, 1);
	sched_rank(s, 0);
	assert_int_equal(sched_plan(s, 0, &limits, e), 0);
}

static void clients_take_turns(void **state)
{
	/* One client with four sessions and two that came later; one session is paused, one of nobody known. */
	struct sched_session s[] = {{.client = 1}, {.client = 1, .paused = true}, {.client = 1},
		{.client = 1}, {.client = 2}, {.client = 2}, {.client = 0},
		{.client = 1, .aside = true}};
	bool seen[8] = {false};

	(void)state;
	sched_rank(s, 8);
	for (uint32_t i = 0; i < 8; i++) {
		assert_true(s[i].rank < 8 && !seen[s[i].rank]);
		seen[s[i].rank] = true;
	}
	/* Of the first turn, in the order of their age: 0, 4, 6; the paused one counts for nobody. */
	assert_int_equal(s[0].rank, 0);
	assert_true(s[4].rank < s[2].rank && s[6].rank < s[2].rank && s[4].rank < s[6].rank);
	assert_true(s[2].rank < s[5].rank && s[5].rank < s[3].rank);
	assert_int_equal(s[7].rank, 7);
	/* A client alone: by age. */
	for (uint32_t i = 0; i < 8; i++)
		s[i] = (struct sched_session){.client = 5};
	sched_rank(s, 8);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(s[i].rank, i);
}

static void pages_of_those_that_stand_aside_go_before_those_of_others(void **state)
{
	struct sched_session s[] = {{.n_pages = 1, .aside = true}, {.n_pages = 1},
		{.n_pages = 1, .aside = true}, {.n_pages = 1}};
	bool in_batch[4] = {false};

	(void)state;
	sched_rank(s, 4);
	/* An older one too, where one that does not stand aside wants them; the youngest first. */
	assert_int_equal(sched_victim(s, 4, 1, in_batch), 2);
	assert_int_equal(sched_victim(s, 4, 3, in_batch), 2);
	in_batch[2] = true;
	assert_int_equal(sched_victim(s, 4, 3, in_batch), 0);
	assert_int_equal(sched_victim(s, 4, 1, in_batch), 0);
	in_batch[0] = true;
	assert_int_equal(sched_victim(s, 4, 1, in_batch), 3);
	assert_int_equal(sched_victim(s, 4, 3, in_batch), -1);
	/* They themselves take no others' pages, nor those of their elders. */
	in_batch[0] = in_batch[2] = false;
	assert_int_equal(sched_victim(s, 4, 0, in_batch), 2);
	assert_int_equal(sched_victim(s, 4, 2, in_batch), -1);
	s[1].paused = true;
	assert_int_equal(sched_victim(s, 4, 2, in_batch), 1);
}

static void a_prompt_that_finds_no_budget_waits_without_taking_a_place(void **state)
{
	struct sched_session s[] = {{.n_tokens = 500, .n_kv = 0}, {.n_tokens = 500, .n_kv = 0},
		{.n_tokens = 500, .n_kv = 0}, {.n_tokens = 9, .n_kv = 8}};
	struct sched_entry e[3];

	(void)state;
	sched_rank(s, 4);
	assert_int_equal(sched_plan(s, 4, &limits, e), 2);
	assert_int_equal(e[0].n, 100);
	assert_int_equal(e[1].session, 3);
}

static void positions_that_must_show_their_logits_again_go_in_small_steps(void **state)
{
	struct sched_session s = {.n_tokens = 90, .n_kv = 0, .hashed = true, .n_prompt = 40};
	struct sched_entry e[3];
	uint32_t steps = 0;

	(void)state;
	while (s.n_kv < s.n_tokens) {
		sched_rank(&s, 1);
		assert_int_equal(sched_plan(&s, 1, &limits, e), 1);
		uint32_t first = s.n_kv + 1 < s.n_prompt ? s.n_prompt - 1 : s.n_kv;
		/* Rows: those positions of the step whose logits gave an output token. */
		if (s.n_kv + e[0].n >= s.n_prompt)
			assert_true(s.n_kv + e[0].n - first <= limits.rows);
		assert_true(e[0].n > 0);
		s.n_kv += e[0].n;
		steps++;
	}
	assert_int_equal(s.n_kv, s.n_tokens);
	assert_in_range(steps, 4, 5);
}

static void k_leaves_room_for_the_token_after_the_draft(void **state)
{
	(void)state;
	assert_int_equal(sched_k(7, 20, 10, 100, 1000), 7);
	/* 3 outputs left: two drafted and the one after. */
	assert_int_equal(sched_k(7, 107, 10, 100, 1000), 2);
	assert_int_equal(sched_k(7, 109, 10, 100, 1000), 0);
	assert_int_equal(sched_k(7, 110, 10, 100, 1000), 0);
	assert_int_equal(sched_k(7, 997, 10, 5000, 1000), 2);
	assert_int_equal(sched_k(7, 1000, 10, 5000, 1000), 0);
	assert_int_equal(sched_k(0, 20, 10, 100, 1000), 0);
}

static void pages_are_taken_from_the_paused_then_the_youngest_and_never_from_elders(void **state)
{
	struct sched_session s[] = {{.n_pages = 4}, {.n_pages = 4, .paused = true}, {.n_pages = 4},
		{.n_pages = 0}, {.n_pages = 4}, {.n_pages = 0}};
	bool in_batch[6] = {false};

	(void)state;
	sched_rank(s, 6);
	assert_int_equal(sched_victim(s, 6, 2, in_batch), 1);
	s[1].n_pages = 0;
	assert_int_equal(sched_victim(s, 6, 2, in_batch), 4);
	in_batch[4] = true;
	assert_int_equal(sched_victim(s, 6, 2, in_batch), -1);
	assert_int_equal(sched_victim(s, 6, 5, in_batch), -1);
	in_batch[4] = false;
	assert_int_equal(sched_victim(s, 6, 0, in_batch), 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(running_sessions_decode_and_prefill_shares_one_chunk_oldest_first),
		cmocka_unit_test(the_oldest_runnable_sessions_take_part),
		cmocka_unit_test(sessions_that_stand_aside_get_what_the_others_leave),
		cmocka_unit_test(clients_take_turns),
		cmocka_unit_test(pages_of_those_that_stand_aside_go_before_those_of_others),
		cmocka_unit_test(a_prompt_that_finds_no_budget_waits_without_taking_a_place),
		cmocka_unit_test(positions_that_must_show_their_logits_again_go_in_small_steps),
		cmocka_unit_test(k_leaves_room_for_the_token_after_the_draft),
		cmocka_unit_test(
			pages_are_taken_from_the_paused_then_the_youngest_and_never_from_elders),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
