/* Trees of drafts of every shape, up to the largest: what is accepted from the picks of all nodes at once is what a target that
 * goes on token by token would have said, and nothing else. */
#include "kernels/cpu/pick.h"
#include "shared/spec/accept.h"
#include "tests/model/rig.h"

enum { V = 48, HISTORY = 9, NODES = LIMIT_DRAFT_NODES, DEPTH = LIMIT_DRAFT_DEPTH };

static uint64_t rng = 77;
static struct pool *pool;
static struct pick *pick;
static struct sampler sampler;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(rig_random(&rng) % n);
}

struct world {
	struct sampler_params params;
	uint64_t seed;
	/* The committed tokens, and what the target says behind them, one token after the other. */
	int32_t tokens[HISTORY + DEPTH + 1];
	struct draft_reply draft;
	struct draft_node node[NODES];
	uint32_t depth[NODES]; /* tokens on the path of each node */
	bool right[NODES]; /* the path of the node is what the target says */
	float logits[NODES + 1][V];
	struct pick_row rows[NODES + 1];
	struct pick_result picks[NODES + 1];
};
static struct world w;

/* The target: logits that depend on all tokens before. */
static void target(const int32_t *tokens, uint32_t n, float logits[V])
{
	uint64_t state = w.seed;
	for (uint32_t i = 0; i < n; i++)
		state = rig_random(&state) ^ (uint64_t)tokens[i] << 20;
	for (uint32_t i = 0; i < V; i++)
		logits[i] = (float)(rig_random(&state) % 1000) * 0.006f;
}

static void say_what_follows(void)
{
	float logits[V];
	for (uint32_t n = HISTORY; n < HISTORY + DEPTH + 1; n++) {
		target(w.tokens, n, logits);
		w.tokens[n] = sampler_pick(&sampler, &w.params, logits, w.tokens, n, n, NULL);
	}
}

static void world_make(bool greedy)
{
	sampler_params_default(&w.params);
	w.seed = rig_random(&rng);
	w.params.seed = rig_random(&rng);
	w.params.temperature = greedy ? 0 : 1;
	w.params.top_k = below(2) ? 0 : 12;
	/* What a node may say depends on the tokens of its own path. */
	w.params.repeat_penalty = below(2) ? 1 : 1.5f;
	w.params.repeat_window = below(2) ? 0 : 1 + below(DEPTH + HISTORY);
	/* At temperature 0 this coupling accepts by picks too. */
	w.params.coupling = greedy ? below(2) : COUPLING_GUMBEL;
	for (uint32_t i = 0; i < HISTORY; i++)
		w.tokens[i] = (int32_t)below(V);
	say_what_follows();
	w.draft.n = 0;
	w.draft.node = w.node;
	w.draft.support = NULL;
}

static int parent_of(uint32_t node)
{
	return w.node[node].parent;
}

static int32_t token_of(uint32_t node)
{
	return w.node[node].token;
}

/* A node behind `parent`: the token that the target says there, if the path so far is right and `right` is wanted. */
static void add_node(int parent, bool right)
{
	uint32_t i = w.draft.n++, depth = parent < 0 ? 0 : w.depth[parent];
	int32_t says = w.tokens[HISTORY + depth], token = (int32_t)below(V);
	bool so_far = parent < 0 || w.right[parent];
	if (so_far)
		token = right ? says : token == says ? (says + 1) % V : token;
	w.node[i] = (struct draft_node){token, (int16_t)parent, DRAFT_CONFIDENCE};
	w.depth[i] = depth + 1;
	w.right[i] = so_far && right;
}

/* Picks from all nodes in one step, each after its own path. */
static void pick_all(void)
{
	const float *logits[NODES + 1];
	int32_t tokens[HISTORY + DEPTH];
	for (uint32_t i = 0; i <= w.draft.n; i++) {
		uint32_t n = HISTORY + (i > 0 ? w.depth[i - 1] : 0);
		memcpy(tokens, w.tokens, HISTORY * sizeof(*tokens));
		for (int at = (int)i - 1, end = (int)n; at >= 0; at = parent_of((uint32_t)at))
			tokens[--end] = token_of((uint32_t)at);
		target(tokens, n, w.logits[i]);
		logits[i] = w.logits[i];
		w.rows[i] = (struct pick_row){
			.params = &w.params,
			.history = w.tokens,
			.n_history = HISTORY,
			.parent = i > 0 ? parent_of(i - 1) + 1 : -1,
			.token = i > 0 ? token_of(i - 1) : 0,
			.position = n,
		};
	}
	assert_int_equal(pick_check(w.rows, 0, w.draft.n + 1), 0);
	pick_run(pick, w.rows, 0, w.draft.n + 1, logits, w.picks);
}

