/* Growing trees: the result against EAGLE-2's procedure as its paper states it, which forgets nothing on the way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "services/drafter/tree.h"
#include "shared/spec/accept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 64, ALL = TREE_WIDTH + 8 * TREE_BEAM * TREE_WIDTH };

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

/* What a model says behind a path: the n likeliest tokens with their probabilities, likeliest first. Few values, so that there
 * are ties. */
struct proposal {
	int32_t token;
	float q;
};

static void propose(uint64_t seed, const int32_t *path, uint32_t n_path, uint32_t n,
	struct proposal out[TREE_WIDTH])
{
	uint64_t state = mix(seed + 1);
	for (uint32_t i = 0; i < n_path; i++)
		state = mix(state + (uint64_t)path[i] + 1);
	for (uint32_t i = 0, left = 16; i < n; i++) {
		uint32_t part = i + 1 == n ? left : (uint32_t)(mix(state + i) % (left + 1));
		out[i] = (struct proposal){(int32_t)((state + i) % VOCAB), (float)part / 16};
		left -= part;
	}
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t j = i; j > 0 && out[j].q > out[j - 1].q; j--) {
			struct proposal swap = out[j];
			out[j] = out[j - 1];
			out[j - 1] = swap;
		}
}

static struct tree tree;
static struct draft_reply reply;

static void grow(uint64_t seed, struct draft_budget budget, const float *least)
{
	struct proposal from[TREE_WIDTH];
	int16_t beam[TREE_BEAM];
	uint32_t n;
	tree_begin(&tree, budget);
	tree.least = least;
	propose(seed, NULL, 0, tree_width(&tree), from);
	for (uint32_t i = 0; i < tree_width(&tree); i++)
		tree_add(&tree, -1, from[i].token, from[i].q);
	while ((n = tree_next(&tree, beam, tree_width(&tree))) > 0)
		for (uint32_t b = 0; b < n; b++) {
			int32_t path[LIMIT_DRAFT_DEPTH];
			uint32_t length = tree_path(&tree, beam[b], path);
			propose(seed, path, length, tree_width(&tree), from);
			for (uint32_t i = 0; i < tree_width(&tree); i++)
				tree_add(&tree, beam[b], from[i].token, from[i].q);
		}
	draft_reply_clear(&reply);
	assert_int_equal(draft_room(&reply, budget.nodes), 0);
	tree_answer(&tree, &reply);
}

/* The procedure of the paper: k children of each of the k best nodes of a level, then the best of all. */
struct candidate {
	double chance;
	int32_t path[8];
	uint32_t length, order;
};

static int by_rank(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	if (x->chance != y->chance)
		return x->chance > y->chance ? -1 : 1;
	return x->order < y->order ? -1 : 1;
}

static uint32_t expand(uint64_t seed, const struct candidate *from, uint32_t k, uint32_t first,
	struct candidate *out)
{
	struct proposal next[TREE_WIDTH];
	propose(seed, from->path, from->length, k, next);
	for (uint32_t i = 0; i < k; i++) {
		out[i] = *from;
		out[i].chance *= (double)next[i].q;
		out[i].path[out[i].length++] = next[i].token;
		out[i].order = first + i;
	}
	return k;
}

static uint32_t paper(uint64_t seed, struct draft_budget budget, struct candidate *all)
{
	static struct candidate level[TREE_BEAM * TREE_WIDTH];
	const struct candidate root = {.chance = 1};
	uint32_t k = budget.width, n = expand(seed, &root, k, 0, all), first = 0;
	for (uint32_t depth = 1; depth < budget.depth; depth++) {
		uint32_t n_level = n - first;
		memcpy(level, all + first, n_level * sizeof(*level));
		qsort(level, n_level, sizeof(*level), by_rank);
		first = n;
		for (uint32_t i = 0; i < k && i < n_level; i++)
			n += expand(seed, &level[i], k, n, all + n);
	}
	qsort(all, n, sizeof(*all), by_rank);
	return n < budget.nodes ? n : budget.nodes;
}

