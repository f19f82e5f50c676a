/* What tokens wanted before, and what that says of the next ones. */
#include "shared/spec/expert_history.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 6, MOE = 5, EXPERTS = 32, USED = 4, ROOM = 1 << 20 };

static int setup(void **state)
{
	struct expert_history *h = calloc(1, sizeof(*h));
	struct error err;
	expert_history_init(h);
	assert_int_equal(expert_history_shape(h, LAYERS, EXPERTS, USED, ROOM, &err), 0);
	*state = h;
	return 0;
}

static int teardown(void **state)
{
	expert_history_exit(*state);
	free(*state);
	return 0;
}

/* What a token wants in a layer, when its wishes are its own. */
static uint16_t wish(int32_t token, uint32_t ordinal, uint32_t j)
{
	return (uint16_t)(((uint32_t)token * 7 + ordinal * 3 + j * 5) % EXPERTS);
}

static struct draft_routing routing(uint64_t uid, uint32_t page, int32_t before, int32_t token)
{
	struct draft_routing r = {.session = uid,
		.page = page,
		.token = token,
		.before = before,
		.n_layers = MOE,
		.n_moe = MOE,
		.n_used = USED};
	for (uint32_t o = 0; o < MOE; o++) {
		uint16_t *items = r.items + (size_t)o * (1 + USED);
		items[0] = (uint16_t)(o + 1); /* layer 0 is dense */
		for (uint32_t j = 0; j < USED; j++)
			items[1 + j] = wish(token, o, j);
	}
	return r;
}

static void learn(
	struct expert_history *h, uint64_t uid, uint32_t page, int32_t before, int32_t token)
{
	struct draft_routing r = routing(uid, page, before, token);
	expert_history_learn(h, &r);
}

/* How many of the token's wishes of a layer are foreseen; *n: hinted in all. */
static uint32_t foreseen(struct expert_history *h, uint32_t ordinal, int32_t token, uint32_t *n)
{
	uint16_t experts[EXPERTS];
	float score[EXPERTS];
	uint32_t found = 0;
	*n = expert_history_choose(h, ordinal, experts, score);
	assert_true(*n <= EXPERTS);
	for (uint32_t i = 0; i < *n; i++) {
		assert_true(experts[i] < EXPERTS);
		assert_true(score[i] > 0 && score[i] <= 1);
		for (uint32_t j = 0; j < USED; j++)
			found += experts[i] == wish(token, ordinal, j);
	}
	return found;
}

static void what_a_token_wanted_is_foreseen_when_it_comes_again(void **state)
{
	struct expert_history *h = *state;
	uint32_t n;
	for (int round = 0; round < 8; round++)
		for (int32_t t = 0; t < 40; t++)
			learn(h, 1, 3, -1, t);
	for (int32_t t = 0; t < 40; t++) {
		expert_history_begin(h);
		expert_history_token(h, 3, 1, -1, t);
		for (uint32_t o = 0; o < MOE; o++) {
			assert_int_equal(foreseen(h, o, t, &n), USED);
			assert_true(n <= USED + 1);
		}
	}
	assert_int_equal(h->n_moe, MOE);
	for (uint32_t o = 0; o < MOE; o++)
		assert_int_equal(h->layer[o], o + 1);
}

static void a_draft_is_foreseen_as_the_union_of_its_tokens(void **state)
{
	struct expert_history *h = *state;
	uint32_t n;
	for (int round = 0; round < 8; round++)
		for (int32_t t = 0; t < 40; t++)
			learn(h, 1, 3, -1, t);
	expert_history_begin(h);
	for (int32_t t = 0; t < 3; t++)
		expert_history_token(h, 3, 1, -1, t);
	/* Three tokens with nothing in common; what is spread over the others may cost one. */
	uint32_t found = 0;
	for (int32_t t = 0; t < 3; t++)
		found += foreseen(h, 2, t, &n);
	assert_true(found >= 3 * USED - 1);
	assert_true(n <= 3 * USED + 1);
}

static void the_token_before_sharpens_what_is_foreseen(void **state)
{
	struct expert_history *h = *state;
	uint32_t n;
	/* After 1, token 9 wants what 9 wants; after 2, what 20 wants. */
	for (int i = 0; i < 30; i++) {
		learn(h, 1, 0, 1, 9);
		struct draft_routing other = routing(1, 0, 2, 20);
		other.token = 9;
		expert_history_learn(h, &other);
	}
	expert_history_begin(h);
	expert_history_token(h, 0, 1, 1, 9);
	assert_int_equal(foreseen(h, 0, 9, &n), USED);
	expert_history_begin(h);
	expert_history_token(h, 0, 1, 2, 9);
	assert_int_equal(foreseen(h, 0, 20, &n), USED);
}