/* The first child of a node that carries a token; -1: none does. */
static int child_with(int node, int32_t token)
{
	for (uint32_t i = 0; i < w.draft.n; i++)
		if (parent_of(i) == node && token_of(i) == token)
			return (int)i;
	return -1;
}

/* Accepted is the longest path that says what the target says; then comes the target's next token. Returns its length. */
static uint32_t assert_accepted(void)
{
	struct accept_output out;
	const struct accept_input input = {
		.params = &w.params, .draft = &w.draft, .picks = w.picks, .n_history = HISTORY};
	int node = -1;
	uint32_t n = 0;
	pick_all();
	accept_draft(NULL, &input, &out);
	for (; (node = child_with(node, w.tokens[HISTORY + n])) >= 0; n++) {
		assert_true(n < out.n_accepted);
		assert_int_equal(out.node[n], node);
		assert_int_equal(out.token[n], w.tokens[HISTORY + n]);
	}
	assert_int_equal(out.n_accepted, n);
	assert_int_equal(out.n_tokens, n + 1);
	assert_int_equal(out.token[n], w.tokens[HISTORY + n]);
	return n;
}

static void random_trees_are_walked_as_a_plain_walk_does_it(void **state)
{
	(void)state;
	uint32_t accepted = 0, longest = 0;
	for (int round = 0; round < 400; round++) {
		uint32_t n = below(8) ? below(NODES < 40 ? NODES + 1 : 40) : below(NODES + 1);
		uint32_t chance = 2 + below(8), deep = below(2);
		world_make(round % 3 == 0);
		for (uint32_t i = 0; i < n; i++) {
			int parent = (int)below(i + 1) - 1;
			if (i > 0 && deep && below(4))
				parent = (int)i - 1;
			while (parent >= 0 && w.depth[parent] == DEPTH)
				parent = parent_of((uint32_t)parent);
			add_node(parent, below(chance) > 0);
		}
		uint32_t got = assert_accepted();
		accepted += got;
		longest = got > longest ? got : longest;
	}
	assert_true(accepted > 400 && longest > DEPTH / 3);
}

static void chains_are_accepted_up_to_the_first_wrong_token(void **state)
{
	(void)state;
	for (uint32_t n = 0; n <= DEPTH; n++) {
		for (uint32_t right = 0; right <= n; right += 1 + n / 8) {
			world_make(right % 2);
			for (uint32_t i = 0; i < n; i++)
				add_node((int)i - 1, i < right);
			/* A chain behind a wrong token is accepted nowhere, whatever it says. */
			assert_int_equal(assert_accepted(), right);
		}
	}
}

/* All children of one token; the right one is in any place, or twice, or not there. */
static void of_many_children_the_right_one_is_accepted(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= NODES; n += 1 + n / 4) {
		uint32_t right = below(n);
		world_make(n % 2);
		for (uint32_t i = 0; i < n; i++)
			add_node(-1, i == right || i == right + 3);
		assert_int_equal(assert_accepted(), 1);
		world_make(n % 2);
		for (uint32_t i = 0; i < n; i++)
			add_node(-1, false);
		assert_int_equal(assert_accepted(), 0);
	}
}

/* As many nodes as there may be: one right path as deep as it may be, and at each of its tokens wrong siblings. */
static void the_largest_tree_is_accepted_to_its_deepest_node(void **state)
{
	(void)state;
	const uint32_t n = NODES, wrong = n / DEPTH > 1 ? n / DEPTH - 1 : 0;
	for (int round = 0; round < 3; round++) {
		int at = -1;
		world_make(round == 0);
		for (uint32_t depth = 0; depth < DEPTH; depth++) {
			for (uint32_t i = 0; i < wrong; i++)
				add_node(at, false);
			add_node(at, true);
			at = (int)w.draft.n - 1;
		}
		while (w.draft.n < n)
			add_node((int)below(wrong) - 1, false);
		assert_int_equal(assert_accepted(), DEPTH);
	}
}

static int set_up(void **state)
{
	(void)state;
	struct error err;
	return pool_create(2, 0, 20000, &pool, &err) ||
	       pick_create(kernels_select("auto", &err), pool, V, &pick, &err) ||
	       sampler_init(&sampler, V);
}

static int tear_down(void **state)
{
	(void)state;
	sampler_exit(&sampler);
	pick_destroy(&pick);
	pool_destroy(&pool);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_trees_are_walked_as_a_plain_walk_does_it),
		cmocka_unit_test(chains_are_accepted_up_to_the_first_wrong_token),
		cmocka_unit_test(of_many_children_the_right_one_is_accepted),
		cmocka_unit_test(the_largest_tree_is_accepted_to_its_deepest_node),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
