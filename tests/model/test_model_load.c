/* Loading models: what the metadata and tensors become, and what kinds of files are refused by name. */
#include "shared/model/arch/model.h"
#include "tests/model/gguf_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct build file;

/* A dense model of one layer: d = 4, one head of 4, f = 8, vocabulary 3, all F32. extra: keys written by the caller
 * before finish(). */
struct tiny {
	const char *arch;
	const char *drop; /* this tensor is left out */
	const char *add; /* this one, of add_n elements, is put in */
	uint64_t add_n;
	uint32_t n_blocks; /* as the metadata say; 0: 1, which is what there are */
	uint32_t n_keys; /* of extra */
	void (*extra)(void);
};

static void tiny_keys(const struct tiny *t, uint64_t n_tensors)
{
	char key[64];
	const struct {
		const char *suffix;
		uint32_t value;
	} counts[] = {{"block_count", t->n_blocks ? t->n_blocks : 1}, {"context_length", 16},
		{"embedding_length", 4}, {"feed_forward_length", 8}, {"attention.head_count", 1}};
	build_header(&file, 3, n_tensors, 7 + t->n_keys);
	build_key_string(&file, "general.architecture", t->arch);
	for (size_t i = 0; i < 5; i++) {
		snprintf(key, sizeof(key), "%s.%s", t->arch, counts[i].suffix);
		build_key_u32(&file, key, counts[i].value);
	}
	snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", t->arch);
	build_key(&file, key, 6);
	build_bytes(&file, "\xac\xc5\x27\x37", 4);
	if (t->extra)
		t->extra();
}

static void build_tiny(const struct tiny *t)
{
	static const struct {
		const char *name;
		uint64_t ne[2];
	} tensors[] = {
		{"token_embd.weight", {4, 3}},
		{"output_norm.weight", {4, 1}},
		{"blk.0.attn_norm.weight", {4, 1}},
		{"blk.0.attn_q.weight", {4, 4}},
		{"blk.0.attn_k.weight", {4, 4}},
		{"blk.0.attn_v.weight", {4, 4}},
		{"blk.0.attn_output.weight", {4, 4}},
		{"blk.0.ffn_norm.weight", {4, 1}},
		{"blk.0.ffn_gate.weight", {4, 8}},
		{"blk.0.ffn_up.weight", {4, 8}},
		{"blk.0.ffn_down.weight", {8, 4}},
	};
	const size_t n = sizeof(tensors) / sizeof(tensors[0]);
	uint64_t offset = 0;
	tiny_keys(t, n - (t->drop ? 1 : 0) + (t->add ? 1 : 0));
	for (size_t i = 0; i < n; i++) {
		if (t->drop && strcmp(t->drop, tensors[i].name) == 0)
			continue;
		build_tensor(&file, tensors[i].name, 2, tensors[i].ne, 0, offset);
		offset += (tensors[i].ne[0] * tensors[i].ne[1] * 4 + 31) & ~31ull;
	}
	if (t->add) {
		build_tensor(&file, t->add, 1, &t->add_n, 0, offset);
		offset += (t->add_n * 4 + 31) & ~31ull;
	}
	build_pad(&file, 32);
	while (offset) {
		build_bytes(&file, "\0\0\x80\x3f", 4);
		offset -= 4;
	}
}

static int load_built(struct model **model, struct error *err)
{
	struct gguf *gguf;
	int rc = gguf_open_memory(file.bytes, file.n, &gguf, err);
	return rc ? rc : model_load_gguf(&gguf, model, err);
}

static struct model *load_tiny(const struct tiny *t)
{
	struct error err = {""};
	struct model *m;
	build_tiny(t);
	if (load_built(&m, &err))
		fail_msg("%s", err.text);
	return m;
}

static void assert_tiny_refused(const struct tiny *t, const char *name)
{
	struct error err = {""};
	struct model *m;
	build_tiny(t);
	if (load_built(&m, &err) == 0)
		fail_msg("accepted; it should name %s", name);
	assert_null(m);
	if (!strstr(err.text, name))
		fail_msg("the message does not name %s: %s", name, err.text);
}

