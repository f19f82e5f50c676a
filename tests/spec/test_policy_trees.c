/* What the policy page cuts of a draft, and what a record says of one: chains and trees, each path by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "shared/base/rand.h"
#include "shared/spec/policy.h"

#include <string.h>

/* Parent and confidence of each node; the token is its number, so that those that stay can be told. */
struct shape {
	int16_t parent;
	float confidence;
};

static struct draft_node nodes[LIMIT_DRAFT_NODES];

static struct draft_reply make_draft(const struct shape *shape, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		nodes[i] = (struct draft_node){.token = (int32_t)i,
			.parent = shape[i].parent,
			.confidence = draft_confidence(shape[i].confidence)};
	return (struct draft_reply){.n = n, .room = n, .node = nodes};
}

static void assert_kept(const struct draft_reply *draft, const int32_t *tokens, uint32_t n)
{
	assert_int_equal(draft->n, n);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(draft->node[i].token, tokens[i]);
}

/* Siblings of 0.5, 0.3 and 0.15: each is likely enough by itself, their product is not. */
static void siblings_do_not_lower_each_others_chance(void **state)
{
	(void)state;
	static const struct shape shape[] = {
		{-1, 0.5f}, {-1, 0.3f}, {-1, 0.15f}, {0, 0.9f}, {1, 0.9f}, {2, 0.9f}};
	struct policy_session knobs = {.cut = {0.1f, 0.1f}};
	struct draft_reply draft = make_draft(shape, 6);
	policy_cut(&knobs, &draft);
	assert_kept(&draft, (const int32_t[]){0, 1, 2, 3, 4, 5}, 6);
	knobs.cut[0] = 0.2f;
	policy_cut(&knobs, &draft);
	assert_kept(&draft, (const int32_t[]){0, 1, 3, 4}, 4);
	assert_int_equal(draft.node[2].parent, 0);
	assert_int_equal(draft.node[3].parent, 1);
	/* 0.3 * 0.9 is below, 0.5 * 0.9 is not. */
	knobs.cut[1] = 0.4f;
	policy_cut(&knobs, &draft);
	assert_kept(&draft, (const int32_t[]){0, 1, 3}, 3);
	assert_int_equal(draft.node[2].parent, 0);
}

/* Node 4 would be likely enough at its depth, but nothing goes on behind a token that is cut. */
static void what_is_behind_a_cut_token_is_cut(void **state)
{
	(void)state;
	static const struct shape shape[] = {
		{-1, 1}, {0, 0.2f}, {0, 0.9f}, {1, 1}, {3, 1}, {2, 1}, {5, 1}};
	struct policy_session knobs = {.cut = {0, 0.5f}};
	struct draft_reply draft = make_draft(shape, 7);
	policy_cut(&knobs, &draft);
	assert_kept(&draft, (const int32_t[]){0, 2, 5, 6}, 4);
	for (int16_t i = 0; i < 4; i++)
		assert_int_equal(draft.node[i].parent, i - 1);
}

static double uniform(uint64_t seed, uint64_t n)
{
	return rand_uniform(seed, RAND_REPLAY, n, 0);
}

/* A tree of any shape, every prefix of which is a tree. */
static uint32_t make_any(uint64_t seed, struct shape *shape, struct draft_reply *draft)
{
	uint32_t n = 1 + (uint32_t)(uniform(seed, 0) * (seed % 4 ? 24 : LIMIT_DRAFT_NODES));
	uint32_t depth[LIMIT_DRAFT_NODES];
	if (n > LIMIT_DRAFT_NODES)
		n = LIMIT_DRAFT_NODES;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t near =
			seed % 3 == 0 && i > 0 ? i : (uint32_t)(uniform(seed, 2 * i + 1) * (i + 1));
		shape[i].parent = (int16_t)((int)near - 1);
		depth[i] = near == 0 ? 0 : depth[near - 1] + 1;
		if (depth[i] >= LIMIT_DRAFT_DEPTH) {
			shape[i].parent = -1;
			depth[i] = 0;
		}
		shape[i].confidence = (float)(0.4 + 0.6 * uniform(seed, 2 * i + 2));
	}
	*draft = make_draft(shape, n);
	return n;
}

/* The path to a node as a chain of its own, root first. Returns its length. */
static uint32_t path_to(
	const struct draft_node *tree, uint32_t node, float *confidence, int16_t *path)
{
	uint32_t n = 0;
	for (int at = (int)node; at >= 0; at = tree[at].parent)
		n++;
	uint32_t left = n;
	for (int at = (int)node; at >= 0; at = tree[at].parent) {
		path[--left] = (int16_t)at;
		confidence[left] = draft_confidence_of(&tree[at]);
	}
	return n;
}

