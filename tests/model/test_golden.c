/*
 * The engine against two references that know nothing of it: Hugging Face transformers on tiny random models
 * (tests/data/golden, tolerances from its README) and the demo models' own training code (models/golden).
 */
#include "tests/model/golden.h"

#include "kernels/cpu/simd.h"

/* A file, the numbers it must give, and how far they may be apart (tests/data/golden/README.md). */
struct f32_case {
	const char *name, *numbers;
	double limit; /* the largest difference, of the RMS of the logits */
};

/* The ten best and the log-sum-exp at earlier positions. */
static void check_logits_at(
	const json_t *logits_at, const float *logits, uint32_t n_vocab, double limit)
{
	size_t i, j;
	json_t *at, *pair;
	json_array_foreach(logits_at, i, at)
	{
		const float *row =
			logits + (size_t)json_integer_value(json_object_get(at, "pos")) * n_vocab;
		double sum;
		json_array_foreach(json_object_get(at, "top"), j, pair)
		{
			double expected = json_number_value(json_array_get(pair, 1));
			double got = (double)row[json_integer_value(json_array_get(pair, 0))];
			assert_true(fabs(got - expected) <= limit);
		}
		sum = exp((double)row[0]);
		for (uint32_t v = 1; v < n_vocab; v++)
			sum += exp((double)row[v]);
		assert_true(fabs(log(sum) - json_number_value(json_object_get(at, "logsumexp"))) <=
			    limit);
	}
}

/* The residual stream of the last position: the embedding, then behind every layer. */
static void check_hidden(const json_t *hidden, uint32_t n_layers, double limit)
{
	size_t layer;
	json_t *expected;
	if (!hidden)
		return;
	assert_int_equal(json_array_size(hidden), n_layers + 1);
	json_array_foreach(hidden, layer, expected)
	{
		struct difference d = compare(routes.hidden[layer], expected, routes.n_embd);
		if (!(d.max <= limit * d.reference_rms))
			fail_msg("before layer %zu the residual stream differs by %g of an RMS of "
				 "%g",
				layer, d.max, d.reference_rms);
	}
}

static void check_prompt(struct rig *rig, const struct f32_case *c, const json_t *prompt)
{
	int32_t ids[RIG_CONTEXT];
	struct kv_seq seq;
	uint32_t n = read_ids(json_object_get(prompt, "ids"), ids);
	rig_seq(rig, &seq);
	float *logits = run_prompt(rig, &seq, ids, n);
	const float *last = logits + (size_t)(n - 1) * rig->n_vocab;
	struct difference d = compare(last, json_object_get(prompt, "logits_last"), rig->n_vocab);
	if (!(d.max <= c->limit * d.reference_rms))
		fail_msg("%s, prompt %s: logits differ by %g of an RMS of %g", c->name,
			json_string_value(json_object_get(prompt, "name")), d.max, d.reference_rms);
	check_logits_at(json_object_get(prompt, "logits_at"), logits, rig->n_vocab,
		c->limit * d.reference_rms);
	check_hidden(json_object_get(prompt, "hidden_last"), rig->model->config.n_layers, c->limit);
	const json_t *argmax = json_object_get(prompt, "argmax_all");
	for (uint32_t t = 0; t < n; t++)
		assert_int_equal(best(logits + (size_t)t * rig->n_vocab, rig->n_vocab),
			json_integer_value(json_array_get(argmax, t)));
	check_routing(json_object_get(prompt, "routing"), true);
	check_greedy(rig, &seq, last, json_object_get(json_object_get(prompt, "greedy"), "ids"));
	free(logits);
	kv_seq_exit(&rig->kv, &seq);
}

/* f32 file, f32 KV: max of the logits within 2e-4 of their RMS; tokens and experts equal; weights within 1e-5. Prompts
 * with longrope are for a context within the original one (short factors) or one beyond it. */
static void check_f32(const struct f32_case *c, const char *kernels, const char *factors)
{
	char path[256];
	struct rig rig;
	size_t i, n = 0;
	json_t *prompt;
	snprintf(path, sizeof(path), "tests/data/golden/models/%s.f32.gguf", c->name);
	rig_open_context(&rig, path, kernels, 2, KV_F32,
		factors && strcmp(factors, "short") == 0 ? 96 : RIG_CONTEXT);
	snprintf(path, sizeof(path), "tests/data/golden/models/%s.json", c->numbers);
	json_t *golden = load_json(path);
	json_array_foreach(json_object_get(golden, "prompts"), i, prompt)
	{
		const char *wanted = json_string_value(json_object_get(prompt, "rope_factors"));
		if (!wanted != !factors || (wanted && strcmp(wanted, factors) != 0))
			continue;
		check_prompt(&rig, c, prompt);
		n++;
	}
	assert_int_equal(n, factors && strcmp(factors, "short") == 0 ? 4 : 5);
	json_decref(golden);
	rig_close(&rig);
}