static void test_defaults_of_absent_keys(void **state)
{
	(void)state;
	struct model *m = load_tiny(&(struct tiny){.arch = "llama"});
	const struct model_config *c = &m->config;
	assert_int_equal(c->n_kv_heads, 1);
	assert_int_equal(c->head_dim, 4);
	assert_int_equal(c->n_rot, 4);
	assert_true(c->rope.base == 10000);
	assert_true(c->rope.scaling == ROPE_LINEAR && c->rope.factor == 1);
	assert_null(c->rope.factors);
	assert_int_equal(c->n_vocab, 3);
	assert_int_equal(c->n_ff, 8);
	assert_int_equal(c->n_experts, 0);
	assert_null(m->layers[0].q_bias);
	assert_false(m->layers[0].moe);
	model_free(&m);
	assert_null(m);
}

static void test_output_is_tied_to_the_embedding_when_absent(void **state)
{
	(void)state;
	struct model *m = load_tiny(&(struct tiny){.arch = "llama"});
	assert_ptr_equal(m->output.data, m->embedding.data);
	assert_int_equal(m->output.rows, 3);
	assert_int_equal(m->output.cols, 4);
	model_free(&m);
}

static void test_optional_tensors_are_used(void **state)
{
	(void)state;
	struct model *m =
		load_tiny(&(struct tiny){.arch = "llama", .add = "blk.0.attn_k.bias", .add_n = 4});
	assert_non_null(m->layers[0].k_bias);
	assert_true(m->layers[0].k_bias[3] == 1);
	assert_null(m->layers[0].v_bias);
	model_free(&m);
	m = load_tiny(&(struct tiny){.arch = "llama", .add = "rope_freqs.weight", .add_n = 2});
	assert_non_null(m->config.rope.factors);
	model_free(&m);
}

static void test_tensors_that_do_not_fit_are_refused(void **state)
{
	(void)state;
	assert_tiny_refused(&(struct tiny){.arch = "llama", .drop = "blk.0.ffn_up.weight"},
		"blk.0.ffn_up.weight");
	assert_tiny_refused(
		&(struct tiny){.arch = "llama", .drop = "token_embd.weight"}, "token_embd.weight");
	assert_tiny_refused(&(struct tiny){.arch = "llama", .add = "rope_freqs.weight", .add_n = 3},
		"rope_freqs.weight");
	assert_tiny_refused(&(struct tiny){.arch = "llama", .add = "blk.0.attn_q.bias", .add_n = 5},
		"blk.0.attn_q.bias");
	assert_tiny_refused(&(struct tiny){.arch = "llama", .add = "blk.0.ffn_up.bias", .add_n = 9},
		"blk.0.ffn_up.bias");
	/* A part the architecture does not have would silently be left out. */
	assert_tiny_refused(
		&(struct tiny){.arch = "llama", .add = "blk.0.ffn_norm.bias", .add_n = 4},
		"blk.0.ffn_norm.bias");
	assert_tiny_refused(
		&(struct tiny){.arch = "llama", .add = "blk.0.attn_q_norm.weight", .add_n = 4},
		"blk.0.attn_q_norm.weight");
	assert_tiny_refused(&(struct tiny){.arch = "qwen3"}, "blk.0.attn_q_norm.weight");
}

static void extra_rope(void)
{
	build_key_string(&file, "llama.rope.scaling.type", "dynamic");
}

static void key_f32(const char *name, float value)
{
	build_key(&file, name, 6);
	build_bytes(&file, &value, sizeof(value));
}

static void extra_yarn(void)
{
	build_key_string(&file, "llama.rope.scaling.type", "yarn");
	key_f32("llama.rope.scaling.factor", 4);
	build_key_u32(&file, "llama.rope.scaling.original_context_length", 8);
}

static void extra_yarn_temperature(void)
{
	extra_yarn();
	key_f32("llama.rope.scaling.yarn_attn_factor", 0.75F);
}