static void an_unknown_token_is_foreseen_by_what_its_session_uses(void **state)
{
	struct expert_history *h = *state;
	uint32_t n;
	for (int i = 0; i < 60; i++) {
		learn(h, 1, 0, -1, 5);
		learn(h, 2, 1, -1, 11);
	}
	expert_history_begin(h);
	expert_history_token(h, 0, 1, -1, 999);
	assert_int_equal(foreseen(h, 1, 5, &n), USED);
	expert_history_begin(h);
	expert_history_token(h, 1, 2, -1, 999);
	assert_int_equal(foreseen(h, 1, 11, &n), USED);
	/* A page that is another session's now says nothing about it. */
	learn(h, 3, 1, -1, 5);
	assert_int_equal(h->session[1].uid, 3);
	assert_int_equal(h->session[1].n, 1);
}

static void habits_that_change_are_learnt_anew(void **state)
{
	struct expert_history *h = *state;
	uint32_t n;
	for (int i = 0; i < 500; i++)
		learn(h, 1, 0, -1, 5);
	struct draft_routing changed = routing(1, 0, -1, 12);
	changed.token = 5;
	for (int i = 0; i < 100; i++)
		expert_history_learn(h, &changed);
	expert_history_begin(h);
	expert_history_token(h, 0, 1, -1, 5);
	assert_int_equal(foreseen(h, 3, 12, &n), USED);
}

static void more_tokens_than_there_is_room_for_push_out_the_oldest(void **state)
{
	struct expert_history *h = *state;
	struct error err;
	uint32_t n, kept = 0;
	assert_int_equal(expert_history_shape(h, LAYERS, EXPERTS, USED, 64 << 10, &err), 0);
	size_t bytes = h->memory_bytes;
	for (int32_t t = 0; t < 20000; t++)
		learn(h, 1, 0, t - 1, t);
	assert_int_equal(h->memory_bytes, bytes);
	for (int32_t t = 19990; t < 20000; t++) {
		expert_history_begin(h);
		expert_history_token(h, 0, 1, t - 1, t);
		kept += foreseen(h, 0, t, &n) == USED;
	}
	assert_true(kept >= 8);
}

static void without_room_for_tables_sessions_are_still_known(void **state)
{
	struct expert_history *h = *state;
	struct error err;
	uint32_t n;
	assert_int_equal(expert_history_shape(h, LAYERS, EXPERTS, USED, 0, &err), 0);
	for (int i = 0; i < 60; i++)
		learn(h, 1, 0, 4, 5);
	expert_history_begin(h);
	expert_history_token(h, 0, 1, 4, 5);
	assert_int_equal(foreseen(h, 0, 5, &n), USED);
}

static void nothing_known_foresees_nothing(void **state)
{
	struct expert_history *h = *state;
	uint32_t n;
	expert_history_begin(h);
	expert_history_token(h, 0, 1, -1, 5);
	assert_int_equal(foreseen(h, 0, 5, &n), 0);
	assert_int_equal(n, 0);
}

static void entries_that_make_no_sense_are_refused(void **state)
{
	struct expert_history *h = *state;
	struct draft_routing bad[10];
	for (int i = 0; i < 10; i++)
		bad[i] = routing(1, 0, -1, 5);
	bad[0].page = LIMIT_SESSIONS;
	bad[1].n_layers = 0;
	bad[2].first = MOE;
	bad[3].first = 1; /* and MOE layers from there */
	bad[4].n_used = USED + 1;
	bad[5].n_moe = LAYERS + 1;
	bad[6].items[0] = LAYERS;
	bad[7].items[1 + USED - 1] = EXPERTS;
	bad[8].token = -5;
	bad[9].n_layers = UINT16_MAX;
	for (int i = 0; i < 10; i++)
		expert_history_learn(h, &bad[i]);
	assert_int_equal(h->refused, 10);
	assert_int_equal(h->learnt, 0);
	assert_int_equal(h->n_moe, 0);
}

static void shapes_out_of_range_are_refused(void **state)
{
	struct expert_history *h = *state;
	struct error err;
	assert_int_equal(
		expert_history_shape(h, LIMIT_LAYERS + 1, EXPERTS, USED, ROOM, &err), -EBADMSG);
	assert_int_equal(expert_history_shape(h, LAYERS, 0, USED, ROOM, &err), -EBADMSG);
	assert_int_equal(
		expert_history_shape(h, LAYERS, EXPERTS, EXPERTS + 1, ROOM, &err), -EBADMSG);
	/* It knows nothing then, and takes nothing. */
	learn(h, 1, 0, -1, 5);
	assert_int_equal(h->learnt, 0);
	assert_int_equal(expert_history_shape(
				 h, LIMIT_LAYERS, LIMIT_EXPERTS, LIMIT_EXPERTS_USED, ROOM, &err),
		0);
}