static void check_f32_on_every_backend(const struct f32_case *c, const char *factors)
{
	for (const struct kernels *const *k = kernels_all; *k; k++)
		if ((*k)->supported())
			check_f32(c, (*k)->name, factors);
}

static void f32_models_match_transformers_on_every_backend(void **state)
{
	static const struct f32_case cases[] = {
		{"llama-dense", "llama-dense", 2e-4},
		{"llama-rope3", "llama-rope3", 2e-4},
		{"mixtral", "mixtral", 2e-4},
		{"qwen3", "qwen3", 2e-4},
		{"qwen3moe", "qwen3moe", 2e-4},
		{"olmoe", "olmoe", 2e-4},
		{"qwen2moe", "qwen2moe", 2e-4},
		{"gpt-oss", "gpt-oss", 2e-4},
		{"glm4moe", "glm4moe", 2e-4},
		{"deepseek2-lite", "deepseek2-lite", 2e-4},
		{"deepseek2-lite.legacy", "deepseek2-lite", 2e-4},
		{"deepseek2-v3", "deepseek2-v3", 2e-4},
		{"deepseek2-v3.legacy", "deepseek2-v3", 2e-4},
		{"qwen3next", "qwen3next", 1e-3},
		{"qwen35moe", "qwen35moe", 1e-3},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		check_f32_on_every_backend(&cases[i], NULL);
}

/* Which factors apply is decided by the context the engine is made for, as phimoe's reference decides by the length. */
static void longrope_factors_follow_the_context(void **state)
{
	static const struct f32_case phimoe = {"phimoe", "phimoe", 2e-4};
	(void)state;
	check_f32_on_every_backend(&phimoe, "short");
	check_f32_on_every_backend(&phimoe, "long");
}

struct demo_score {
	uint32_t steps, agree, wide, wide_agree;
	double square;
	uint32_t n_square;
};

/* Teacher forcing: the recorded tokens go in; at every step the recorded top five logits are compared. */
static void score_prompt(struct rig *rig, const json_t *prompt, struct demo_score *score)
{
	int32_t ids[RIG_CONTEXT];
	struct kv_seq seq;
	size_t i, j;
	json_t *step, *pair;
	uint32_t n = read_ids(json_object_get(prompt, "input_ids"), ids);
	uint32_t total = n + read_ids(json_object_get(prompt, "output_ids"), ids + n);
	rig_seq(rig, &seq);
	float *logits = run_prompt(rig, &seq, ids, total);
	json_array_foreach(json_object_get(prompt, "steps"), i, step)
	{
		const float *row = logits + (n - 1 + i) * rig->n_vocab;
		double margin = json_number_value(json_object_get(step, "margin"));
		bool agree = (int32_t)best(row, rig->n_vocab) == ids[n + i];
		score->steps++;
		score->agree += agree;
		score->wide += margin >= 1;
		score->wide_agree += margin >= 1 && agree;
		json_array_foreach(json_object_get(step, "top"), j, pair)
		{
			double d = (double)row[json_integer_value(json_array_get(pair, 0))] -
				   json_number_value(json_array_get(pair, 1));
			score->square += d * d;
			score->n_square++;
		}
	}
	free(logits);
	kv_seq_exit(&rig->kv, &seq);
}

/* 8-bit activations move the logits by some hundredths; the reference computes in float32. Where the best token leads by
 * 1 it must be ours too. */
static void check_demo(const char *name)
{
	char path[256];
	struct rig rig;
	struct demo_score score = {0};
	size_t i;
	json_t *prompt;
	snprintf(path, sizeof(path), "models/%s.gguf", name);
	rig_open(&rig, path, NULL, 2, KV_Q16_0);
	snprintf(path, sizeof(path), "models/golden/%s.json", name);
	json_t *golden = load_json(path);
	json_array_foreach(json_object_get(golden, "prompts"), i,
		prompt) if (json_array_size(json_object_get(prompt, "input_ids")) + 64 <=
			    RIG_CONTEXT) score_prompt(&rig, prompt, &score);
	double rms = sqrt(score.square / score.n_square);
	print_message(
		"# %s: %u steps, best token equal %u, of %u with a wide margin %u, RMS of the "
		"top five's difference %.4f\n",
		name, score.steps, score.agree, score.wide, score.wide_agree, rms);
	assert_true(score.steps >= 300);
	assert_int_equal(score.wide_agree, score.wide);
	assert_true(score.agree * 100 >= score.steps * 97);
	assert_true(rms <= 0.15);
	json_decref(golden);
	rig_close(&rig);
}

static void demo_models_follow_their_training_code(void **state)
{
	(void)state;
	check_demo("outrider-demo-moe-q8_0");
	check_demo("outrider-demo-moe-q4_0");
	check_demo("outrider-demo-draft-small-q8_0");
	check_demo("outrider-demo-draft-aligned-q8_0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(f32_models_match_transformers_on_every_backend),
		cmocka_unit_test(longrope_factors_follow_the_context),
		cmocka_unit_test(demo_models_follow_their_training_code),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