static void extra_yarn_nan(void)
{
	build_key_string(&file, "llama.rope.scaling.type", "yarn");
	key_f32("llama.rope.scaling.factor", __builtin_nanf(""));
}

static void extra_yarn_betas(void)
{
	build_key_string(&file, "llama.rope.scaling.type", "yarn");
	key_f32("llama.rope.scaling.yarn_beta_slow", 33);
}

static void extra_yarn_base_1(void)
{
	extra_yarn();
	key_f32("llama.rope.freq_base", 1);
}

static void extra_yarn_base_near_1(void)
{
	extra_yarn();
	key_f32("llama.rope.freq_base", 1.0001F);
}

static void extra_longrope(void)
{
	build_key_string(&file, "llama.rope.scaling.type", "longrope");
	build_key_u32(&file, "llama.rope.scaling.original_context_length", 8);
}

static void extra_longrope_unknown(void)
{
	build_key_string(&file, "llama.rope.scaling.type", "longrope");
}

static void extra_no_layers(void)
{
	build_key_u32(&file, "llama.nextn_predict_layers", 1);
}

static void experts(const char *arch, uint32_t n, uint32_t used)
{
	char key[64];
	snprintf(key, sizeof(key), "%s.expert_count", arch);
	build_key_u32(&file, key, n);
	snprintf(key, sizeof(key), "%s.expert_used_count", arch);
	build_key_u32(&file, key, used);
}

static void extra_mlp_only(void)
{
	experts("qwen2moe", 4, 2);
	build_key_u32(&file, "qwen2moe.expert_feed_forward_length", 4);
}

static void extra_no_window(void)
{
	experts("gpt-oss", 4, 2);
}

static void extra_window_0(void)
{
	experts("gpt-oss", 4, 2);
	build_key_u32(&file, "gpt-oss.attention.sliding_window", 0);
}

static void extra_three(void)
{
	experts("phimoe", 4, 3);
	build_key_u32(&file, "phimoe.rope.scaling.original_context_length", 8);
}

static void groups(uint32_t n, uint32_t used)
{
	experts("glm4moe", 8, 3);
	build_key_u32(&file, "glm4moe.expert_feed_forward_length", 8);
	build_key_u32(&file, "glm4moe.expert_group_count", n);
	build_key_u32(&file, "glm4moe.expert_group_used_count", used);
}

static void extra_groups_of_3(void)
{
	groups(3, 1);
}

static void extra_groups_of_1(void)
{
	groups(8, 4);
}

static void extra_more_groups_used(void)
{
	groups(2, 3);
}

static void extra_groups_too_small(void)
{
	groups(4, 1);
}

static void extra_gating(void)
{
	experts("glm4moe", 8, 3);
	build_key_u32(&file, "glm4moe.expert_feed_forward_length", 8);
	build_key_u32(&file, "glm4moe.expert_gating_func", 4);
}

static void extra_scale(void)
{
	experts("glm4moe", 8, 3);
	build_key_u32(&file, "glm4moe.expert_feed_forward_length", 8);
	key_f32("glm4moe.expert_weights_scale", __builtin_inff());
}

static void extra_dense(void)
{
	experts("glm4moe", 8, 3);
	build_key_u32(&file, "glm4moe.expert_feed_forward_length", 8);
	build_key_u32(&file, "glm4moe.leading_dense_block_count", 2);
}

static void extra_linear(void)
{
	build_key_string(&file, "llama.rope.scaling.type", "linear");
	build_key(&file, "llama.rope.scaling.factor", 6);
	build_bytes(&file, "\0\0\x80\x40", 4);
}

static void extra_split(void)
{
	build_key_u32(&file, "split.count", 2);
}

static void extra_adapter(void)
{
	build_key_string(&file, "general.type", "adapter");
}

static void extra_widths(void)
{
	build_key(&file, "llama.attention.head_count_kv", 9);
	build_u32(&file, 5);
	build_u64(&file, 1);
	build_u32(&file, 1);
}

static void extra_not_causal(void)
{
	build_key(&file, "llama.attention.causal", 7);
	build_bytes(&file, "\0", 1);
}