static void a_tree_is_cut_as_each_of_its_paths_would_be(void **state)
{
	(void)state;
	static struct shape shape[LIMIT_DRAFT_NODES];
	static struct draft_node whole[LIMIT_DRAFT_NODES];
	uint32_t n_cut = 0, n_kept = 0;
	for (uint64_t seed = 0; seed < 400; seed++) {
		struct policy_session knobs = {0};
		struct draft_reply draft;
		uint32_t n = make_any(seed, shape, &draft), kept = 0;
		for (uint32_t i = 0; i < LIMIT_DRAFT_DEPTH; i++)
			knobs.cut[i] = (float)(0.5 * uniform(seed + 1000, i));
		memcpy(whole, nodes, sizeof(whole));
		policy_cut(&knobs, &draft);
		for (uint32_t i = 0; i < n; i++) {
			float confidence[LIMIT_DRAFT_DEPTH];
			int16_t path[LIMIT_DRAFT_DEPTH], stays[LIMIT_DRAFT_DEPTH];
			uint32_t depth = path_to(whole, i, confidence, path);
			if (policy_cut_path(&knobs, confidence, depth) < depth) {
				n_cut++;
				continue;
			}
			/* It is the next that stayed, behind the same path. */
			assert_true(kept < draft.n);
			assert_int_equal(draft.node[kept].token, i);
			assert_int_equal(path_to(draft.node, kept, confidence, stays), depth);
			for (uint32_t d = 0; d < depth; d++)
				assert_int_equal(draft.node[stays[d]].token, path[d]);
			kept++;
		}
		assert_int_equal(draft.n, kept);
		n_kept += kept;
	}
	assert_true(n_cut > 1000 && n_kept > 1000);
}

static void assert_confidence(const struct iteration_record *record, const double *of, uint32_t n)
{
	assert_int_equal(record->depth, n);
	for (uint32_t i = 0; i < LIMIT_DRAFT_DEPTH; i++)
		assert_int_equal(
			record->confidence[i], i < n ? (int)(of[i] * POLICY_CONFIDENCE + 0.5) : 0);
}

/*    0 (.5)   1 (.3)   2 (.15)
 *    3 (.6)   4 (.2) 5 (.4)   -
 *    6 (.7)   -      7 (.8)
 *                    8 (.9)         */
static const struct shape bush[] = {{-1, 0.5f}, {-1, 0.3f}, {-1, 0.15f}, {0, 0.6f}, {1, 0.2f},
	{1, 0.4f}, {3, 0.7f}, {5, 0.8f}, {7, 0.9f}};

/* One of the siblings comes with the sum of what each of them promised, and a depth has one such chance, however many it has. */
static void a_record_follows_the_path_that_was_accepted(void **state)
{
	(void)state;
	struct iteration_record record = {0};
	struct draft_reply draft = make_draft(bush, 9);
	policy_record_draft(&record, &draft, (const int16_t[]){1, 5}, 2);
	assert_int_equal(record.drafted, 9);
	assert_confidence(&record, (const double[]){0.95, 0.6, 0.8, 0.9}, 4);
	policy_record_draft(&record, &draft, (const int16_t[]){0}, 1);
	assert_confidence(&record, (const double[]){0.95, 0.6, 0.7}, 3);
	/* Nothing goes on behind what was accepted last. */
	policy_record_draft(&record, &draft, (const int16_t[]){2}, 1);
	assert_confidence(&record, (const double[]){0.95}, 1);
}

static void a_record_of_nothing_accepted_follows_the_main_path(void **state)
{
	(void)state;
	struct iteration_record record = {0};
	struct draft_reply draft = make_draft(bush, 9);
	policy_record_draft(&record, &draft, NULL, 0);
	assert_int_equal(record.drafted, 9);
	assert_confidence(&record, (const double[]){0.95, 0.6, 0.7}, 3);
	draft.n = 0;
	policy_record_draft(&record, &draft, NULL, 0);
	assert_int_equal(record.drafted, 0);
	assert_confidence(&record, NULL, 0);
}

static void siblings_that_promise_more_than_one_promise_one(void **state)
{
	(void)state;
	static const struct shape shape[] = {{-1, 1}, {-1, 1}, {0, 0.9f}, {0, 0.8f}};
	struct iteration_record record = {0};
	struct draft_reply draft = make_draft(shape, 4);
	policy_record_draft(&record, &draft, (const int16_t[]){0, 3}, 2);
	assert_confidence(&record, (const double[]){1, 1}, 2);
}

static void a_chain_is_a_tree_with_one_branch(void **state)
{
	(void)state;
	struct shape shape[LIMIT_DRAFT_DEPTH];
	double confidence[LIMIT_DRAFT_DEPTH];
	int16_t accepted[LIMIT_DRAFT_DEPTH];
	for (int16_t i = 0; i < LIMIT_DRAFT_DEPTH; i++) {
		confidence[i] = (i + 1.0) / LIMIT_DRAFT_DEPTH;
		shape[i] = (struct shape){(int16_t)(i - 1), (float)confidence[i]};
		accepted[i] = i;
	}
	for (uint32_t n = 0; n <= LIMIT_DRAFT_DEPTH; n++) {
		struct iteration_record record = {0};
		struct draft_reply draft = make_draft(shape, LIMIT_DRAFT_DEPTH);
		policy_record_draft(&record, &draft, accepted, n);
		assert_int_equal(record.drafted, LIMIT_DRAFT_DEPTH);
		assert_confidence(&record, confidence, LIMIT_DRAFT_DEPTH);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(siblings_do_not_lower_each_others_chance),
		cmocka_unit_test(what_is_behind_a_cut_token_is_cut),
		cmocka_unit_test(a_tree_is_cut_as_each_of_its_paths_would_be),
		cmocka_unit_test(a_record_follows_the_path_that_was_accepted),
		cmocka_unit_test(a_record_of_nothing_accepted_follows_the_main_path),
		cmocka_unit_test(siblings_that_promise_more_than_one_promise_one),
		cmocka_unit_test(a_chain_is_a_tree_with_one_branch),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
