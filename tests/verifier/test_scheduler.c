#include "services/verifier/pass/scheduler.h"

#include "shared/base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Nobody has aged. */
static const struct sched_ageing young = {.now_ns = 0, .step_ns = 1};
static struct sched_session *pointers[LIMIT_SESSIONS], *order[LIMIT_SESSIONS];

/* How many of the sessions may run, in which order. */
static uint32_t in_order(struct sched_session *sessions, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		sessions[i].index = i;
		pointers[i] = &sessions[i];
	}
	return sched_order(pointers, n, &young, order);
}

/* The plan for them, oldest first. */
static uint32_t planned(struct sched_session *sessions, uint32_t n,
	const struct sched_limits *limits, struct sched_entry *out)
{
	return sched_plan(order, in_order(sessions, n), limits, out);
}

static const struct sched_limits limits = {.sessions_max = 3, .prefill_chunk = 100, .rows = 16};

static void running_sessions_decode_and_prefill_shares_one_chunk_oldest_first(void **state)
{
	struct sched_session s[] = {{.n_tokens = 50, .n_kv = 49}, {.n_tokens = 80, .n_kv = 10},
		{.n_tokens = 500, .n_kv = 0}};
	struct sched_entry e[3];

	(void)state;
	assert_int_equal(planned(s, 3, &limits, e), 3);
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
	assert_int_equal(planned(s, 5, &limits, e), 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(e[i].session->index, i + 1);
}

static void sessions_that_stand_aside_get_what_the_others_leave(void **state)
{
	struct sched_session s[] = {{.n_tokens = 90, .n_kv = 0, .aside = true},
		{.n_tokens = 5, .n_kv = 4, .aside = true}, {.n_tokens = 95, .n_kv = 0},
		{.n_tokens = 5, .n_kv = 4}};
	struct sched_entry e[3];

	(void)state;
	assert_int_equal(planned(s, 4, &limits, e), 3);
	assert_int_equal(e[0].session->index, 2);
	assert_int_equal(e[0].n, 95);
	assert_int_equal(e[1].session->index, 3);
	assert_int_equal(e[2].session->index, 0);
	assert_int_equal(e[2].n, 5);
	/* Alone they are served as all are. */
	s[2].paused = s[3].paused = true;
	assert_int_equal(planned(s, 4, &limits, e), 2);
	assert_int_equal(e[0].session->index, 0);
	assert_int_equal(e[1].session->index, 1);
	assert_int_equal(planned(s, 0, &limits, e), 0);
}

static void clients_take_turns(void **state)
{
	/* One client with four sessions and two that came later; one session is paused, one of nobody known. */
	struct sched_session s[] = {{.client = 1}, {.client = 1, .paused = true}, {.client = 1},
		{.client = 1}, {.client = 2}, {.client = 2}, {.client = 0},
		{.client = 1, .aside = true}};
	static const uint32_t expected[] = {0, 4, 6, 2, 5, 3, 7};

	(void)state;
	/* Of the first turn, in the order of their age: 0, 4, 6; the paused one counts for nobody. */
	assert_int_equal(in_order(s, 8), 7);
	for (uint32_t i = 0; i < 7; i++) {
		assert_int_equal(order[i]->index, expected[i]);
		assert_int_equal(order[i]->rank, i);
	}
	/* A client alone: by age. */
	for (uint32_t i = 0; i < 8; i++)
		s[i] = (struct sched_session){.client = 5};
	assert_int_equal(in_order(s, 8), 8);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(order[i]->index, i);
}

static void the_greatest_priority_is_first_and_clients_take_turns_within_it(void **state)
{
	struct sched_session s[] = {{.client = 1, .priority = -5}, {.client = 1, .priority = -5},
		{.client = 2, .priority = -5}, {.client = 1, .priority = 3},
		{.client = 1, .priority = 3}, {.client = 2, .priority = 3, .aside = true},
		{.client = 2, .priority = 3}, {.client = 3}};
	static const uint32_t expected[] = {3, 6, 4, 7, 0, 2, 1, 5};

	(void)state;
	assert_int_equal(in_order(s, 8), 8);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(order[i]->index, expected[i]);
}

static uint32_t random_below(uint32_t n)
{
	static uint32_t seed = 7;

	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % n;
}

/* The turn of the i-th of n sessions, by its definition. */
static uint32_t turn_by_definition(const struct sched_session *const *s, uint32_t i)
{
	uint32_t turn = 0;

	for (uint32_t j = 0; j < i && s[i]->client != 0; j++)
		turn += s[j]->client == s[i]->client && s[j]->priority == s[i]->priority;
	return turn;
}

/* Virtual time: sessions of any priority and client arrive without end, more than there is room for.
 * At every instant the bound of sched_order holds, and every session gets its service in the end. */
static void no_later_session_comes_before_one_that_has_aged(void **state)
{
	enum { STEP = 10, PLACES = 4, TOP = 5, ROUNDS = 20000 };
	static struct sched_session pool[64];
	static uint32_t left[64];
	struct sched_session *live[64];
	uint32_t n = 0, served = 0, aged = 0;
	bool used[64] = {false};

	(void)state;
	for (uint64_t now = 0; now < ROUNDS || n > 0; now++) {
		uint32_t arrivals = now < ROUNDS ? random_below(3) : 0;

		for (uint32_t a = 0; a < arrivals && n < 64; a++) {
			uint32_t at = 0;

			while (used[at])
				at++;
			used[at] = true;
			/* Most are urgent: without ageing they would be served for ever. */
			pool[at] = (struct sched_session){.index = at,
				.client = random_below(4),
				.priority = random_below(8) == 0 ? -(int32_t)random_below(6) : TOP,
				.begun_ns = now,
				.n_tokens = 2,
				.n_kv = 1};
			left[at] = 1 + random_below(8);
			live[n++] = &pool[at];
		}
		const struct sched_ageing ageing = {.now_ns = now, .step_ns = STEP};
		uint32_t running = sched_order(live, n, &ageing, order);

		assert_int_equal(running, n);
		for (uint32_t i = 0; i < n; i++) {
			uint32_t turn =
				turn_by_definition((const struct sched_session *const *)live, i);
			uint64_t bound = ((uint64_t)(TOP - live[i]->priority) + turn) * STEP;

			if (now - live[i]->begun_ns < bound)
				continue;
			aged += bound > 0;
			for (uint32_t j = i + 1; j < n; j++)
				assert_true(live[j]->rank > live[i]->rank);
		}
		for (uint32_t r = 0; r < running && r < PLACES; r++)
			left[order[r]->index]--;
		uint32_t kept = 0;
		for (uint32_t i = 0; i < n; i++) {
			if (left[live[i]->index] > 0) {
				live[kept++] = live[i];
				continue;
			}
			used[live[i]->index] = false;
			served++;
		}
		n = kept;
		assert_true(now < 2 * ROUNDS);
	}
	assert_true(served > ROUNDS / 2 && aged > 1000);
}

static void a_chunk_is_what_the_measured_cost_of_passes_leaves_room_for(void **state)
{
	struct sched_cost cost = {0};

	(void)state;
	/* Nothing is known yet, and there is no target. */
	assert_int_equal(sched_chunk(&cost, 1000, 256), 256);
	for (uint32_t i = 0; i < 100; i++)
		sched_learn(&cost, i % 3 * 50, 20000 + 100 * (i % 3 * 50));
	assert_int_equal(sched_chunk(&cost, 0, 256), 256);
	assert_in_range(sched_chunk(&cost, 30000, 256), 98, 101);
	assert_int_equal(sched_chunk(&cost, 1000000, 256), 256);
	/* A pass takes longer than the target even without a prompt. */
	assert_int_equal(sched_chunk(&cost, 10000, 256), SCHED_CHUNK_MIN);
	assert_int_equal(sched_chunk(&cost, 10000, 8), 8);
	/* Passes that are all alike say nothing of the slope. */
	for (uint32_t i = 0; i < 1000; i++)
		sched_learn(&cost, 50, 45000);
	assert_in_range(sched_chunk(&cost, 50000, 256), 50, 101);
	/* Prompts became dearer. */
	for (uint32_t i = 0; i < 1000; i++)
		sched_learn(&cost, i % 2 * 50, 20000 + 200 * (i % 2 * 50));
	assert_in_range(sched_chunk(&cost, 30000, 256), 48, 51);
	/* Two passes of 50 and one of 25 tokens. */
	assert_in_range(sched_prefill_ns(&cost, 125, 50), 84000, 86000);
	cost = (struct sched_cost){0};
	assert_int_equal(sched_prefill_ns(&cost, 125, 50), 0);
}

static void the_strictest_target_among_those_that_decode_counts(void **state)
{
	struct sched_session s[] = {{.n_tokens = 9, .n_kv = 2, .pass_ns_max = 10},
		{.n_tokens = 9, .n_kv = 8}, {.n_tokens = 9, .n_kv = 8, .pass_ns_max = 40},
		{.n_tokens = 9, .n_kv = 8, .pass_ns_max = 30}};
	uint32_t n = in_order(s, 4);

	(void)state;
	/* The first is a prompt, and the last has no place. */
	assert_int_equal(sched_pass_ns_max(order, n, &limits), 40);
	assert_int_equal(sched_pass_ns_max(order, 2, &limits), 0);
}

/* Virtual time: one session decodes with a target while prompts come. No pass takes longer than the
 * target where the least chunk allows that, and prompts go on. */
static void passes_keep_to_the_target_while_prompts_are_computed(void **state)
{
	const struct sched_limits all = {.sessions_max = 8, .prefill_chunk = 256, .rows = 16};
	struct sched_session s[] = {
		{.n_tokens = 10, .n_kv = 9, .pass_ns_max = 50000}, {.n_tokens = 4000, .n_kv = 0}};
	struct sched_cost cost = {0};
	uint32_t over = 0, passes = 0;

	(void)state;
	for (; s[1].n_kv + 1 < s[1].n_tokens; passes++) {
		struct sched_entry e[8];
		struct sched_limits now = all;
		uint32_t n = in_order(s, 2), prompt = 0;

		now.prefill_chunk =
			sched_chunk(&cost, sched_pass_ns_max(order, n, &all), all.prefill_chunk);
		n = sched_plan(order, n, &now, e);
		for (uint32_t i = 0; i < n; i++)
			prompt += e[i].decodes ? 0 : e[i].n;
		uint64_t ns = 20000 + 150 * (uint64_t)prompt + random_below(1000);
		sched_learn(&cost, prompt, ns);
		over += ns > 51000;
		s[0].n_tokens++;
		s[0].n_kv++;
		s[1].n_kv += prompt;
		if (passes == 0) /* so that passes without a prompt are known too */
			sched_learn(&cost, 0, 20000);
	}
	/* The first pass knows nothing. */
	assert_int_equal(over, 1);
	assert_in_range(passes, 15, 40);
}

/* The same by its definition, for any sessions: their turn, and in a turn their age. */
static void the_order_of_many_is_by_turn_and_age(void **state)
{
	struct sched_session s[LIMIT_SESSIONS];
	uint32_t turn[LIMIT_SESSIONS], seed = 1;

	(void)state;
	for (uint32_t round = 0; round < 200; round++) {
		for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
			seed = seed * 1664525 + 1013904223;
			s[i] = (struct sched_session){
				.client = (uint64_t)(seed >> 16) % (1 + round % 100) *
					  (round % 2 ? 1 : 2 * LIMIT_SESSIONS),
				.paused = (seed >> 8) % 5 == 0,
				.aside = (seed >> 12) % 4 == 0,
			};
			turn[i] = s[i].aside ? LIMIT_SESSIONS : 0;
			for (uint32_t j = 0; j < i && s[i].client != 0; j++)
				turn[i] += s[j].client == s[i].client && !s[j].paused &&
					   s[j].aside == s[i].aside;
		}
		uint32_t n = in_order(s, LIMIT_SESSIONS), running = 0;

		for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
			running += !s[i].paused;
		assert_int_equal(n, running);
		for (uint32_t r = 1; r < n; r++) {
			uint32_t a = order[r - 1]->index, b = order[r]->index;

			assert_true((a < b && turn[a] == turn[b]) || turn[a] < turn[b]);
			assert_false(order[r]->paused);
		}
	}
}