static void test_linear_rope_scaling_is_a_factor(void **state)
{
	(void)state;
	struct model *m =
		load_tiny(&(struct tiny){.arch = "llama", .n_keys = 2, .extra = extra_linear});
	assert_true(m->config.rope.scaling == ROPE_LINEAR && m->config.rope.factor == 4);
	model_free(&m);
}

static void test_yarn_has_the_usual_betas(void **state)
{
	(void)state;
	struct model *m =
		load_tiny(&(struct tiny){.arch = "llama", .n_keys = 3, .extra = extra_yarn});
	const struct rope_config *rope = &m->config.rope;
	assert_true(rope->scaling == ROPE_YARN && rope->factor == 4);
	assert_true(rope->beta_fast == 32 && rope->beta_slow == 1);
	assert_true(rope->original_context == 8 && rope->attn_factor == 1);
	assert_true(rope->yarn_attn_factor == 0);
	model_free(&m);
}

static void test_yarn_has_a_temperature_of_its_own(void **state)
{
	(void)state;
	struct model *m = load_tiny(
		&(struct tiny){.arch = "llama", .n_keys = 4, .extra = extra_yarn_temperature});
	assert_true(m->config.rope.yarn_attn_factor == 0.75);
	model_free(&m);
}

/* The published models have blocks behind the last layer that predict further tokens. */
static void test_prediction_blocks_are_left_aside(void **state)
{
	(void)state;
	struct tiny tiny = {.arch = "llama",
		.add = "blk.1.nextn.eh_proj.weight",
		.add_n = 32,
		.n_blocks = 2,
		.n_keys = 1,
		.extra = extra_no_layers};
	struct model *m = load_tiny(&tiny);
	assert_int_equal(m->config.n_blocks, 2);
	assert_int_equal(m->config.n_layers, 1);
	model_free(&m);
	/* One too far, and none that a key speaks of. */
	tiny.add = "blk.2.nextn.eh_proj.weight";
	assert_tiny_refused(&tiny, "blk.2.nextn.eh_proj.weight");
	tiny.add = "blk.1.nextn.eh_proj.weight";
	tiny.n_blocks = 1;
	tiny.n_keys = 0;
	tiny.extra = NULL;
	assert_tiny_refused(&tiny, "blk.1.nextn.eh_proj.weight");
}

/* Values that make no sense, or none together: the key or tensor is named. */
static void test_values_that_contradict_each_other_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		const char *arch, *name;
		uint32_t n_keys;
		void (*extra)(void);
	} cases[] = {
		{"llama", "llama.rope.scaling.factor", 2, extra_yarn_nan},
		{"llama", "llama.rope.scaling.yarn_beta_slow", 2, extra_yarn_betas},
		{"llama", "llama.rope.freq_base is 1;", 4, extra_yarn_base_1},
		{"llama", "llama.rope.freq_base is 1.0001;", 4, extra_yarn_base_near_1},
		{"llama", "llama.rope.scaling.original_context_length", 1, extra_longrope_unknown},
		{"llama", "rope_factors_short.weight", 2, extra_longrope},
		{"llama", "llama.nextn_predict_layers", 1, extra_no_layers},
		{"gpt-oss", "gpt-oss.attention.sliding_window", 2, extra_no_window},
		{"gpt-oss", "gpt-oss.attention.sliding_window", 3, extra_window_0},
		{"phimoe", "phimoe.expert_used_count", 3, extra_three},
		{"phimoe", "phimoe.rope.scaling.original_context_length", 0, NULL},
		{"glm4moe", "glm4moe.expert_group_count", 5, extra_groups_of_3},
		{"glm4moe", "glm4moe.expert_group_count", 5, extra_groups_of_1},
		{"glm4moe", "glm4moe.expert_group_used_count", 5, extra_more_groups_used},
		{"glm4moe", "glm4moe.expert_group_used_count", 5, extra_groups_too_small},
		{"glm4moe", "glm4moe.expert_gating_func", 4, extra_gating},
		{"glm4moe", "glm4moe.expert_weights_scale", 4, extra_scale},
		{"glm4moe", "glm4moe.leading_dense_block_count", 4, extra_dense},
		{"qwen2moe", "qwen2moe.expert_count", 0, NULL},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_tiny_refused(&(struct tiny){.arch = cases[i].arch,
					    .n_keys = cases[i].n_keys,
					    .extra = cases[i].extra},
			cases[i].name);
	assert_tiny_refused(
		&(struct tiny){.arch = "llama", .add = "rope_factors_long.weight", .add_n = 2},
		"rope_factors_long.weight");
}

