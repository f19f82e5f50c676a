/*
 * Quantised models against transformers on their dequantised weights (tests/data/golden/quants): on the reference path,
 * where only summation differs, and with 8-bit activations. Every file that the JSON names and that is in
 * tests/data/golden, or in the complete golden data ($OUTRIDER_GOLDEN, ../shared/golden), is tried.
 */
#include "tests/model/golden.h"

/* The file in tests/data/golden, or in the complete golden data; false when neither has it. */
static bool find_quant(const char *file, char *path, size_t bytes)
{
	snprintf(path, bytes, "tests/data/golden/quants/%s", file);
	if (access(path, R_OK) == 0)
		return true;
	snprintf(path, bytes, "%s/quants/%s", complete_golden(), file);
	return access(path, R_OK) == 0;
}

/* A prompt of a variant, run: its logits (of all positions, to be freed) and the sequence. */
struct run_result {
	struct kv_seq seq;
	float *logits;
	const float *last;
	struct difference difference;
};

static void run_variant_prompt(struct rig *rig, const json_t *golden, size_t i,
	const json_t *prompt, struct run_result *out)
{
	int32_t ids[RIG_CONTEXT];
	const json_t *named = json_array_get(json_object_get(golden, "prompts"), i);
	uint32_t n = read_ids(json_object_get(named, "ids"), ids);

	rig_seq(rig, &out->seq);
	out->logits = run_prompt(rig, &out->seq, ids, n);
	out->last = out->logits + (size_t)(n - 1) * rig->n_vocab;
	out->difference = compare(out->last, json_object_get(prompt, "logits_last"), rig->n_vocab);
}

static void run_result_exit(struct rig *rig, struct run_result *result)
{
	free(result->logits);
	kv_seq_exit(&rig->kv, &result->seq);
}

/* The reference's tokens go in, and where it prefers one by more than rounding, ours is the same. */
static void check_forced_greedy(
	struct rig *rig, struct kv_seq *seq, const float *last, const json_t *greedy)
{
	size_t i;
	json_t *id;
	float *logits = malloc(rig->n_vocab * sizeof(*logits));
	uint32_t checked = 0;

	assert_non_null(logits);
	memcpy(logits, last, rig->n_vocab * sizeof(*logits));
	json_array_foreach(json_object_get(greedy, "ids"), i, id)
	{
		int32_t token = (int32_t)json_integer_value(id);
		const json_t *margin = json_array_get(json_object_get(greedy, "margin"), i);

		if (json_number_value(margin) >= 2e-3) {
			assert_int_equal(best(logits, rig->n_vocab), token);
			checked++;
		}
		rig_chain(rig, seq, &token, 1, 1, logits);
	}
	assert_true(checked >= 40);
	free(logits);
}

/* Float32 throughout: the largest difference within 2e-4 of the RMS, experts and their weights, best tokens. */
static void check_reference(const json_t *golden, const json_t *variant, const char *path)
{
	struct rig rig;
	size_t i;
	json_t *prompt;

	rig_open(&rig, path, "reference", 2, KV_F32);
	json_array_foreach(json_object_get(variant, "prompts"), i, prompt)
	{
		struct run_result result;
		json_t *margin = json_object_get(prompt, "routing_min_margin");

		run_variant_prompt(&rig, golden, i, prompt, &result);
		if (!(result.difference.max <= 2e-4 * result.difference.reference_rms))
			fail_msg("%s, prompt %zu: logits differ by %g of an RMS of %g", path, i,
				result.difference.max, result.difference.reference_rms);
		if (margin && json_number_value(margin) >= 1e-3)
			check_routing(json_object_get(prompt, "routing"), true);
		/* The chain of one-token passes costs most: one prompt has it. */
		if (i == 1)
			check_forced_greedy(
				&rig, &result.seq, result.last, json_object_get(prompt, "greedy"));
		run_result_exit(&rig, &result);
	}
	rig_close(&rig);
}