static struct sched_victims victims_of(struct sched_session *sessions, uint32_t n)
{
	uint32_t running = in_order(sessions, n);

	return (struct sched_victims){pointers, n, order, running};
}

/* The next victim's index; -1: none. Gives its pages back, as the engine does. */
static int victim(struct sched_victims *victims, const struct sched_session *wanting)
{
	struct sched_session *s = sched_victim(victims, wanting);

	if (s == NULL)
		return -1;
	s->n_pages = 0;
	return (int)s->index;
}

static void pages_of_those_that_stand_aside_go_before_those_of_others(void **state)
{
	struct sched_session s[] = {{.n_pages = 1, .aside = true}, {.n_pages = 1},
		{.n_pages = 1, .aside = true}, {.n_pages = 1}};
	struct sched_victims victims = victims_of(s, 4);

	(void)state;
	/* An older one too, where one that does not stand aside wants them; the youngest first. */
	assert_int_equal(victim(&victims, &s[1]), 2);
	assert_int_equal(victim(&victims, &s[3]), 0);
	assert_int_equal(victim(&victims, &s[3]), -1);
	s[0].n_pages = s[2].n_pages = 1;
	victims = victims_of(s, 4);
	assert_int_equal(victim(&victims, &s[1]), 2);
	assert_int_equal(victim(&victims, &s[1]), 0);
	assert_int_equal(victim(&victims, &s[1]), 3);
	assert_int_equal(victim(&victims, &s[1]), -1);
	/* They themselves take no others' pages, nor those of their elders. */
	s[0].n_pages = s[2].n_pages = s[3].n_pages = 1;
	victims = victims_of(s, 4);
	assert_int_equal(victim(&victims, &s[0]), 2);
	assert_int_equal(victim(&victims, &s[0]), -1);
	assert_int_equal(victim(&victims, &s[2]), -1);
	s[1].paused = true;
	victims = victims_of(s, 4);
	assert_int_equal(victim(&victims, &s[2]), 1);
}

