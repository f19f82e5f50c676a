/*
 * Routing by itself: what each rule chooses and how it weighs, against the rule written down plainly in double, and that
 * nothing a router may say makes it choose an expert twice. The golden models check the same against their authors' code.
 */
#include "kernels/cpu/steps/backend_cpu.h"
#include "shared/model/pass/moe_router.h"
#include "tests/model/rig.h"

#include <math.h>

#define E 16

struct fixture {
	struct step_route step;
	float router[E], weights[E];
	uint16_t chosen[E];
};

static void set_up(struct fixture *x, enum gating gating, uint32_t k, bool norm, float scale)
{
	memset(x, 0, sizeof(*x));
	x->step.n_experts = E;
	x->step.n_used = k;
	x->step.rule = (struct routing_config){
		.gating = gating, .norm = norm, .scale = scale, .n_groups = 1, .n_groups_used = 1};
}

static struct rows row_of(
	const struct fixture *x, const struct buffer *buffer, const void *at, size_t bytes)
{
	return (struct rows){
		buffer, (size_t)((const unsigned char *)at - (const unsigned char *)x), bytes, 1};
}

/* One row, by the step. */
static void route(struct fixture *x)
{
	const struct backend_cpu_options options = {
		.kernels = kernels_select(NULL, NULL), .threads = 1};
	const struct queue_limits limits = {.n_experts = E};
	struct backend *backend;
	struct queue *q;
	struct buffer buffer;
	struct error err;
	assert_int_equal(backend_cpu_create(&options, &backend, &err), 0);
	assert_int_equal(backend->ops->queue(backend, &limits, &q, &err), 0);
	assert_int_equal(backend->ops->wrap(backend, x, sizeof(*x), &buffer, &err), 0);
	x->step.scores = row_of(x, &buffer, x->router, sizeof(x->router));
	x->step.chosen = row_of(x, &buffer, x->chosen, sizeof(x->chosen));
	x->step.weights = row_of(x, &buffer, x->weights, sizeof(x->weights));
	q->ops->route(q, &x->step);
	q->ops->queue_free(q);
	backend->ops->destroy(backend);
}

static void random_logits(uint64_t *seed, float *out, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = (float)(rig_random(seed) >> 40) / (1 << 24) * 6 - 3;
}

/* The k greatest of score, by falling score. */
static void greatest(const double *score, uint32_t n, uint32_t k, uint32_t *out)
{
	bool taken[E] = {false};
	for (uint32_t j = 0; j < k; j++) {
		uint32_t best = 0;
		while (taken[best])
			best++;
		for (uint32_t e = best + 1; e < n; e++)
			if (!taken[e] && score[e] > score[best])
				best = e;
		taken[best] = true;
		out[j] = best;
	}
}

static void softmax_of(const float *logits, const bool *in, double *out)
{
	double sum = 0;
	for (uint32_t e = 0; e < E; e++)
		sum += in[e] ? exp((double)logits[e]) : 0;
	for (uint32_t e = 0; e < E; e++)
		out[e] = in[e] ? exp((double)logits[e]) / sum : 0;
}

static void assert_weight(float got, double expected)
{
	if (!(fabs((double)got - expected) <= 1e-6 * (1 + fabs(expected))))
		fail_msg("weight %g instead of %g", (double)got, expected);
}

static void softmax_routes_by_probability(void **state)
{
	struct fixture x;
	uint64_t seed = 1;
	(void)state;
	for (int i = 0; i < 200; i++) {
		bool norm = i % 2, all[E];
		double p[E], sum = 0;
		uint32_t best[4];
		set_up(&x, GATING_SOFTMAX, 4, norm, 1);
		random_logits(&seed, x.router, E);
		memset(all, true, sizeof(all));
		softmax_of(x.router, all, p);
		greatest(p, E, 4, best);
		for (uint32_t j = 0; j < 4; j++)
			sum += p[best[j]];
		route(&x);
		for (uint32_t j = 0; j < 4; j++) {
			assert_int_equal(x.chosen[j], best[j]);
			assert_weight(x.weights[j], norm ? p[best[j]] / sum : p[best[j]]);
		}
	}
}