static void the_best_of_all_candidates_are_kept(void **state)
{
	(void)state;
	static struct candidate all[ALL];
	uint32_t nodes = 0;
	for (uint64_t seed = 0; seed < 600; seed++) {
		struct draft_budget budget = {
			.nodes = (uint16_t)(1 + mix(seed) % (seed % 5 ? 40 : LIMIT_DRAFT_NODES)),
			.depth = (uint8_t)(1 + mix(seed + 1000) % 8),
			.width = (uint8_t)(1 + mix(seed + 2000) % (seed % 7 ? 6 : TREE_WIDTH)),
		};
		uint32_t n = paper(seed, budget, all);
		grow(seed, budget, NULL);
		assert_int_equal(reply.n, n);
		for (uint32_t i = 0; i < n; i++) {
			int32_t path[LIMIT_DRAFT_DEPTH];
			assert_int_equal(tree_path(&tree, tree.rank[i], path), all[i].length);
			assert_memory_equal(path, all[i].path, all[i].length * sizeof(*path));
			assert_memory_equal(
				&tree.node[tree.rank[i]].chance, &all[i].chance, sizeof(double));
		}
		struct error err = {""};
		assert_int_equal(accept_check_draft(&reply, VOCAB, budget, &err), 0);
		nodes += n;
	}
	assert_true(nodes > 10000);
}

/* However it is cut, what is left begins at the root and is the best of that size. */
static void the_first_nodes_are_a_draft_themselves(void **state)
{
	(void)state;
	const struct draft_budget budget = {.nodes = 100, .depth = 6, .width = 4};
	grow(7, budget, NULL);
	assert_true(reply.n > 60);
	for (uint32_t i = 0; i < reply.n; i++)
		assert_in_range(reply.node[i].parent + 1, 0, i);
	for (uint16_t n = 1; n < 60; n++) {
		static struct draft_node first[LIMIT_DRAFT_NODES];
		memcpy(first, reply.node, n * sizeof(*first));
		grow(7, (struct draft_budget){.nodes = n, .depth = 6, .width = 4}, NULL);
		assert_int_equal(reply.n, n);
		assert_memory_equal(reply.node, first, n * sizeof(*first));
		grow(7, budget, NULL);
	}
}

static void a_width_of_one_gives_a_chain(void **state)
{
	(void)state;
	grow(3, (struct draft_budget){.nodes = 12, .depth = 8, .width = 1}, NULL);
	assert_int_equal(reply.n, 8);
	for (int i = 0; i < 8; i++)
		assert_int_equal(reply.node[i].parent, i - 1);
}

static void nodes_below_the_least_chance_are_left_out(void **state)
{
	(void)state;
	float least[LIMIT_DRAFT_DEPTH + 1];
	uint32_t n;
	grow(11, (struct draft_budget){.nodes = 200, .depth = 5, .width = 6}, NULL);
	for (int i = 0; i <= LIMIT_DRAFT_DEPTH; i++)
		least[i] = 0.05f;
	for (n = 0; n < tree.n_ranked && tree.node[tree.rank[n]].chance >= 0.05; n++)
		continue;
	assert_in_range(n, 2, 100);
	grow(11, (struct draft_budget){.nodes = 200, .depth = 5, .width = 6}, least);
	assert_int_equal(reply.n, n);
}

static void budgets_beyond_what_a_draft_can_hold_are_limited(void **state)
{
	(void)state;
	int16_t beam[TREE_BEAM];
	tree_begin(&tree, (struct draft_budget){.nodes = UINT16_MAX, .depth = 255, .width = 255});
	assert_int_equal(tree_width(&tree), TREE_WIDTH);
	uint32_t n = 0, levels = 0;
	for (int32_t i = 0; i < TREE_WIDTH; i++)
		tree_add(&tree, -1, i, 1);
	for (; (n = tree_next(&tree, beam, TREE_BEAM)) > 0; levels++)
		for (uint32_t b = 0; b < n; b++)
			for (int32_t i = 0; i < TREE_WIDTH; i++)
				tree_add(&tree, beam[b], i, 1);
	assert_int_equal(tree.n_ranked, LIMIT_DRAFT_NODES);
	/* Among equals the older ones stay, so no level goes on without end. */
	assert_in_range(levels, 1, 2);
	tree_begin(&tree, (struct draft_budget){.nodes = 0, .depth = 4, .width = 4});
	assert_int_equal(tree_add(&tree, -1, 1, 1), -1);
	tree_begin(&tree, (struct draft_budget){.nodes = 4, .depth = 0, .width = 4});
	assert_int_equal(tree_add(&tree, -1, 1, 1), -1);
	tree_begin(&tree, (struct draft_budget){.nodes = 4, .depth = 4, .width = 4});
	assert_int_equal(tree_add(&tree, -1, 1, NAN), -1);
	assert_int_equal(tree_next(&tree, beam, TREE_BEAM), 0);
}