static void a_prompt_that_finds_no_budget_waits_without_taking_a_place(void **state)
{
	struct sched_session s[] = {{.n_tokens = 500, .n_kv = 0}, {.n_tokens = 500, .n_kv = 0},
		{.n_tokens = 500, .n_kv = 0}, {.n_tokens = 9, .n_kv = 8}};
	struct sched_entry e[3];

	(void)state;
	assert_int_equal(planned(s, 4, &limits, e), 2);
	assert_int_equal(e[0].n, 100);
	assert_int_equal(e[1].session->index, 3);
}

static void fast_chunks_are_not_cut(void **state)
{
	const struct sched_limits fast = {
		.sessions_max = 4, .prefill_chunk = 300, .rows = 16, .fast_chunk = 128};
	struct sched_session s[] = {
		{.n_tokens = 600, .n_kv = 0, .n_prompt = 600, .n_fast = 512, .page = 32},
		{.n_tokens = 200, .n_kv = 128, .n_prompt = 200, .n_fast = 128},
		{.n_tokens = 200, .n_kv = 0, .n_prompt = 200, .n_fast = 128},
		{.n_tokens = 9, .n_kv = 8, .n_prompt = 3},
	};
	struct sched_entry e[4];

	(void)state;
	/* Two chunks; the other one's exact rest, as far as there is room; no room for a chunk. */
	assert_int_equal(planned(s, 4, &fast, e), 3);
	assert_int_equal(e[0].n, 256);
	assert_int_equal(e[1].n, 44);
	assert_true(e[2].decodes);
	/* The last chunk, and what follows it. */
	s[0].n_kv = 384;
	s[1].n_kv = 199;
	assert_int_equal(planned(s, 4, &fast, e), 3);
	assert_true(e[0].n == 216 && e[0].emits);
	/* A place to stop within a chunk does not cut it, and does not hold it up. */
	s[0].n_kv = 0;
	s[0].stops[0] = 96;
	assert_int_equal(planned(s, 1, &fast, e), 1);
	assert_int_equal(e[0].n, 128);
	s[0].stops[0] = 0;
	s[0].stops[1] = 288;
	assert_int_equal(planned(s, 1, &fast, e), 1);
	assert_int_equal(e[0].n, 256);
}