static void top_softmax_weighs_the_chosen_alone(void **state)
{
	struct fixture x;
	uint64_t seed = 2;
	(void)state;
	for (int i = 0; i < 200; i++) {
		float logits[E], bias[E];
		double score[E], p[E];
		bool in[E] = {false};
		uint32_t best[3];
		set_up(&x, GATING_TOP_SOFTMAX, 3, false, 1);
		random_logits(&seed, x.router, E);
		random_logits(&seed, bias, E);
		x.step.bias = bias;
		for (uint32_t e = 0; e < E; e++) {
			logits[e] = x.router[e] + bias[e];
			score[e] = (double)logits[e];
		}
		greatest(score, E, 3, best);
		for (uint32_t j = 0; j < 3; j++)
			in[best[j]] = true;
		softmax_of(logits, in, p);
		route(&x);
		for (uint32_t j = 0; j < 3; j++) {
			assert_int_equal(x.chosen[j], best[j]);
			assert_weight(x.weights[j], p[best[j]]);
		}
	}
}

/* Groups of four; biased: sigmoid scores, the bias for the choice only, a group counts its two best; else softmax and its
 * best. */
static void check_groups(bool biased, uint64_t seed)
{
	struct fixture x;
	float bias[E];
	double p[E], score[E], group[4], sum = 0;
	bool all[E];
	uint32_t groups[2], best[4];
	set_up(&x, biased ? GATING_SIGMOID : GATING_SOFTMAX, 4, biased, 2.5f);
	x.step.rule.n_groups = 4;
	x.step.rule.n_groups_used = 2;
	random_logits(&seed, x.router, E);
	random_logits(&seed, bias, E);
	if (biased)
		x.step.selection_bias = bias;
	memset(all, true, sizeof(all));
	softmax_of(x.router, all, p);
	for (uint32_t e = 0; e < E; e++) {
		if (biased)
			p[e] = 1 / (1 + exp(-(double)x.router[e]));
		score[e] = p[e] + (biased ? (double)bias[e] : 0);
	}
	for (uint32_t g = 0; g < 4; g++) {
		uint32_t two[2];
		greatest(score + 4 * g, 4, 2, two);
		group[g] = score[4 * g + two[0]] + (biased ? score[4 * g + two[1]] : 0);
	}
	greatest(group, 4, 2, groups);
	for (uint32_t e = 0; e < E; e++)
		if (e / 4 != groups[0] && e / 4 != groups[1])
			score[e] = -1e9;
	greatest(score, E, 4, best);
	for (uint32_t j = 0; j < 4; j++)
		sum += p[best[j]];
	route(&x);
	for (uint32_t j = 0; j < 4; j++) {
		uint32_t at = 0;
		while (at < 4 && best[at] != x.chosen[j])
			at++;
		assert_true(at < 4);
		assert_weight(x.weights[j], 2.5 * (biased ? p[x.chosen[j]] / sum : p[x.chosen[j]]));
		assert_true(j == 0 || x.weights[j] <= x.weights[j - 1]);
	}
}

static void only_the_best_groups_are_chosen_from(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 200; seed++) {
		check_groups(true, seed);
		check_groups(false, seed);
	}
}

static void sparsemixer_weighs_each_choice_among_those_near_it(void **state)
{
	struct fixture x;
	uint64_t seed = 4;
	uint32_t alone = 0;
	(void)state;
	for (int i = 0; i < 400; i++) {
		float logits[E];
		double score[E];
		uint32_t best[2];
		set_up(&x, GATING_SPARSEMIXER, 2, false, 1);
		random_logits(&seed, x.router, E);
		/* Close together, so that several lie within the share; negative ones too. */
		for (uint32_t e = 0; e < E; e++) {
			x.router[e] = (i % 2 ? 3.0f : -3.0f) + x.router[e] / (float)(1 << (i % 7));
			logits[e] = x.router[e];
			score[e] = (double)logits[e];
		}
		greatest(score, E, 2, best);
		route(&x);
		for (uint32_t j = 0; j < 2; j++) {
			double p[E], top = score[best[j]];
			bool in[E];
			for (uint32_t e = 0; e < E; e++)
				in[e] = (top - score[e]) / fmax(fabs(score[e]), top) <= 0.02 &&
					!(j == 1 && e == best[0]);
			softmax_of(logits, in, p);
			assert_int_equal(x.chosen[j], best[j]);
			assert_weight(x.weights[j], p[best[j]]);
			alone += p[best[j]] == 1;
		}
	}
	assert_true(alone > 10 && alone < 700);
}

