/* Hints beside what was used: what counts as foreseen, as late, and what is not believed. */
#include "services/expert-cache/hints/hint_quality.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LAYERS = 2, EXPERTS = 70, US = 1000 };

static int setup(void **state)
{
	struct hint_quality *q = calloc(1, sizeof(*q));
	struct error err;
	assert_int_equal(hint_quality_init(q, LAYERS, EXPERTS, &err), 0);
	/* A verifier that has begun. */
	hint_quality_used(q, 0, 0, 1000, 1);
	*state = q;
	return 0;
}

static int teardown(void **state)
{
	hint_quality_exit(*state);
	free(*state);
	return 0;
}

static bool hint(struct hint_quality *q, enum hint_source source, uint16_t expert,
	uint64_t iteration, uint64_t made_ns)
{
	struct slot_hint h = {.layer = 1,
		.expert = expert,
		.source = source,
		.iteration = iteration,
		.made_ns = made_ns};
	return hint_quality_hinted(q, &h);
}

/* Enough passes of layer 1 without hints for all before to be counted. */
static void close_all(struct hint_quality *q)
{
	for (uint64_t i = 0; i < HINT_PASSES + 1; i++)
		hint_quality_used(q, 1, 0, q->newest + 2, UINT64_C(1) << 40);
}

static const struct hint_counts *counts(struct hint_quality *q, unsigned source)
{
	return hint_quality_counts(q, 1, source);
}

static void what_was_hinted_and_used_is_found(void **state)
{
	struct hint_quality *q = *state;
	assert_true(hint(q, HINT_DRAFT, 3, 1001, 10 * US));
	assert_true(hint(q, HINT_DRAFT, 69, 1001, 20 * US));
	assert_true(hint(q, HINT_DRAFT, 4, 1001, 20 * US));
	/* Once is enough. */
	assert_true(hint(q, HINT_DRAFT, 3, 1001, 30 * US));
	const uint16_t used[] = {3, 5, 69, 64};
	for (int i = 0; i < 4; i++)
		hint_quality_used(q, 1, used[i], 1001, 50 * US);
	close_all(q);
	const struct hint_counts *c = counts(q, HINT_DRAFT);
	assert_int_equal(c->passes, 1);
	assert_int_equal(c->used, 4);
	assert_int_equal(c->hinted, 3);
	assert_int_equal(c->found, 2);
	assert_int_equal(c->late, 0);
	assert_int_equal(c->lead_ns, (40 + 30) * US);
	assert_int_equal(counts(q, HINT_GATE)->passes, 0);
	assert_int_equal(hint_quality_counts(q, 0, HINT_DRAFT)->passes, 0);
}

static void sources_are_counted_apart_and_together(void **state)
{
	struct hint_quality *q = *state;
	hint(q, HINT_DRAFT, 3, 1001, 10 * US);
	hint(q, HINT_HISTORY, 3, 1001, 5 * US);
	hint(q, HINT_HISTORY, 4, 1001, 5 * US);
	hint(q, HINT_GATE, 4, 1001, 18 * US);
	hint(q, HINT_GATE_FAR, 4, 1001, 2 * US);
	hint(q, HINT_GATE_FAR, 5, 1001, 2 * US);
	hint_quality_used(q, 1, 3, 1001, 20 * US);
	hint_quality_used(q, 1, 4, 1001, 20 * US);
	close_all(q);
	assert_int_equal(counts(q, HINT_DRAFT)->found, 1);
	assert_int_equal(counts(q, HINT_HISTORY)->found, 2);
	assert_int_equal(counts(q, HINT_GATE)->lead_ns, 2 * US);
	const struct hint_counts *far = counts(q, HINT_GATE_FAR);
	assert_int_equal(far->hinted, 2);
	assert_int_equal(far->found, 1);
	assert_int_equal(far->lead_ns, 18 * US);
	const struct hint_counts *any = counts(q, HINT_SOURCES);
	assert_int_equal(any->passes, 1);
	assert_int_equal(any->used, 2);
	assert_int_equal(any->hinted, 3);
	assert_int_equal(any->found, 2);
	/* The first that foresaw it counts. */
	assert_int_equal(any->lead_ns, (15 + 18) * US);
}

/* Each source is judged by the passes that it spoke about, all together by those that any did. */
static void a_source_that_is_silent_in_the_hard_passes_finds_more_than_all_together(void **state)
{
	struct hint_quality *q = *state;
	hint(q, HINT_GATE, 3, 1001, 10 * US);
	hint_quality_used(q, 1, 3, 1001, 20 * US);
	hint(q, HINT_HISTORY, 4, 1003, 30 * US);
	hint_quality_used(q, 1, 5, 1003, 40 * US);
	hint_quality_used(q, 1, 6, 1003, 40 * US);
	close_all(q);
	const struct hint_counts *gate = counts(q, HINT_GATE), *any = counts(q, HINT_SOURCES);
	assert_int_equal(gate->used, 1);
	assert_int_equal(gate->found, 1);
	assert_int_equal(any->passes, 2);
	assert_int_equal(any->used, 3);
	assert_int_equal(any->found, 1);
}

