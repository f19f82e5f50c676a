/* Which tokens carry masks, and how many: by the chance that a draft ends there, and by prices. */
#include "services/verifier/pass/mask_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const float next[LIMIT_MTP_DRAFT] = {0.8f, 0.65f, 0.4f};
static const uint8_t all[MASK_ANCHORS] = {3, 3, 3, 3};

static struct mask_choice choice_of(const float *reached, uint32_t n)
{
	return (struct mask_choice){
		.n_anchors = n, .room = 100, .reached = reached, .most = all, .next = next};
}

static void assert_masks(const struct mask_choice *choice, uint32_t n, const uint8_t *expected)
{
	uint8_t masks[MASK_ANCHORS];
	uint32_t sum = 0;

	assert_int_equal(mask_choose(choice, masks), n);
	for (uint32_t i = 0; i < choice->n_anchors; i++)
		sum += masks[i];
	assert_int_equal(sum, n);
	assert_memory_equal(masks, expected, choice->n_anchors);
}

static void without_prices_all_have_masks(void **state)
{
	const float reached[] = {1, 0.5f, 0.25f, 0.1f};
	struct mask_choice choice = choice_of(reached, 4);

	(void)state;
	assert_masks(&choice, 12, (const uint8_t[]){3, 3, 3, 3});
}

static void the_likeliest_come_first_where_room_is_short(void **state)
{
	/* The draft ends at the anchors with chances 0.1, 0.1, 0.1, 0.7. */
	const float reached[] = {1, 0.9f, 0.8f, 0.7f};
	struct mask_choice choice = choice_of(reached, 4);

	(void)state;
	choice.room = 3;
	assert_masks(&choice, 3, (const uint8_t[]){0, 0, 0, 3});
	choice.room = 0;
	assert_masks(&choice, 0, (const uint8_t[]){0, 0, 0, 0});
}

static void a_mask_that_costs_more_than_it_brings_is_left_out(void **state)
{
	const float reached[] = {1, 0.5f};
	struct mask_choice choice = choice_of(reached, 2);

	(void)state;
	/* Each anchor: 0.5 * (next * 10 - 2) = 3, 2.25, 1, for a row of 2. */
	choice.token = 10;
	choice.row = 2;
	assert_masks(&choice, 4, (const uint8_t[]){2, 2});
	choice.row = 9;
	assert_masks(&choice, 0, (const uint8_t[]){0, 0});
}

static void an_anchor_has_no_more_than_it_may(void **state)
{
	const float reached[] = {1, 0.5f, 0.5f};
	const uint8_t most[] = {3, 2, 0};
	struct mask_choice choice = choice_of(reached, 3);

	(void)state;
	choice.most = most;
	assert_masks(&choice, 5, (const uint8_t[]){3, 2, 0});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_prices_all_have_masks),
		cmocka_unit_test(the_likeliest_come_first_where_room_is_short),
		cmocka_unit_test(a_mask_that_costs_more_than_it_brings_is_left_out),
		cmocka_unit_test(an_anchor_has_no_more_than_it_may),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