static void test_counts_per_layer_that_agree_are_a_count(void **state)
{
	(void)state;
	struct model *m =
		load_tiny(&(struct tiny){.arch = "llama", .n_keys = 1, .extra = extra_widths});
	assert_int_equal(m->config.n_kv_heads, 1);
	model_free(&m);
}

static void test_kinds_of_files_we_do_not_run_are_refused_by_name(void **state)
{
	(void)state;
	assert_tiny_refused(&(struct tiny){.arch = "mamba"}, "general.architecture is \"mamba\"");
	assert_tiny_refused(&(struct tiny){.arch = "mamba"}, "llama, qwen3, qwen3moe");
	assert_tiny_refused(&(struct tiny){.arch = "llama", .n_keys = 1, .extra = extra_rope},
		"llama.rope.scaling.type is \"dynamic\"");
	assert_tiny_refused(
		&(struct tiny){.arch = "llama", .n_keys = 1, .extra = extra_split}, "split.count");
	assert_tiny_refused(&(struct tiny){.arch = "llama", .n_keys = 1, .extra = extra_adapter},
		"general.type");
	assert_tiny_refused(&(struct tiny){.arch = "llama", .n_keys = 1, .extra = extra_not_causal},
		"llama.attention.causal");
}

static void test_the_fingerprint_is_of_metadata_weights_and_size(void **state)
{
	(void)state;
	struct model *m = load_tiny(&(struct tiny){.arch = "llama"});
	uint64_t fingerprint = m->fingerprint;
	model_free(&m);
	m = load_tiny(&(struct tiny){.arch = "llama"});
	assert_true(m->fingerprint == fingerprint);
	model_free(&m);
	m = load_tiny(&(struct tiny){.arch = "llama", .n_keys = 1, .extra = extra_widths});
	assert_true(m->fingerprint != fingerprint);
	model_free(&m);
	/* One weight of a small tensor, under the same metadata. */
	struct error err = {""};
	build_tiny(&(struct tiny){.arch = "llama"});
	file.bytes[file.n - 2] ^= 1;
	assert_int_equal(load_built(&m, &err), 0);
	assert_true(m->fingerprint != fingerprint);
	assert_true(m->file_fingerprint == m->fingerprint);
	model_free(&m);
}

static void test_the_demo_model_has_experts_where_it_says(void **state)
{
	(void)state;
	struct error err = {""};
	struct model *m;
	if (model_load("models/outrider-demo-moe-q8_0.gguf", &m, &err))
		fail_msg("%s", err.text);
	assert_int_equal(m->config.n_experts, 32);
	assert_int_equal(m->config.n_experts_used, 4);
	assert_true(m->config.arch->rope_neox && m->config.arch->qk_norm == QK_NORM_HEAD &&
		    m->config.routing.norm);
	uint64_t total = 0;
	for (uint32_t i = 0; i < m->config.n_layers; i++) {
		const struct layer *l = &m->layers[i];
		assert_true(l->moe);
		assert_int_equal(l->gate.shape.rows, 96);
		assert_int_equal(l->down.shape.cols, 96);
		assert_int_equal(l->gate.expert_bytes, 96 * 256 / 32 * 34);
		assert_ptr_equal(
			(const char *)gguf_data(m->gguf) + l->up.file_offset, l->up.shape.data);
		assert_true(l->up.file_offset + 32 * l->up.expert_bytes <= gguf_bytes(m->gguf));
		assert_non_null(l->q_norm);
		total += 32 * model_expert_bytes(m, i);
	}
	assert_int_equal(m->expert_bytes_total, total);
	model_free(&m);
}

