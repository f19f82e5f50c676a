#include "services/verifier/pass/sched_share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct share share;

/* A chain of n tokens of which the drafter is so sure. */
static struct draft_reply chain(struct draft_node *node, uint32_t n, float confidence)
{
	for (uint32_t i = 0; i < n; i++)
		node[i] = (struct draft_node){.parent = (int16_t)((int)i - 1),
			.confidence = draft_confidence(confidence)};
	return (struct draft_reply){.n = n, .node = node};
}

/* A session in which the first n_accepted tokens of each draft stood. */
static struct share_record learnt(uint32_t n_accepted, uint32_t passes)
{
	struct draft_node node[LIMIT_DRAFT_DEPTH];
	struct draft_reply draft = chain(node, 20, 1);
	int16_t accepted[LIMIT_DRAFT_DEPTH];
	struct share_record record = {0};

	for (int16_t i = 0; i < LIMIT_DRAFT_DEPTH; i++)
		accepted[i] = i;
	for (uint32_t i = 0; i < passes; i++)
		share_learn(&record, &draft, accepted, n_accepted);
	return record;
}

static uint32_t kept(uint32_t i)
{
	uint32_t n;

	share_kept(&share, i, &n);
	return n;
}

static void rows_go_where_drafts_were_accepted(void **state)
{
	struct share_record good = learnt(12, 30), bad = learnt(1, 30), none = {0};

	(void)state;
	share_begin(&share);
	share_add_budget(&share, &bad, 30, 30);
	share_add_budget(&share, &good, 30, 30);
	share_out(&share, 14);
	assert_int_equal(kept(0) + kept(1), 14);
	assert_in_range(kept(1), 12, 13);
	/* Sessions of which nothing is known have as much as one another. */
	share_begin(&share);
	for (int i = 0; i < 4; i++)
		share_add_budget(&share, &none, i == 3 ? LIMIT_DRAFT_NODES : 60, i == 3 ? 8 : 60);
	share_out(&share, 20);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(kept(i), 5);
}

static void rows_go_to_the_paths_that_the_drafter_is_sure_of(void **state)
{
	struct draft_node sure[20], unsure[20];
	struct draft_reply first = chain(unsure, 20, 0.4f), second = chain(sure, 20, 0.95f);
	struct share_record record = learnt(10, 30);

	(void)state;
	share_begin(&share);
	share_add_draft(&share, &record, &first);
	share_add_draft(&share, &record, &second);
	share_out(&share, 12);
	assert_int_equal(kept(0) + kept(1), 12);
	assert_in_range(kept(1), 9, 11);
}

/* Of a tree the tokens of the better path stay, wherever they stand in it. */
static void of_a_tree_the_better_path_stays(void **state)
{
	struct share_record none = {0};
	struct draft_node node[] = {
		{.parent = -1, .confidence = draft_confidence(0.1f)},
		{.parent = -1, .confidence = draft_confidence(0.8f)},
		{.parent = 0, .confidence = draft_confidence(0.9f)},
		{.parent = 1, .confidence = draft_confidence(0.9f)},
		{.parent = 3, .confidence = draft_confidence(0.9f)},
	};
	struct draft_reply draft = {.n = 5, .node = node};
	uint32_t n;

	(void)state;
	share_begin(&share);
	share_add_draft(&share, &none, &draft);
	share_out(&share, 3);
	const uint16_t *stays = share_kept(&share, 0, &n);
	assert_int_equal(n, 3);
	assert_memory_equal(stays, ((uint16_t[]){0, 1, 0, 1, 1}), 5 * sizeof(*stays));
	draft_keep(&draft, stays);
	assert_int_equal(draft.n, 3);
	assert_int_equal(node[0].parent, -1);
	assert_int_equal(node[1].parent, 0);
	assert_int_equal(node[2].parent, 1);
}

/* Of all sessions with the largest drafts, any room is filled exactly, with parents of what stays, and by the same rule. */
static void any_room_is_filled_with_valid_drafts(void **state)
{
	static struct draft_node node[LIMIT_RUNNING][LIMIT_DRAFT_NODES];
	static struct share_record record[LIMIT_RUNNING];
	static const uint32_t rooms[] = {0, 1, 255, 3840, 8192, 100000,
		LIMIT_RUNNING * LIMIT_DRAFT_NODES, LIMIT_RUNNING * LIMIT_DRAFT_NODES + 1};

	(void)state;
	srand(7);
	for (uint32_t d = 0; d < LIMIT_RUNNING; d++) {
		uint8_t depth[LIMIT_DRAFT_NODES] = {0};

		for (int i = 0; i < LIMIT_DRAFT_NODES; i++) {
			int parent = rand() % (i + 1) - 1;

			if (parent >= 0 && depth[parent] + 1 >= LIMIT_DRAFT_DEPTH)
				parent = -1;
			depth[i] = (uint8_t)(parent < 0 ? 0 : depth[parent] + 1);
			node[d][i] = (struct draft_node){.parent = (int16_t)parent,
				.confidence = (uint16_t)(d % 4 ? rand() % 65536 : 65535)};
		}
		record[d] = learnt(d % 20, d % 9);
	}
	for (size_t r = 0; r < sizeof(rooms) / sizeof(rooms[0]); r++) {
		uint32_t total = 0, all = LIMIT_RUNNING * LIMIT_DRAFT_NODES;

		share_begin(&share);
		for (uint32_t d = 0; d < LIMIT_RUNNING; d++)
			share_add_draft(&share, &record[d],
				&(struct draft_reply){.n = LIMIT_DRAFT_NODES, .node = node[d]});
		share_out(&share, rooms[r]);
		for (uint32_t d = 0; d < LIMIT_RUNNING; d++) {
			uint32_t n;
			const uint16_t *stays = share_kept(&share, d, &n);

			total += n;
			for (int i = 0; i < LIMIT_DRAFT_NODES; i++)
				assert_true(!stays[i] || node[d][i].parent < 0 ||
					    stays[node[d][i].parent]);
		}
		assert_int_equal(total, rooms[r] < all ? rooms[r] : all);
	}
}

static void what_was_accepted_lately_counts_more(void **state)
{
	struct share_record changed = learnt(10, 1000), same = learnt(10, 1000);
	struct draft_node node[10];
	struct draft_reply draft = chain(node, 10, 1);

	(void)state;
	for (int i = 0; i < 100; i++)
		share_learn(&changed, &draft, NULL, 0);
	share_begin(&share);
	share_add_budget(&share, &changed, 10, 10);
	share_add_budget(&share, &same, 10, 10);
	share_out(&share, 10);
	assert_in_range(kept(1), 9, 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_go_where_drafts_were_accepted),
		cmocka_unit_test(rows_go_to_the_paths_that_the_drafter_is_sure_of),
		cmocka_unit_test(of_a_tree_the_better_path_stays),
		cmocka_unit_test(any_room_is_filled_with_valid_drafts),
		cmocka_unit_test(what_was_accepted_lately_counts_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
