/* Which nodes of a draft are verified, and how likely they are. */
#include "services/verifier/pass/node_chance.h"
#include "services/verifier/pass/node_pick.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORDS = 4 };
static struct pick pick;

static int setup(void **state)
{
	struct error err;
	(void)state;
	assert_int_equal(pick_init(&pick, WORDS, &err), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	pick_exit(&pick);
	return 0;
}

static void clear(void)
{
	memset(pick.wanted, 0, WORDS * sizeof(uint64_t));
	memset(pick.resident, 0, WORDS * sizeof(uint64_t));
	memset(pick.coming, 0, WORDS * sizeof(uint64_t));
	memset(pick.needs, 0, (size_t)LIMIT_DRAFT_NODES * WORDS * sizeof(uint64_t));
}

static const struct policy_prices prices = {.token = 100, .row = 10, .expert = 1, .load = 20};

/* Two siblings: the likelier one needs four experts that must be loaded, the other one four that
 * are resident. There is too little in the likelier one for its loads. */
static void resident_experts_go_before_a_likelier_branch_that_must_load(void **state)
{
	struct draft_node node[] = {{.parent = -1}, {.parent = -1}};
	struct draft_reply draft = {.n = 2, .node = node};
	const float chance[] = {0.6f, 0.3f};

	(void)state;
	clear();
	pick_needs(&pick, 0)[0] = 0x0f;
	pick_needs(&pick, 1)[1] = 0xf0;
	pick.resident[1] = 0xf0;
	assert_int_equal(pick_nodes(&pick, &prices, &draft, chance), 1);
	assert_int_equal(pick.kept[0], 0);
	assert_int_equal(pick.kept[1], 1);
	assert_int_equal(pick.node[0].absent, 4);
	assert_int_equal(pick.node[0].why, PICK_DEAR);
	assert_true(pick.node[0].cost_ns > 93 && pick.node[0].cost_ns < 95);
	assert_int_equal(pick.node[1].absent, 0);
	assert_int_equal(pick.node[1].fresh, 4);
	assert_int_equal(pick.wanted[1], 0xf0);
	/* Once the experts are there, or the pass needs them anyway, both are taken. */
	clear();
	pick_needs(&pick, 0)[0] = 0x0f;
	pick_needs(&pick, 1)[1] = 0xf0;
	pick.resident[0] = 0x0f;
	pick.wanted[1] = 0xf0;
	assert_int_equal(pick_nodes(&pick, &prices, &draft, chance), 2);
	/* On their way they cost half a load each. */
	clear();
	pick_needs(&pick, 0)[0] = 0x0f;
	pick.coming[0] = 0x0f;
	assert_int_equal(pick_nodes(&pick, &prices, &draft, chance), 2);
	assert_int_equal(pick.node[0].absent, 0);
	assert_true(pick.node[0].cost_ns > 53 && pick.node[0].cost_ns < 55);
}

/* A node makes its experts free for others: a sibling that is too dear alone is taken behind one
 * that needs the same experts. */
static void experts_are_paid_once(void **state)
{
	struct draft_node node[] = {{.parent = -1}, {.parent = -1}, {.parent = -1}};
	struct draft_reply draft = {.n = 3, .node = node};
	const float chance[] = {0.2f, 0.75f, 0.2f};

	(void)state;
	clear();
	for (uint32_t i = 0; i < 3; i++)
		pick_needs(&pick, i)[2] = i < 2 ? 0x7 : 0x38;
	assert_int_equal(pick_nodes(&pick, &prices, &draft, chance), 2);
	assert_int_equal(pick.kept[0], 1);
	assert_int_equal(pick.kept[1], 1);
	assert_int_equal(pick.kept[2], 0);
	assert_int_equal(pick.node[0].fresh, 0);
}

/* A token that costs more than it brings is taken for the ones behind it. */
static void a_run_pays_for_its_first_token(void **state)
{
	struct draft_node node[] = {{.parent = -1}, {.parent = 0}, {.parent = 1}, {.parent = 2}};
	struct draft_reply draft = {.n = 4, .node = node};
	const float chance[] = {0.9f, 0.8f, 0.7f, 0.01f};

	(void)state;
	clear();
	for (uint32_t i = 0; i < 4; i++)
		pick_needs(&pick, i)[0] = 0x1f;
	assert_int_equal(pick_nodes(&pick, &prices, &draft, chance), 3);
	assert_true(pick.node[0].cost_ns > 100);
	assert_int_equal(pick.node[3].why, PICK_DEAR);
	draft.n = 1;
	memset(pick.wanted, 0, WORDS * sizeof(uint64_t));
	assert_int_equal(pick_nodes(&pick, &prices, &draft, chance), 0);
	/* Nothing is taken where prices make no sense. */
	struct policy_prices odd = {.token = 100, .row = 0, .expert = -1, .load = 0};
	odd.token = -1;
	assert_int_equal(pick_nodes(&pick, &odd, &draft, chance), 0);
}

static uint32_t number(uint64_t *seed, uint32_t below)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)(*seed >> 33) % below;
}