static void test_golden_models_load(void **state)
{
	(void)state;
	static const char *const files[] = {
		"models/llama-dense.f32.gguf",
		"models/llama-rope3.f32.gguf",
		"models/mixtral.f32.gguf",
		"models/qwen3.f32.gguf",
		"models/qwen3moe.f32.gguf",
		"models/olmoe.f32.gguf",
		"models/qwen2moe.f32.gguf",
		"models/phimoe.f32.gguf",
		"models/gpt-oss.f32.gguf",
		"models/glm4moe.f32.gguf",
		"quants/qwen3moe-256.Q4_1.gguf",
		"quants/llama-dense-256.BF16.gguf",
		"quants/llama-dense-256.F16.gguf",
		"quants/llama-dense-256.Q6_K.gguf",
	};
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		struct error err = {""};
		struct model *m;
		char path[512];
		snprintf(path, sizeof(path), "tests/data/golden/%s", files[i]);
		if (model_load(path, &m, &err))
			fail_msg("%s", err.text);
		model_free(&m);
	}
}

/* No key says which layers of a Qwen model have no experts; they have no router. */
static void test_a_layer_without_a_router_is_dense(void **state)
{
	(void)state;
	struct tiny tiny = {.arch = "qwen2moe", .n_keys = 3, .extra = extra_mlp_only};
	struct model *m = load_tiny(&tiny);
	assert_int_equal(m->config.n_experts, 4);
	assert_int_equal(m->config.n_ff, 8);
	assert_false(m->layers[0].moe);
	assert_int_equal(m->layers[0].ffn_gate.rows, 8);
	model_free(&m);
	tiny.drop = "blk.0.ffn_down.weight";
	assert_tiny_refused(&tiny, "blk.0.ffn_gate_inp.weight");
}

/* Layers with experts and without in one model, as the metadata say. */
static void test_leading_layers_may_be_dense(void **state)
{
	(void)state;
	struct error err = {""};
	struct model *m;
	if (model_load("tests/data/golden/models/glm4moe.f32.gguf", &m, &err))
		fail_msg("%s", err.text);
	assert_int_equal(m->config.n_ff, 96);
	assert_int_equal(m->config.n_shared_ff, 32);
	uint64_t total = 0;
	for (uint32_t i = 0; i < m->config.n_layers; i++) {
		const struct layer *l = &m->layers[i];
		assert_int_equal(l->moe, i > 0);
		assert_int_equal(l->ffn_gate.data != NULL, i == 0);
		assert_int_equal(l->shared_gate.data != NULL, i > 0);
		assert_int_equal(l->selection_bias != NULL, i > 0);
		assert_int_equal(model_expert_bytes(m, i) > 0, i > 0);
		total += m->config.n_experts * model_expert_bytes(m, i);
	}
	assert_int_equal(m->expert_bytes_total, total);
	model_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults_of_absent_keys),
		cmocka_unit_test(test_output_is_tied_to_the_embedding_when_absent),
		cmocka_unit_test(test_optional_tensors_are_used),
		cmocka_unit_test(test_tensors_that_do_not_fit_are_refused),
		cmocka_unit_test(test_linear_rope_scaling_is_a_factor),
		cmocka_unit_test(test_yarn_has_the_usual_betas),
		cmocka_unit_test(test_yarn_has_a_temperature_of_its_own),
		cmocka_unit_test(test_prediction_blocks_are_left_aside),
		cmocka_unit_test(test_values_that_contradict_each_other_are_refused_by_name),
		cmocka_unit_test(test_counts_per_layer_that_agree_are_a_count),
		cmocka_unit_test(test_kinds_of_files_we_do_not_run_are_refused_by_name),
		cmocka_unit_test(test_the_fingerprint_is_of_metadata_weights_and_size),
		cmocka_unit_test(test_the_demo_model_has_experts_where_it_says),
		cmocka_unit_test(test_golden_models_load),
		cmocka_unit_test(test_a_layer_without_a_router_is_dense),
		cmocka_unit_test(test_leading_layers_may_be_dense),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