/* The rings are read one after the other: the order in which they were written is in the times. */
static void the_order_of_reading_does_not_matter(void **state)
{
	struct hint_quality *q = *state;
	hint_quality_used(q, 1, 3, 1001, 50 * US);
	/* Made before it began; of no use for prefetching any more. */
	assert_false(hint(q, HINT_GATE, 3, 1001, 40 * US));
	assert_false(hint(q, HINT_GATE, 3, 1001, 50 * US));
	/* Made after a layer began that is read about later. */
	hint(q, HINT_GATE, 7, 1003, 90 * US);
	hint(q, HINT_GATE, 8, 1003, 70 * US);
	hint_quality_used(q, 1, 7, 1003, 80 * US);
	hint_quality_used(q, 1, 8, 1003, 80 * US);
	close_all(q);
	const struct hint_counts *c = counts(q, HINT_GATE);
	assert_int_equal(c->passes, 2);
	assert_int_equal(c->found, 2);
	assert_int_equal(c->hinted, 2);
	assert_int_equal(c->late, 2);
	assert_int_equal(c->lead_ns, (10 + 10) * US);
}

static void a_pass_that_never_comes_is_not_counted(void **state)
{
	struct hint_quality *q = *state;
	hint(q, HINT_DRAFT, 3, 1001, 10 * US);
	close_all(q);
	assert_int_equal(counts(q, HINT_DRAFT)->passes, 0);
	assert_int_equal(counts(q, HINT_DRAFT)->hinted, 0);
}

static void rubbish_closes_nothing(void **state)
{
	struct hint_quality *q = *state;
	hint(q, HINT_DRAFT, 3, 1001, 10 * US);
	for (uint64_t i = 0; i < 4 * HINT_PASSES; i++) {
		assert_false(hint(q, HINT_DRAFT, 3, UINT64_MAX - i, 10 * US));
		assert_false(hint(q, HINT_HISTORY, 5, 2000 + i, UINT64_MAX));
	}
	/* Without a pass nothing can be judged. */
	assert_true(hint(q, HINT_DRAFT, 3, 0, 10 * US));
	hint_quality_used(q, 1, 3, 1001, 20 * US);
	close_all(q);
	assert_int_equal(counts(q, HINT_DRAFT)->found, 1);
	assert_int_equal(counts(q, HINT_HISTORY)->passes, 0);
}

/* As while everything is resident: nobody looked at a clock. */
static void a_use_without_a_time_counts_nothing_and_moves_on(void **state)
{
	struct hint_quality *q = *state;
	hint_quality_used(q, 1, 3, 9001, 0);
	assert_int_equal(q->newest, 9001);
	close_all(q);
	assert_int_equal(counts(q, HINT_DRAFT)->passes, 0);
	assert_true(hint(q, HINT_DRAFT, 3, q->newest + 2, 10 * US));
	hint_quality_used(q, 1, 3, q->newest + 2, 20 * US);
	close_all(q);
	assert_int_equal(counts(q, HINT_DRAFT)->found, 1);
}

static void a_successor_of_the_verifier_begins_anew(void **state)
{
	struct hint_quality *q = *state;
	uint64_t other = UINT64_C(1) << 50;
	hint(q, HINT_DRAFT, 3, 1001, 10 * US);
	hint_quality_used(q, 0, 1, other, 20 * US);
	assert_true(hint(q, HINT_DRAFT, 4, other + 1, 30 * US));
	hint_quality_used(q, 1, 4, other + 1, 40 * US);
	close_all(q);
	assert_int_equal(counts(q, HINT_DRAFT)->passes, 1);
	assert_int_equal(counts(q, HINT_DRAFT)->found, 1);
	/* One that counts from below, too. */
	hint_quality_used(q, 0, 1, 7, 20 * US);
	assert_true(hint(q, HINT_DRAFT, 4, 8, 30 * US));
	hint_quality_used(q, 1, 4, 8, 40 * US);
	close_all(q);
	assert_int_equal(counts(q, HINT_DRAFT)->found, 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(what_was_hinted_and_used_is_found),
		TEST(sources_are_counted_apart_and_together),
		TEST(a_source_that_is_silent_in_the_hard_passes_finds_more_than_all_together),
		TEST(the_order_of_reading_does_not_matter),
		TEST(a_pass_that_never_comes_is_not_counted),
		TEST(rubbish_closes_nothing),
		TEST(a_use_without_a_time_counts_nothing_and_moves_on),
		TEST(a_successor_of_the_verifier_begins_anew),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