/* A random tree whose nodes need random experts, half of which are resident. */
static struct draft_reply any_tree(
	uint64_t seed, uint32_t n, struct draft_node *node, float *chance)
{
	clear();
	for (uint32_t i = 0; i < n; i++) {
		int parent = (int)number(&seed, i + 1) - 1;

		node[i] = (struct draft_node){.parent = (int16_t)parent, .token = (int32_t)i};
		chance[i] = (float)(1 + number(&seed, 99)) / 100;
		chance[i] *= parent < 0 ? 1 : chance[parent];
		for (uint32_t j = 0; j < 6; j++) {
			uint32_t bit = number(&seed, 64 * WORDS);

			pick_needs(&pick, i)[bit / 64] |= UINT64_C(1) << bit % 64;
		}
	}
	for (uint32_t w = 0; w < WORDS; w++)
		pick.resident[w] = UINT64_C(0x5555555555555555);
	return (struct draft_reply){.n = n, .node = node};
}

/* Dearer tokens only add nodes; what is kept is a draft; the same input gives the same nodes. */
static void more_is_taken_the_more_a_token_is_worth(void **state)
{
	static struct draft_node node[LIMIT_DRAFT_NODES];
	float chance[LIMIT_DRAFT_NODES];
	uint16_t before[LIMIT_DRAFT_NODES];

	(void)state;
	for (uint64_t seed = 1; seed < 40; seed++) {
		uint32_t n = seed == 39 ? LIMIT_DRAFT_NODES : 1 + (uint32_t)seed * 4, last = 0;

		memset(before, 0, sizeof(before));
		for (float token = 1; token < 1e20f; token *= 3) {
			struct policy_prices p = prices;
			struct draft_reply draft = any_tree(seed, n, node, chance);

			p.token = token;
			uint32_t n_kept = pick_nodes(&pick, &p, &draft, chance), again = 0;
			assert_true(n_kept >= last);
			for (uint32_t i = 0; i < n; i++) {
				assert_true(pick.kept[i] >= before[i]);
				if (pick.kept[i] && node[i].parent >= 0)
					assert_int_equal(pick.kept[node[i].parent], 1);
				again += pick.kept[i];
			}
			assert_int_equal(again, n_kept);
			memcpy(before, pick.kept, sizeof(before));
			draft = any_tree(seed, n, node, chance);
			assert_int_equal(pick_nodes(&pick, &p, &draft, chance), n_kept);
			assert_memory_equal(before, pick.kept, sizeof(before));
			last = n_kept;
		}
		assert_int_equal(last, n);
	}
}

/* Two siblings, of which the drafter believes 0.6 and 0.3; the second is accepted in 8 of 10. */
static void chances_follow_what_was_accepted(void **state)
{
	struct draft_node node[] = {{.parent = -1, .confidence = draft_confidence(0.6f)},
		{.parent = -1, .confidence = draft_confidence(0.3f)},
		{.parent = 1, .confidence = draft_confidence(0.95f)}};
	struct draft_reply draft = {.n = 3, .node = node};
	static const struct chance_record none;
	struct chance_record own = {0}, pool = {0};
	float before[3], chance[3];

	(void)state;
	chance_of_draft(&none, &none, &draft, before);
	assert_true(before[0] > 0.59f && before[0] < 0.61f);
	assert_true(before[2] > 0.28f && before[2] < 0.29f);
	for (int i = 0; i < 1000; i++) {
		const int16_t first = 0, second = 1;

		chance_learn(&own, &draft, i % 10 < 8 ? &second : &first, 1);
	}
	chance_of_draft(&own, &none, &draft, chance);
	assert_true(chance[0] > 0.15f && chance[0] < 0.25f);
	assert_true(chance[1] > 0.7f && chance[1] < 0.85f);
	/* Never accepted where it was reached. */
	assert_true(chance[2] < 0.1f * chance[1]);
	/* A new session has what others showed. */
	pool = own;
	chance_of_draft(&none, &pool, &draft, chance);
	assert_true(chance[0] < 0.3f && chance[1] > 0.6f);
	for (uint32_t i = 0; i < 3; i++)
		assert_true(chance[i] >= 0 && chance[i] <= 1);
}

/* Layers of 24 experts lie across words. What is said of a layer replaces what is guessed of it, and
 * only there. */
static void what_is_said_of_a_layer_replaces_the_guess(void **state)
{
	enum { LAYERS = 10, EXPERTS = 24 };
	uint64_t said[WORDS] = {0}, guess[WORDS] = {0}, to[WORDS] = {0}, alone[WORDS] = {0};

	(void)state;
	for (uint32_t i = 0; i < LAYERS; i++) {
		uint32_t bit = i * EXPERTS + (i * 7 + 3) % EXPERTS, other = i * EXPERTS + i;
		guess[bit / 64] |= UINT64_C(1) << bit % 64;
		if (i % 3 == 2)
			said[other / 64] |= UINT64_C(1) << other % 64;
	}
	to[0] = UINT64_C(1) << 20;
	pick_join(LAYERS, EXPERTS, said, guess, to);
	pick_join(LAYERS, EXPERTS, NULL, guess, alone);
	assert_memory_equal(alone, guess, sizeof(guess));
	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
		const uint64_t *from = i / EXPERTS % 3 == 2 ? said : guess;
		bool want = i == 20 || (from[i / 64] >> i % 64 & 1) != 0;
		assert_int_equal(to[i / 64] >> i % 64 & 1, want);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(resident_experts_go_before_a_likelier_branch_that_must_load),
		TEST(experts_are_paid_once),
		TEST(a_run_pays_for_its_first_token),
		TEST(more_is_taken_the_more_a_token_is_worth),
		TEST(what_is_said_of_a_layer_replaces_the_guess),
		TEST(chances_follow_what_was_accepted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