/* Legal entries in any order leave probabilities: never below 0, above 1 or not a number. */
static void any_order_of_entries_leaves_probabilities(void **state)
{
	struct expert_history *h = *state;
	uint64_t seed = 88172645463325252u;
	uint32_t n;
	for (int i = 0; i < 20000; i++) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		struct draft_routing r = routing(1 + seed % 5, seed >> 8 & 63,
			(int32_t)(seed >> 16 & 7) - 1, (int32_t)(seed >> 24 & 15));
		r.first = seed >> 32 & 3;
		r.n_layers = (uint16_t)(1 + (seed >> 36 & 1));
		/* The same expert again and again in one layer, as no router chooses. */
		if (seed >> 40 & 1)
			for (uint32_t j = 0; j < USED; j++)
				r.items[1 + j] = 3;
		expert_history_learn(h, &r);
		if (i % 50)
			continue;
		expert_history_begin(h);
		expert_history_token(h, seed >> 8 & 63, 1 + seed % 5, (int32_t)(seed >> 44 & 7) - 1,
			(int32_t)(seed >> 48 & 15));
		for (uint32_t o = 0; o < h->n_moe; o++)
			foreseen(h, o, 1, &n);
	}
	assert_int_equal(h->refused, 0);
}

/* Each bit is a wish of the token's own, in its place of the set. */
static void what_a_token_needs_is_what_it_wanted(void **state)
{
	struct expert_history *h = *state;
	const uint32_t words = expert_history_words(h);
	uint64_t bits[8];
	assert_in_range(words * 64, MOE * EXPERTS, sizeof(bits) * 8);
	memset(bits, 0, sizeof(bits));
	expert_history_needs(h, 3, 1, -1, 5, bits);
	for (uint32_t w = 0; w < words; w++)
		assert_int_equal(bits[w], 0);
	for (int round = 0; round < 8; round++)
		for (int32_t t = 0; t < 40; t++)
			learn(h, 1, 3, -1, t);
	for (int32_t t = 0; t < 40; t++) {
		uint64_t wanted[8] = {0};
		memset(bits, 0, sizeof(bits));
		expert_history_needs(h, 3, 1, -1, t, bits);
		for (uint32_t o = 0; o < MOE; o++)
			for (uint32_t j = 0; j < USED; j++) {
				uint32_t bit = o * EXPERTS + wish(t, o, j);
				wanted[bit / 64] |= UINT64_C(1) << bit % 64;
			}
		assert_memory_equal(bits, wanted, words * sizeof(*bits));
	}
	/* They are added to what is there; a page that cannot be adds nothing. */
	uint64_t before[8];
	memcpy(before, bits, sizeof(before));
	expert_history_needs(h, 3, 1, -1, 0, bits);
	for (uint32_t w = 0; w < words; w++)
		assert_int_equal(bits[w] & before[w], before[w]);
	assert_memory_not_equal(bits, before, words * sizeof(*bits));
	memcpy(before, bits, sizeof(before));
	expert_history_needs(h, LIMIT_SESSIONS, 1, -1, 7, bits);
	assert_memory_equal(bits, before, sizeof(before));
}

/* A token that nobody has seen needs what its session uses, as many experts per layer as any. */
static void an_unknown_token_needs_as_many_experts_as_any(void **state)
{
	struct expert_history *h = *state;
	uint64_t bits[8] = {0};
	for (int i = 0; i < 64; i++)
		learn(h, 1, 3, -1, 11);
	expert_history_needs(h, 3, 1, -1, 399, bits);
	for (uint32_t o = 0; o < MOE; o++)
		for (uint32_t j = 0; j < USED; j++) {
			uint32_t bit = o * EXPERTS + wish(11, o, j);
			assert_true(bits[bit / 64] >> bit % 64 & 1);
		}
	uint32_t n = 0;
	for (uint32_t w = 0; w < expert_history_words(h); w++)
		n += (uint32_t)__builtin_popcountll(bits[w]);
	assert_int_equal(n, MOE * USED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(what_a_token_wanted_is_foreseen_when_it_comes_again),
		TEST(a_draft_is_foreseen_as_the_union_of_its_tokens),
		TEST(the_token_before_sharpens_what_is_foreseen),
		TEST(an_unknown_token_is_foreseen_by_what_its_session_uses),
		TEST(habits_that_change_are_learnt_anew),
		TEST(more_tokens_than_there_is_room_for_push_out_the_oldest),
		TEST(without_room_for_tables_sessions_are_still_known),
		TEST(nothing_known_foresees_nothing),
		TEST(entries_that_make_no_sense_are_refused),
		TEST(shapes_out_of_range_are_refused),
		TEST(what_a_token_needs_is_what_it_wanted),
		TEST(an_unknown_token_needs_as_many_experts_as_any),
		TEST(any_order_of_entries_leaves_probabilities),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