static void children_are_found_by_their_token(void **state)
{
	(void)state;
	grow(5, (struct draft_budget){.nodes = 40, .depth = 5, .width = 3}, NULL);
	for (uint32_t i = 0; i < tree.n_ranked; i++) {
		const struct tree_node *node = &tree.node[tree.rank[i]];
		assert_int_equal(tree_child(&tree, node->parent, node->token), tree.rank[i]);
	}
	assert_int_equal(tree_child(&tree, -1, VOCAB), -1);
}

/*
 * Maximal coupling with trees whose nodes are taken by rank: the first two tokens come as the target's distribution says. Such
 * a node counts as certain, because no chance led to it: to accept it with p / q would be wrong, and the test sees that.
 */
enum { FEW = 12, DRAWS = 120000, NODES_OF_FIT = 7 };

static struct fit {
	struct sampler sampler;
	struct sampler_params params;
	float target[FEW + 1][FEW],
		drafter[FEW + 1][FEW]; /* behind each first token; [FEW]: before it */
	/* a tree before the first token, and one behind each; with supports: what q would be */
	struct draft_reply tree[FEW + 1], with_q[FEW + 1];
	uint32_t context; /* of the tree that is being accepted */
} fit;

/* The row of logits behind a node: only the first token counts. */
static uint32_t fit_row(uint32_t context, const struct draft_reply *draft, int node)
{
	if (context != FEW)
		return context;
	while (node >= 0 && draft->node[node].parent >= 0)
		node = draft->node[node].parent;
	return node < 0 ? FEW : (uint32_t)draft->node[node].token;
}

static const float *fit_logits(void *arg, int node)
{
	const struct draft_reply *draft = arg;
	return fit.target[fit_row(fit.context, draft, node)];
}

static void fit_distribution(const float *row, double p[FEW])
{
	sampler_distribution(&fit.sampler, &fit.params, &(struct sampler_input){.logits = row});
	memset(p, 0, FEW * sizeof(*p));
	for (uint32_t i = 0; i < fit.sampler.n_dist; i++)
		p[fit.sampler.dist[i].token] = (double)fit.sampler.dist[i].p;
}

static void fit_propose(uint32_t context, int node)
{
	struct token_prob best[TREE_WIDTH];
	int32_t path[LIMIT_DRAFT_DEPTH];
	uint32_t n = tree_path(&tree, node, path);
	uint32_t row = context != FEW ? context : n > 0 ? (uint32_t)path[0] : FEW;
	const struct sampler_input input = {.logits = fit.drafter[row]};
	n = sampler_rank(&fit.sampler, &fit.params, &input, n, best, tree_width(&tree));
	for (uint32_t i = 0; i < n; i++)
		tree_add(&tree, node, best[i].token, best[i].p);
}

static void fit_grow(uint32_t context, bool with_q, struct draft_reply *out)
{
	int16_t beam[TREE_BEAM];
	uint32_t n;
	tree_begin(&tree, (struct draft_budget){.nodes = NODES_OF_FIT, .depth = 2, .width = 3});
	fit_propose(context, -1);
	while ((n = tree_next(&tree, beam, TREE_BEAM)) > 0)
		for (uint32_t i = 0; i < n; i++)
			fit_propose(context, beam[i]);
	memset(out, 0, sizeof(*out));
	assert_int_equal(draft_room(out, NODES_OF_FIT), 0);
	assert_int_equal(draft_room_supports(out, NODES_OF_FIT), 0);
	tree_answer(&tree, out);
	assert_int_equal(out->n, NODES_OF_FIT);
	if (!with_q)
		return;
	out->support = out->support_room;
	out->support[0] = 0;
	for (uint32_t i = 0; i < out->n; i++) {
		double q[FEW];
		uint32_t end = out->support[i];
		fit_distribution(fit.drafter[fit_row(context, out, out->node[i].parent)], q);
		for (int32_t j = 0; j < FEW; j++)
			out->choice[end++] = (struct draft_choice){j, (float)q[j]};
		out->support[i + 1] = end;
	}
}