static void positions_that_must_show_their_logits_again_go_in_small_steps(void **state)
{
	struct sched_session s = {.n_tokens = 90, .n_kv = 0, .recorded = true, .n_prompt = 40};
	struct sched_entry e[3];
	uint32_t steps = 0;

	(void)state;
	while (s.n_kv < s.n_tokens) {
		assert_int_equal(planned(&s, 1, &limits, e), 1);
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
		{.n_pages = 0}, {.n_pages = 4, .paused = true}, {.n_pages = 4}, {.n_pages = 0}};
	struct sched_victims victims = victims_of(s, 7);

	(void)state;
	assert_int_equal(victim(&victims, &s[2]), 4);
	assert_int_equal(victim(&victims, &s[2]), 1);
	assert_int_equal(victim(&victims, &s[2]), 5);
	assert_int_equal(victim(&victims, &s[2]), -1);
	assert_int_equal(victim(&victims, &s[6]), -1);
	s[5].n_pages = 1;
	victims = victims_of(s, 7);
	assert_int_equal(victim(&victims, &s[0]), 5);
	assert_int_equal(victim(&victims, &s[0]), 2);
	assert_int_equal(victim(&victims, &s[0]), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(running_sessions_decode_and_prefill_shares_one_chunk_oldest_first),
		cmocka_unit_test(the_oldest_runnable_sessions_take_part),
		cmocka_unit_test(sessions_that_stand_aside_get_what_the_others_leave),
		cmocka_unit_test(clients_take_turns),
		cmocka_unit_test(the_greatest_priority_is_first_and_clients_take_turns_within_it),
		cmocka_unit_test(no_later_session_comes_before_one_that_has_aged),
		cmocka_unit_test(a_chunk_is_what_the_measured_cost_of_passes_leaves_room_for),
		cmocka_unit_test(the_strictest_target_among_those_that_decode_counts),
		cmocka_unit_test(passes_keep_to_the_target_while_prompts_are_computed),
		cmocka_unit_test(the_order_of_many_is_by_turn_and_age),
		cmocka_unit_test(pages_of_those_that_stand_aside_go_before_those_of_others),
		cmocka_unit_test(a_prompt_that_finds_no_budget_waits_without_taking_a_place),
		cmocka_unit_test(fast_chunks_are_not_cut),
		cmocka_unit_test(positions_that_must_show_their_logits_again_go_in_small_steps),
		cmocka_unit_test(k_leaves_room_for_the_token_after_the_draft),
		cmocka_unit_test(
			pages_are_taken_from_the_paused_then_the_youngest_and_never_from_elders),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