/* RMS of the difference within `limit` of the RMS of the logits; experts equal where the margin says so (README). */
static void check_fast(const json_t *golden, const json_t *variant, const char *path, double limit)
{
	struct rig rig;
	size_t i;
	json_t *prompt;

	rig_open(&rig, path, NULL, 2, KV_F32);
	json_array_foreach(json_object_get(variant, "prompts"), i, prompt)
	{
		struct run_result result;
		json_t *margin = json_object_get(prompt, "routing_min_margin");

		run_variant_prompt(&rig, golden, i, prompt, &result);
		if (!(result.difference.rms <= limit * result.difference.reference_rms))
			fail_msg("%s, prompt %zu: RMS of the difference %g, of the logits %g", path,
				i, result.difference.rms, result.difference.reference_rms);
		if (margin && json_number_value(margin) >= 0.2)
			check_routing(json_object_get(prompt, "routing"), false);
		run_result_exit(&rig, &result);
	}
	rig_close(&rig);
}

static bool is_one_of(const char *type, const char *const *types)
{
	for (; *types; types++)
		if (strcmp(*types, type) == 0)
			return true;
	return false;
}

/* Calls check for each variant of the model that is there; those of `types` must be. */
static void each_variant(const char *name, const char *const *types,
	void (*check)(const json_t *golden, const json_t *variant, const char *path))
{
	char path[512], file[64];
	size_t i;
	json_t *variant;

	snprintf(file, sizeof(file), "%s.json", name);
	assert_true(find_quant(file, path, sizeof(path)));
	json_t *golden = load_json(path);
	json_array_foreach(json_object_get(golden, "variants"), i, variant)
	{
		const char *type = json_string_value(json_object_get(variant, "type"));

		if (find_quant(json_string_value(json_object_get(variant, "file")), path,
			    sizeof(path)))
			check(golden, variant, path);
		else if (is_one_of(type, types))
			fail_msg("%s is not there", path);
		else
			print_message("# SKIP %s is not there\n", path);
	}
	json_decref(golden);
}

static const char *const oss_types[] = {"MXFP4_MOE", NULL};
static const char *const moe_types[] = {
	"Q8_0", "Q4_0", "Q4_1", "Q4_K_M", "MXFP4_MOE", "IQ2", "IQ1_IQ3", "NVFP4", NULL};
static const char *const dense_types[] = {"Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "IQ4_NL",
	"IQ4_XS", "F16", "BF16", "IQ", "TQ", NULL};

/* README: with activations in blocks of 32, 4%; the K-quants are held to it too, as ours are in such blocks. Plain
 * weights have float32 activations, so that only summation differs. */
static void check_fast_limit(const json_t *golden, const json_t *variant, const char *path)
{
	const char *type = json_string_value(json_object_get(variant, "type"));
	bool plain = strcmp(type, "F16") == 0 || strcmp(type, "BF16") == 0;

	check_fast(golden, variant, path, plain ? 1e-4 : 0.04);
}

static void moe_on_the_reference_path_is_exact_but_for_rounding(void **state)
{
	(void)state;
	each_variant("qwen3moe-256", moe_types, check_reference);
}

static void dense_on_the_reference_path_is_exact_but_for_rounding(void **state)
{
	(void)state;
	each_variant("llama-dense-256", dense_types, check_reference);
}

static void gpt_oss_as_released_is_exact_but_for_rounding_on_the_reference_path(void **state)
{
	(void)state;
	each_variant("gpt-oss", oss_types, check_reference);
}

/* The README derives no limit for it; another engine's 8-bit activations measure 2 to 6%. */
static void check_oss_limit(const json_t *golden, const json_t *variant, const char *path)
{
	check_fast(golden, variant, path, 0.04);
}

static void gpt_oss_with_8_bit_activations_is_within_4_percent_rms(void **state)
{
	(void)state;
	each_variant("gpt-oss", oss_types, check_oss_limit);
}

static void moe_with_8_bit_activations_is_within_4_percent_rms(void **state)
{
	(void)state;
	each_variant("qwen3moe-256", moe_types, check_fast_limit);
}

static void dense_with_8_bit_activations_is_within_4_percent_rms(void **state)
{
	(void)state;
	each_variant("llama-dense-256", dense_types, check_fast_limit);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(moe_on_the_reference_path_is_exact_but_for_rounding),
		cmocka_unit_test(dense_on_the_reference_path_is_exact_but_for_rounding),
		cmocka_unit_test(
			gpt_oss_as_released_is_exact_but_for_rounding_on_the_reference_path),
		cmocka_unit_test(gpt_oss_with_8_bit_activations_is_within_4_percent_rms),
		cmocka_unit_test(moe_with_8_bit_activations_is_within_4_percent_rms),
		cmocka_unit_test(dense_with_8_bit_activations_is_within_4_percent_rms),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
