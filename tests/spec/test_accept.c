/*
 * Speculation must not change what the model says. Both couplings against the exact distribution of the first two emitted
 * tokens (chi-square, sequences drawn until both are there), with the same test shown to fail when p is moved by 2%; the
 * Gumbel coupling against K = 0, token for token.
 */
#include "shared/spec/accept.h"
#include "shared/base/rand.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 24, DRAWS = 200000, DRAWS_BIASED = 600000, HISTORY = 4 };

static uint64_t mix(uint64_t *state)
{
	uint64_t z = (*state += 0x9E3779B97F4A7C15u);
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

static const int32_t history[HISTORY]; /* what is committed before the first of the two tokens */

/* A world of two positions: the target's logits at the root and after each first token, and the drafter's own. */
struct world {
	float target[V + 1][V]; /* [V] is the root */
	float drafter[V + 1][V];
	struct sampler_params params;
};

static void world_make(struct world *world, uint64_t seed, float spread)
{
	for (int i = 0; i <= V; i++) {
		for (int j = 0; j < V; j++) {
			float common = (float)(mix(&seed) % 1000) / 1000.0f;
			float own = (float)(mix(&seed) % 1000) / 1000.0f;
			float other = (float)(mix(&seed) % 1000) / 1000.0f;
			world->target[i][j] = spread * (common + own);
			world->drafter[i][j] = spread * (common + other);
		}
	}
	sampler_params_default(&world->params);
	world->params.temperature = 1;
}

/* Dense p of a row after the filters. */
static void distribution(
	struct sampler *sampler, const struct sampler_params *params, const float *row, double p[V])
{
	sampler_distribution(sampler, params,
		&(struct sampler_input){.logits = row, .history = history, .n_history = HISTORY});
	memset(p, 0, V * sizeof(*p));
	for (uint32_t i = 0; i < sampler->n_dist; i++)
		p[sampler->dist[i].token] = (double)sampler->dist[i].p;
}

/* Draft shapes: parent of each node. */
struct shape {
	const char *name;
	uint32_t n;
	int16_t parent[LIMIT_DRAFT_DEPTH];
};
static const struct shape shapes[] = {
	{"chain of 0", 0, {0}},
	{"chain of 1", 1, {-1}},
	{"chain of 2", 2, {-1, 0}},
	{"chain of 3", 3, {-1, 0, 1}},
	{"tree of 3 roots", 3, {-1, -1, -1}},
	{"tree of 7", 7, {-1, -1, 0, 0, 1, 1, 0}},
};

/* A draft with its memory. */
struct drafted {
	struct draft_reply reply;
	struct draft_node node[LIMIT_DRAFT_NODES];
	uint32_t support[LIMIT_DRAFT_NODES + 1];
	struct draft_choice choice[8 * V];
};

static void add_choice(struct drafted *d, uint32_t i, int32_t token, float p)
{
	d->choice[d->support[i + 1]++] = (struct draft_choice){token, p};
}

static void add_node(struct drafted *d, int parent, bool sampled)
{
	uint32_t i = d->reply.n++;
	d->node[i] = (struct draft_node){.parent = (int16_t)parent, .confidence = DRAFT_CONFIDENCE};
	d->support[i + 1] = d->support[i];
	d->reply.node = d->node;
	d->reply.choice = d->choice;
	d->reply.support = sampled ? d->support : NULL;
}

/* How the drafter proposes. */
enum proposal { SAMPLED, CERTAIN };

static int32_t draw(const double *p, double u)
{
	double sum = 0;
	int32_t last = 0;
	for (int32_t i = 0; i < V; i++) {
		if (p[i] <= 0)
			continue;
		last = i;
		sum += p[i];
		if (u < sum)
			break;
	}
	return last;
}

/* Fills a draft: each node sampled from the drafter's q after its parent (and listed), or the drafter's best tokens with
 * certainty. Nodes below the second position propose from the root's row. */
static void propose(struct sampler *sampler, const struct world *world, const struct shape *shape,
	enum proposal how, struct drafted *draft)
{
	draft->reply.n = 0;
	draft->reply.support = NULL;
	draft->support[0] = 0;
	for (uint32_t i = 0; i < shape->n; i++) {
		double q[V];
		int parent = shape->parent[i];
		bool second = parent >= 0 && shape->parent[parent] < 0;
		uint32_t row = second ? (uint32_t)draft->node[parent].token : V;
		add_node(draft, parent, how == SAMPLED);
		distribution(sampler, &world->params, world->drafter[row], q);
		if (how == CERTAIN) {
			draft->node[i].token = sampler->dist[i % sampler->n_dist].token;
			continue;
		}
		for (uint32_t j = 0; j < sampler->n_dist; j++)
			add_choice(draft, i, sampler->dist[j].token, sampler->dist[j].p);
		double u =
			rand_uniform(world->params.seed, RAND_DRAFT, HISTORY + (second ? 1 : 0), i);
		draft->node[i].token = draw(q, u);
	}
}

struct source {
	const struct world *world;
	const struct draft_reply *draft;
	int32_t first; /* the first token when it is committed, or -1: node's own path says it */
};

static const float *target_row(void *arg, int node)
{
	const struct source *source = arg;
	const struct draft_reply *draft = source->draft;
	if (source->first >= 0)
		return node < 0 ? source->world->target[source->first] : source->world->target[V];
	if (node < 0)
		return source->world->target[V];
	/* After the first position the row is that of the first token; beyond the second nobody looks. */
	return draft->node[node].parent < 0 ? source->world->target[draft->node[node].token]
					    : source->world->target[V];
}

/* Accepts a draft behind n_before tokens, with what the target picks at its root and at each node on the node's own path. */
static void accept(struct sampler *sampler, const struct world *world, const int32_t *before,
	uint32_t n_before, struct source *source, struct accept_output *out)
{
	const struct draft_reply *draft = source->draft;
	struct pick_result picks[LIMIT_DRAFT_DEPTH + 1];
	int32_t path[LIMIT_DRAFT_DEPTH];
	bool needed[LIMIT_DRAFT_DEPTH + 1];
	/* Where a draft is accepted by logits, the picks at nodes with children are not needed unless rounding leaves nothing. */
	memset(needed, true, sizeof(needed));
	for (uint32_t i = 0; i < draft->n && accept_wants_logits(&world->params); i++)
		needed[draft->node[i].parent + 1] = false;
	for (int node = -1; node < (int)draft->n; node++) {
		picks[node + 1].token = -1;
		if (!needed[node + 1])
			continue;
		uint32_t n = 0;
		for (int at = node; at >= 0; at = draft->node[at].parent)
			path[LIMIT_DRAFT_DEPTH - ++n] = draft->node[at].token;
		const struct sampler_input from = {
			.logits = target_row(source, node),
			.history = before,
			.n_history = n_before,
			.tail = path + LIMIT_DRAFT_DEPTH - n,
			.n_tail = n,
		};
		picks[node + 1].token =
			sampler_choose(sampler, &world->params, &from, n_before + n, false, NULL, 0)
				.token;
	}
	const struct accept_input input = {
		.params = &world->params,
		.draft = draft,
		.picks = picks,
		.n_history = n_before,
		.history = before,
		.logits = target_row,
		.arg = source,
	};
	accept_draft(sampler, &input, out);
	assert_in_range(out->token[out->n_accepted], 0, V - 1);
}

/* The first two tokens of one generation under a seed: iterations until both are out. */
static void generate(struct sampler *sampler, struct world *world, const struct shape *shape,
	enum proposal how, uint64_t seed, int32_t out[2])
{
	static struct drafted draft;
	int32_t longer[HISTORY + 1] = {0};
	struct accept_output result;
	world->params.seed = seed;
	propose(sampler, world, shape, how, &draft);
	struct source source = {world, &draft.reply, -1};
	accept(sampler, world, history, HISTORY, &source, &result);
	out[0] = result.token[0];
	if (result.n_tokens >= 2) {
		out[1] = result.token[1];
		return;
	}
	/* The second token comes out of the next iteration, whose root is after the first. */
	longer[HISTORY] = out[0];
	source.first = out[0];
	draft.reply.n = 0;
	if (shape->n > 0) {
		double q[V];
		distribution(sampler, &world->params, world->drafter[out[0]], q);
		add_node(&draft, -1, how == SAMPLED);
		draft.node[0].token = sampler->dist[0].token;
		for (uint32_t j = 0; how == SAMPLED && j < sampler->n_dist; j++)
			add_choice(&draft, 0, sampler->dist[j].token, sampler->dist[j].p);
		if (how == SAMPLED)
			draft.node[0].token =
				draw(q, rand_uniform(seed, RAND_DRAFT, HISTORY + 1, 100));
	}
	accept(sampler, world, longer, HISTORY + 1, &source, &result);
	out[1] = result.token[0];
}

/* Upper 1e-6 point of chi-square (Wilson and Hilferty's cube; z = 4.753). */
static double threshold(double df)
{
	double a = 2 / (9 * df), cube = 1 - a + 4.753 * sqrt(a);
	return df * cube * cube * cube;
}

/* Chi-square of n counts against expected ones over its threshold; cells of fewer than 8 expected are pooled, and
 * what cannot happen must not have. */
static double misfit(const uint32_t *count, const double *expected, int n)
{
	double pooled = 0, pooled_count = 0, chi = 0, df = -1;
	for (int i = 0; i < n; i++) {
		if (expected[i] == 0)
			assert_int_equal(count[i], 0);
		if (expected[i] < 8) {
			pooled += expected[i];
			pooled_count += count[i];
			continue;
		}
		double d = (double)count[i] - expected[i];
		chi += d * d / expected[i];
		df++;
	}
	if (pooled >= 8) {
		chi += (pooled_count - pooled) * (pooled_count - pooled) / pooled;
		df++;
	}
	return chi / threshold(df);
}

/* The worst of three tests: the first token, the second, both together (which sees dependence, but a shift of all rows
 * less clearly). Over 1 is a failure. */
static double goodness(struct sampler *sampler, const struct world *world,
	const uint32_t count[V][V], uint32_t draws)
{
	double joint[V][V], first[V], second[V] = {0}, row[V];
	uint32_t first_count[V] = {0}, second_count[V] = {0};
	distribution(sampler, &world->params, world->target[V], first);
	for (int i = 0; i < V; i++) {
		distribution(sampler, &world->params, world->target[i], row);
		first[i] *= draws;
		for (int j = 0; j < V; j++) {
			joint[i][j] = first[i] * row[j];
			second[j] += joint[i][j];
			first_count[i] += count[i][j];
			second_count[j] += count[i][j];
		}
	}
	double worst = misfit(&count[0][0], &joint[0][0], V * V);
	return fmax(worst, fmax(misfit(first_count, first, V), misfit(second_count, second, V)));
}

static void count_draws(struct sampler *sampler, struct world *world, const struct shape *shape,
	enum proposal how, uint64_t salt, uint32_t count[V][V], uint32_t draws)
{
	memset(count, 0, V * sizeof(*count));
	for (uint64_t i = 0; i < draws; i++) {
		int32_t out[2];
		uint64_t seed = salt + i;
		generate(sampler, world, shape, how, mix(&seed), out);
		count[out[0]][out[1]]++;
	}
}

static void check_fit(enum coupling coupling, const struct shape *shape, enum proposal how,
	float top_p, uint32_t top_k)
{
	static uint32_t count[V][V];
	static struct world world;
	struct sampler sampler;
	assert_int_equal(sampler_init(&sampler, V), 0);
	world_make(&world, 40 + (uint64_t)coupling, 2.5f);
	world.params.coupling = coupling;
	world.params.top_p = top_p;
	world.params.top_k = top_k;
	count_draws(&sampler, &world, shape, how, 1000003 * (uint64_t)shape->n, count, DRAWS);
	double fit = goodness(&sampler, &world, count, DRAWS);
	if (!(fit < 1))
		fail_msg("%s, %s, %s: chi-square is %.2f of its threshold",
			coupling == COUPLING_GUMBEL ? "gumbel" : "maximal", shape->name,
			how == SAMPLED ? "sampled" : "certain", fit);
	sampler_exit(&sampler);
}

static void gumbel_coupling_emits_the_target_distribution(void **state)
{
	(void)state;
	check_fit(COUPLING_GUMBEL, &shapes[0], CERTAIN, 1, 0);
	check_fit(COUPLING_GUMBEL, &shapes[2], SAMPLED, 1, 0);
	check_fit(COUPLING_GUMBEL, &shapes[5], CERTAIN, 0.8f, 0);
}

static void maximal_coupling_emits_the_target_distribution_on_chains(void **state)
{
	(void)state;
	check_fit(COUPLING_MAXIMAL, &shapes[1], SAMPLED, 1, 0);
	check_fit(COUPLING_MAXIMAL, &shapes[2], SAMPLED, 1, 0);
	check_fit(COUPLING_MAXIMAL, &shapes[3], SAMPLED, 0.8f, 0);
	check_fit(COUPLING_MAXIMAL, &shapes[2], CERTAIN, 1, 0);
	check_fit(COUPLING_MAXIMAL, &shapes[2], SAMPLED, 0.95f, 10);
}

static void maximal_coupling_emits_the_target_distribution_on_trees(void **state)
{
	(void)state;
	check_fit(COUPLING_MAXIMAL, &shapes[4], SAMPLED, 1, 0);
	check_fit(COUPLING_MAXIMAL, &shapes[5], SAMPLED, 0.8f, 0);
	check_fit(COUPLING_MAXIMAL, &shapes[5], CERTAIN, 1, 0);
}

/* The power of the test: a bias of 2% put in must be found. What is drawn from has 2% more (and the rest 2% less) on the
 * tokens the drafter prefers, or on the even ones; what is expected has not. */
static void a_bias_of_2_percent_is_noticed(void **state)
{
	(void)state;
	static uint32_t count[V][V];
	static struct world world, biased;
	struct sampler sampler;
	assert_int_equal(sampler_init(&sampler, V), 0);
	for (int coupling = 0; coupling < 2; coupling++) {
		for (int kind = 0; kind < 2; kind++) {
			world_make(&world, 40 + (uint64_t)coupling, 2.5f);
			world.params.coupling = (uint32_t)coupling;
			biased = world;
			for (int i = 0; i <= V; i++)
				for (int j = 0; j < V; j++)
					if (kind == 0 ? world.drafter[i][j] > world.target[i][j]
						      : j % 2 == 0)
						biased.target[i][j] += (float)log(1.02 / 0.98);
			count_draws(&sampler, &biased, &shapes[2], SAMPLED, 9, count, DRAWS_BIASED);
			assert_true(goodness(&sampler, &world, count, DRAWS_BIASED) > 1);
			assert_true(goodness(&sampler, &biased, count, DRAWS_BIASED) < 1);
		}
	}
	sampler_exit(&sampler);
}

/* The same for the acceptance rule: the drafter understates q of what it proposes by 2%, so that min(1, p / q) is 2% too
 * generous. The effect on the output is smaller (what is refused less often is also redrawn less often), so more draws. */
static void an_acceptance_2_percent_too_generous_is_noticed(void **state)
{
	(void)state;
	enum { MANY = 1000000 };
	static struct world world;
	static struct drafted draft;
	struct sampler sampler;
	double expected[V], fit[2];
	assert_int_equal(sampler_init(&sampler, V), 0);
	world_make(&world, 21, 3);
	world.params.coupling = COUPLING_MAXIMAL;
	distribution(&sampler, &world.params, world.target[V], expected);
	for (int i = 0; i < V; i++)
		expected[i] *= MANY;
	for (int biased = 0; biased < 2; biased++) {
		uint32_t count[V] = {0};
		for (uint64_t seed = 0; seed < MANY; seed++) {
			struct accept_output result;
			world.params.seed = seed;
			propose(&sampler, &world, &shapes[1], SAMPLED, &draft);
			for (uint32_t i = 0; i < draft.support[1] && biased; i++)
				if (draft.choice[i].token == draft.node[0].token)
					draft.choice[i].p /= 1.02f;
			struct source source = {&world, &draft.reply, -1};
			accept(&sampler, &world, history, HISTORY, &source, &result);
			count[result.token[0]]++;
		}
		fit[biased] = misfit(count, expected, V);
	}
	assert_true(fit[0] < 1);
	assert_true(fit[1] > 1);
	sampler_exit(&sampler);
}

static void gumbel_coupling_gives_the_tokens_of_k_0_for_any_draft(void **state)
{
	(void)state;
	static struct world world;
	struct sampler sampler;
	assert_int_equal(sampler_init(&sampler, V), 0);
	world_make(&world, 3, 3);
	for (uint64_t seed = 0; seed < 20000; seed++) {
		int32_t alone[2], drafted[2];
		world.params.temperature = seed % 3 ? 0.8f : 0;
		world.params.coupling = world.params.temperature == 0 && seed % 2;
		generate(&sampler, &world, &shapes[0], CERTAIN, seed, alone);
		for (size_t s = 1; s < sizeof(shapes) / sizeof(*shapes); s++) {
			enum proposal how =
				world.params.temperature > 0 && seed % 2 ? SAMPLED : CERTAIN;
			if (world.params.temperature == 0)
				world.params.temperature = 1e-30f; /* for the drafter's list */
			bool greedy = world.params.temperature < 1e-3f;
			static struct drafted draft;
			struct accept_output result;
			world.params.seed = seed;
			propose(&sampler, &world, &shapes[s], how, &draft);
			if (greedy)
				world.params.temperature = 0;
			struct source source = {&world, &draft.reply, -1};
			accept(&sampler, &world, history, HISTORY, &source, &result);
			drafted[0] = result.token[0];
			assert_int_equal(drafted[0], alone[0]);
			if (result.n_tokens > 1)
				assert_int_equal(result.token[1], alone[1]);
			/* What was accepted is a path of the draft. */
			assert_int_equal(result.n_tokens, result.n_accepted + 1);
			for (uint32_t i = 0; i < result.n_accepted; i++) {
				const struct draft_node *node = &draft.node[result.node[i]];
				assert_int_equal(node->token, result.token[i]);
				assert_int_equal(node->parent, i ? result.node[i - 1] : -1);
			}
		}
	}
	sampler_exit(&sampler);
}

/* Daliri et al.: a drafter with the same noise agrees with probability at least (1 - D) / (1 + D). A maximal coupling
 * accepts with 1 - D exactly. */
static void couplings_agree_as_often_as_their_theorems_say(void **state)
{
	(void)state;
	static struct world world;
	struct sampler sampler;
	double p[V], q[V], distance = 0, agree = 0, accepted = 0;
	assert_int_equal(sampler_init(&sampler, V), 0);
	world_make(&world, 12, 3);
	distribution(&sampler, &world.params, world.target[V], p);
	distribution(&sampler, &world.params, world.drafter[V], q);
	for (int i = 0; i < V; i++)
		distance += fabs(p[i] - q[i]) / 2;
	for (uint64_t seed = 0; seed < DRAWS; seed++) {
		static struct drafted draft;
		struct accept_output result;
		world.params.seed = seed;
		world.params.coupling = COUPLING_GUMBEL;
		agree += sampler_pick(&sampler, &world.params, world.target[V], history, HISTORY,
				 HISTORY, NULL) == sampler_pick(&sampler, &world.params,
							   world.drafter[V], history, HISTORY,
							   HISTORY, NULL);
		world.params.coupling = COUPLING_MAXIMAL;
		propose(&sampler, &world, &shapes[1], SAMPLED, &draft);
		struct source source = {&world, &draft.reply, -1};
		accept(&sampler, &world, history, HISTORY, &source, &result);
		accepted += result.n_accepted;
	}
	double sigma = 0.5 / sqrt((double)DRAWS);
	assert_true(distance > 0.1);
	assert_true(agree / DRAWS >= (1 - distance) / (1 + distance) - 5 * sigma);
	assert_true(fabs(accepted / DRAWS - (1 - distance)) <= 5 * sigma);
	sampler_exit(&sampler);
}

static void drafts_out_of_range_are_refused_by_name(void **state)
{
	(void)state;
	static struct drafted good, bad;
	const struct draft_budget seven = {.nodes = 7, .depth = 7, .width = 7};
	struct error err;
	static struct world world;
	struct sampler sampler;
	assert_int_equal(sampler_init(&sampler, V), 0);
	world_make(&world, 1, 2);
	propose(&sampler, &world, &shapes[5], SAMPLED, &good);
	assert_int_equal(accept_check_draft(&good.reply, V, seven, &err), 0);
#define REFUSED_OF(budget, field, value, word)                                              \
	do {                                                                                \
		bad = good;                                                                 \
		bad.reply.node = bad.node;                                                  \
		bad.reply.support = bad.support;                                            \
		bad.reply.choice = bad.choice;                                              \
		bad.field = (value);                                                        \
		assert_int_equal(accept_check_draft(&bad.reply, V, budget, &err), -EPROTO); \
		assert_non_null(strstr(err.text, word));                                    \
	} while (0)
#define REFUSED(field, value, word) REFUSED_OF(seven, field, value, word)
	uint32_t third = good.support[2]; /* the first choice of node 2 */
	REFUSED(reply.n, 8, "8 tokens");
	REFUSED(reply.n, UINT32_MAX, "tokens");
	REFUSED(node[3].token, V, "draft token 3");
	REFUSED(node[3].token, -1, "draft token 3");
	REFUSED(node[2].parent, 2, "parent");
	REFUSED(node[2].parent, 5, "parent"); /* forward, or a cycle */
	REFUSED(node[0].parent, 0, "parent");
	REFUSED(node[1].token, good.node[0].token, "among the children");
	REFUSED(node[5].token, good.node[4].token, "among the children");
	REFUSED(node[1].parent, -2, "parent");
	REFUSED(support[5], good.support[4] + LIMIT_DRAFT_SUPPORT + 1, "support");
	REFUSED(support[5], good.support[4] + 1, "support");
	REFUSED(choice[third].token, V, "support 0");
	REFUSED(choice[third].p, NAN, "p = ");
	REFUSED(choice[third].p, 0, "p = ");
	REFUSED(choice[third].p, 0.99f, "sums to");
	/* Seven nodes on two levels, of which the first token has three. */
	REFUSED_OF(((struct draft_budget){.nodes = 6, .depth = 7, .width = 7}), node[0].token,
		good.node[0].token, "6 were");
	REFUSED_OF(((struct draft_budget){.nodes = 7, .depth = 1, .width = 7}), node[0].token,
		good.node[0].token, "number 2");
	REFUSED_OF(((struct draft_budget){.nodes = 7, .depth = 7, .width = 2}), node[0].token,
		good.node[0].token, "child 3");
	REFUSED_OF(((struct draft_budget){.nodes = UINT16_MAX, .depth = 7, .width = 7}), reply.n,
		LIMIT_DRAFT_NODES + 1, "512 tokens");
	assert_int_equal(accept_check_draft(&good.reply, V,
				 (struct draft_budget){.nodes = 7, .depth = 2, .width = 3}, &err),
		0);
	assert_int_equal(
		accept_check_draft(&good.reply, V,
			(struct draft_budget){
				.nodes = UINT16_MAX, .depth = UINT8_MAX, .width = UINT8_MAX},
			&err),
		0);
	bad = good;
	bad.reply.support = bad.support;
	bad.reply.choice = bad.choice;
	for (uint32_t i = 2; i <= 7; i++)
		bad.support[i] = good.support[1] + 1;
	bad.reply.n = 2;
	bad.choice[good.support[1]] = (struct draft_choice){(bad.node[1].token + 1) % V, 1};
	assert_int_equal(accept_check_draft(&bad.reply, V, seven, &err), -EPROTO);
	assert_non_null(strstr(err.text, "not in its own support"));
	sampler_exit(&sampler);
}

/* A chain of the largest depth, and one that is longer. */
static void a_path_ends_at_the_largest_depth(void **state)
{
	(void)state;
	static struct drafted draft;
	const struct draft_budget any = {
		.nodes = LIMIT_DRAFT_NODES, .depth = UINT8_MAX, .width = 1};
	struct error err;
	draft.reply.n = 0;
	while (draft.reply.n < LIMIT_DRAFT_DEPTH)
		add_node(&draft, (int)draft.reply.n - 1, false);
	assert_int_equal(accept_check_draft(&draft.reply, V, any, &err), 0);
	add_node(&draft, LIMIT_DRAFT_DEPTH - 1, false);
	assert_int_equal(accept_check_draft(&draft.reply, V, any, &err), -EPROTO);
	assert_non_null(strstr(err.text, "number 64 of its path"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gumbel_coupling_emits_the_target_distribution),
		cmocka_unit_test(maximal_coupling_emits_the_target_distribution_on_chains),
		cmocka_unit_test(maximal_coupling_emits_the_target_distribution_on_trees),
		cmocka_unit_test(a_bias_of_2_percent_is_noticed),
		cmocka_unit_test(an_acceptance_2_percent_too_generous_is_noticed),
		cmocka_unit_test(gumbel_coupling_gives_the_tokens_of_k_0_for_any_draft),
		cmocka_unit_test(couplings_agree_as_often_as_their_theorems_say),
		cmocka_unit_test(drafts_out_of_range_are_refused_by_name),
		cmocka_unit_test(a_path_ends_at_the_largest_depth),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