static void odd_logits_choose_distinct_experts(void **state)
{
	static const enum gating gatings[] = {
		GATING_SOFTMAX, GATING_SIGMOID, GATING_TOP_SOFTMAX, GATING_SPARSEMIXER};
	static const float odd[] = {NAN, INFINITY, -INFINITY, 0, 3e38f, -3e38f, 1};
	struct fixture x;
	uint64_t seed = 5;
	(void)state;
	for (int i = 0; i < 2000; i++) {
		enum gating gating = gatings[i % 4];
		uint32_t k = gating == GATING_SPARSEMIXER ? 2 : 6;
		bool seen[E] = {false};
		set_up(&x, gating, k, i % 3, 1);
		if (gating == GATING_SIGMOID && i % 8 < 4) {
			x.step.rule.n_groups = 4;
			x.step.rule.n_groups_used = 2;
		}
		for (uint32_t e = 0; e < E; e++)
			x.router[e] = odd[rig_random(&seed) % (i < 1000 ? 7 : 1 + (uint64_t)i % 3)];
		route(&x);
		for (uint32_t j = 0; j < k; j++) {
			assert_true(x.chosen[j] < E && !seen[x.chosen[j]]);
			seen[x.chosen[j]] = true;
		}
	}
}

static void sigmoids_that_are_all_zero_have_weights(void **state)
{
	struct fixture x;
	(void)state;
	set_up(&x, GATING_SIGMOID, 4, true, 2);
	for (uint32_t e = 0; e < E; e++)
		x.router[e] = -200;
	route(&x);
	for (uint32_t j = 0; j < 4; j++)
		assert_true(x.weights[j] == 0);
}

/* ---- What a router makes of a hidden state outside the pass. ---- */

enum { TOKENS = 7 };

struct watch {
	struct moe_router router;
	const struct model *model;
	uint32_t layers; /* with experts */
	bool same;
};

static void compare(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct watch *watch = arg;
	size_t n = (size_t)n_tokens * watch->model->config.n_experts_used;
	if (!experts)
		return;
	moe_router_run(&watch->router, layer, hidden);
	watch->same &= memcmp(watch->router.chosen, experts, n * sizeof(*experts)) == 0 &&
		       memcmp(watch->router.weights, weights, n * sizeof(*weights)) == 0;
	watch->layers++;
}

/* Every kind of router there is a model of: groups, biases, sigmoid, sparsemixer. */
static void a_router_by_itself_chooses_as_the_pass_does(void **state)
{
	static const char *const models[] = {"deepseek2-v3.f32", "deepseek2-lite.f32", "phimoe.f32",
		"gpt-oss.f32", "qwen3moe.f32", "qwen2moe.f32", "glm4moe.f32"};
	uint32_t tried = 0;
	(void)state;
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		char path[128];
		struct rig rig;
		struct kv_seq seq;
		struct error err;
		int32_t ids[TOKENS];
		snprintf(path, sizeof(path), "tests/data/golden/models/%s.gguf", models[i]);
		if (access(path, R_OK) != 0)
			continue;
		rig_open(&rig, path, NULL, 1, KV_F32);
		struct watch watch = {.model = rig.model, .same = true};
		assert_int_equal(
			moe_router_init(&watch.router, rig.model, rig.backend, TOKENS, &err), 0);
		watch.router.q = forward_queue(rig.forward);
		forward_set_hooks(
			rig.forward, &(struct forward_hooks){.layer = compare, .arg = &watch});
		rig_seq(&rig, &seq);
		rig_ids(i, rig.n_vocab, ids, TOKENS);
		rig_chain(&rig, &seq, ids, TOKENS, TOKENS, NULL);
		assert_true(watch.layers > 0);
		if (!watch.same)
			fail_msg("%s chooses otherwise", models[i]);
		moe_router_exit(&watch.router);
		kv_seq_exit(&rig.kv, &seq);
		rig_close(&rig);
		tried++;
	}
	assert_true(tried >= 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(softmax_routes_by_probability),
		cmocka_unit_test(top_softmax_weighs_the_chosen_alone),
		cmocka_unit_test(only_the_best_groups_are_chosen_from),
		cmocka_unit_test(sparsemixer_weighs_each_choice_among_those_near_it),
		cmocka_unit_test(odd_logits_choose_distinct_experts),
		cmocka_unit_test(sigmoids_that_are_all_zero_have_weights),
		cmocka_unit_test(a_router_by_itself_chooses_as_the_pass_does),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