/* Accepts the tree of a context; emits one token or two. */
static uint32_t fit_accept(
	uint32_t context, uint64_t seed, uint32_t n_history, bool with_q, int32_t out[2])
{
	const int32_t history[2] = {0};
	struct pick_result picks[NODES_OF_FIT + 1];
	struct accept_output result;
	struct draft_reply *draft = with_q ? &fit.with_q[context] : &fit.tree[context];
	fit.context = context;
	fit.params.seed = seed;
	for (int node = -1; node < (int)draft->n; node++) {
		const struct sampler_input input = {
			.logits = fit.target[fit_row(context, draft, node)]};
		uint32_t depth = node < 0 ? 0 : draft->node[node].parent < 0 ? 1 : 2;
		picks[node + 1].token = sampler_choose(
			&fit.sampler, &fit.params, &input, n_history + depth, false, NULL, 0)
						.token;
	}
	const struct accept_input input = {
		.params = &fit.params,
		.draft = draft,
		.picks = picks,
		.n_history = n_history,
		.history = history,
		.logits = fit_logits,
		.arg = draft,
	};
	accept_draft(&fit.sampler, &input, &result);
	out[0] = result.token[0];
	out[1] = result.n_tokens > 1 ? result.token[1] : 0;
	return result.n_tokens < 2 ? 1 : 2;
}

/* Chi-square of the first two tokens over its upper 1e-6 point (Wilson and Hilferty). */
static double fit_of(bool with_q, uint64_t salt, double *accepted)
{
	static uint32_t count[FEW][FEW];
	double first[FEW], second[FEW], chi = 0, df = -1;
	memset(count, 0, sizeof(count));
	*accepted = 0;
	for (uint64_t i = 0; i < DRAWS; i++) {
		int32_t tokens[2], more[2];
		uint32_t n = fit_accept(FEW, salt + i, 0, with_q, tokens);
		*accepted += (n == 2) / (double)DRAWS;
		if (n == 1) {
			fit_accept((uint32_t)tokens[0], salt + i, 1, with_q, more);
			tokens[1] = more[0];
		}
		count[tokens[0]][tokens[1]]++;
	}
	fit_distribution(fit.target[FEW], first);
	for (int i = 0; i < FEW; i++) {
		fit_distribution(fit.target[i], second);
		for (int j = 0; j < FEW; j++) {
			double expected = DRAWS * first[i] * second[j];
			double d = (double)count[i][j] - expected;
			assert_true(expected > 8);
			chi += d * d / expected;
			df++;
		}
	}
	double a = 2 / (9 * df), cube = 1 - a + 4.753 * sqrt(a);
	return chi / (df * cube * cube * cube);
}

static void ranked_trees_keep_the_distribution_with_maximal_coupling(void **state)
{
	(void)state;
	double accepted;
	assert_int_equal(sampler_init(&fit.sampler, FEW), 0);
	sampler_params_default(&fit.params);
	fit.params.temperature = 1;
	fit.params.coupling = COUPLING_MAXIMAL;
	for (uint64_t i = 0; i <= FEW; i++)
		for (uint64_t j = 0; j < FEW; j++) {
			float common = (float)(mix(1000 + i * FEW + j) % 1000) / 600;
			fit.target[i][j] = common + (float)(mix(9000 + i * FEW + j) % 1000) / 900;
			fit.drafter[i][j] = common + (float)(mix(5000 + i * FEW + j) % 1000) / 900;
		}
	for (uint32_t i = 0; i <= FEW; i++) {
		fit_grow(i, false, &fit.tree[i]);
		fit_grow(i, true, &fit.with_q[i]);
	}
	assert_true(fit_of(false, 77000000, &accepted) < 1);
	assert_true(accepted > 0.3);
	assert_true(fit_of(true, 78000000, &accepted) > 10);
	for (uint32_t i = 0; i <= FEW; i++) {
		draft_reply_exit(&fit.tree[i]);
		draft_reply_exit(&fit.with_q[i]);
	}
	sampler_exit(&fit.sampler);
}

static int tear_down(void **state)
{
	(void)state;
	draft_reply_exit(&reply);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_best_of_all_candidates_are_kept),
		cmocka_unit_test(the_first_nodes_are_a_draft_themselves),
		cmocka_unit_test(a_width_of_one_gives_a_chain),
		cmocka_unit_test(nodes_below_the_least_chance_are_left_out),
		cmocka_unit_test(budgets_beyond_what_a_draft_can_hold_are_limited),
		cmocka_unit_test(children_are_found_by_their_token),
		cmocka_unit_test(ranked_trees_keep_the_distribution_with_maximal_coupling),
	};
	return cmocka_run_group_tests(tests, NULL, tear_down);
}
