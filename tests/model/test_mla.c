/*
 * Latent attention with weights that are not float32, in both layouts of files: the layouts agree as far as they can,
 * and neither chunks, threads, backends nor neighbours in a batch change a bit. (The golden models, which are float32,
 * are in test_golden.c and test_forward.c.) The models are made here: two layers, one dense and one of experts.
 */
#include "kernels/cpu/simd.h"
#include "tests/model/gguf_build.h"
#include "tests/model/rig.h"

#include <errno.h>
#include <math.h>

enum {
	D = 64,
	VOCAB = 96,
	HEADS = 6, /* a group of four and one of two */
	Q_RANK = 32,
	KV_RANK = 64,
	NOPE = 32,
	ROPE = 8,
	V = 16,
	FF = 64,
	EXPERTS = 4,
	EXPERT_FF = 32,
	LAYERS = 2,
	N = 70, /* tokens of a sequence */
};

struct model_file {
	struct build keys, tensors;
	uint32_t n_keys, n_tensors;
	unsigned char *data;
	size_t n_data;
	enum tensor_type type; /* of the matrices */
	uint64_t random;
	char path[64];
};

static void add_u32(struct model_file *m, const char *name, uint32_t value)
{
	char key[96];
	snprintf(key, sizeof(key), "deepseek2.%s", name);
	build_key_u32(&m->keys, key, value);
	m->n_keys++;
}

static void add_f32(struct model_file *m, const char *name, float value)
{
	char key[96];
	snprintf(key, sizeof(key), "deepseek2.%s", name);
	build_key(&m->keys, key, 6);
	build_bytes(&m->keys, &value, sizeof(value));
	m->n_keys++;
}

/* Rows of floats as a tensor of the file. KV vectors are stored as GGUF stores weights. */
static void add_rows(struct model_file *m, enum tensor_type type, const char *name, uint32_t n_dims,
	const uint64_t *ne, const float *rows)
{
	const struct kernels *kernels = kernels_select("scalar", NULL);
	enum kv_type stored = type == TENSOR_F32 ? KV_F32 : type == TENSOR_F16 ? KV_F16 : KV_Q8_0;
	size_t row_bytes = kv_vector_bytes(stored, (uint32_t)ne[0]);
	size_t n = (size_t)(ne[1] * (n_dims > 2 ? ne[2] : 1));
	size_t start = (m->n_data + 31) / 32 * 32;
	build_tensor(&m->tensors, name, n_dims, ne, (uint32_t)type, start);
	m->n_tensors++;
	m->data = realloc(m->data, start + n * row_bytes);
	assert_non_null(m->data);
	memset(m->data + m->n_data, 0, start - m->n_data);
	for (size_t i = 0; i < n; i++)
		kernels->kv_store(
			rows + i * ne[0], (uint32_t)ne[0], stored, m->data + start + i * row_bytes);
	m->n_data = start + n * row_bytes;
}

/* Uniform, with the spread that keeps activations as they are; rounded to float16, so that F16 files hold them exactly. */
static float *random_rows(struct model_file *m, uint64_t cols, uint64_t rows, float offset)
{
	float *x = malloc(cols * rows * sizeof(*x));
	float spread = 1.7f / sqrtf((float)cols);
	assert_non_null(x);
	for (size_t i = 0; i < cols * rows; i++) {
		double unit = (double)(int64_t)rig_random(&m->random) * 0x1p-63;
		x[i] = (float)(_Float16)(offset + spread * (float)unit);
	}
	return x;
}

static void add_random(struct model_file *m, enum tensor_type type, const char *name, uint64_t a,
	uint64_t b, uint64_t c)
{
	const uint64_t ne[] = {a, b, c};
	float *x = random_rows(m, a, b * (c ? c : 1), 0);
	add_rows(m, type, name, c ? 3 : 2, ne, x);
	free(x);
}

static void add_norm(struct model_file *m, const char *name, uint64_t n)
{
	const uint64_t ne[] = {n, 1};
	float *x = random_rows(m, n, 1, 1);
	add_rows(m, TENSOR_F32, name, 1, ne, x);
	free(x);
}

/* The same matrices as attn_k_b and attn_v_b, or as attn_kv_b. */
static void add_kv_b(struct model_file *m, uint32_t layer, bool legacy)
{
	char name[64];
	const uint64_t both[] = {KV_RANK, HEADS * (NOPE + V)}, k_b[] = {NOPE, KV_RANK, HEADS},
		       v_b[] = {KV_RANK, V, HEADS};
	float *kv = random_rows(m, KV_RANK, HEADS * (NOPE + V), 0);
	float k[HEADS][KV_RANK][NOPE], v[HEADS][V][KV_RANK];
	for (uint32_t h = 0; h < HEADS; h++) {
		const float *head = kv + (size_t)h * (NOPE + V) * KV_RANK;
		for (uint32_t r = 0; r < KV_RANK; r++) {
			for (uint32_t i = 0; i < NOPE; i++)
				k[h][r][i] = head[i * KV_RANK + r];
		}
		memcpy(v[h], head + NOPE * KV_RANK, sizeof(v[h]));
	}
	snprintf(name, sizeof(name), "blk.%u.attn_kv_b.weight", layer);
	if (legacy)
		add_rows(m, m->type, name, 2, both, kv);
	snprintf(name, sizeof(name), "blk.%u.attn_k_b.weight", layer);
	if (!legacy)
		add_rows(m, m->type, name, 3, k_b, &k[0][0][0]);
	snprintf(name, sizeof(name), "blk.%u.attn_v_b.weight", layer);
	if (!legacy)
		add_rows(m, m->type, name, 3, v_b, &v[0][0][0]);
	free(kv);
}

static void add_feed_forward(struct model_file *m, uint32_t layer)
{
	const struct {
		const char *name;
		uint32_t a, b, c;
	} dense[] = {{"gate", D, FF, 0}, {"up", D, FF, 0}, {"down", FF, D, 0}},
	  moe[] = {{"gate_exps", D, EXPERT_FF, EXPERTS}, {"up_exps", D, EXPERT_FF, EXPERTS},
		  {"down_exps", EXPERT_FF, D, EXPERTS}, {"gate_shexp", D, EXPERT_FF, 0},
		  {"up_shexp", D, EXPERT_FF, 0}, {"down_shexp", EXPERT_FF, D, 0}};
	char name[64];
	for (size_t i = 0; i < (layer ? 6 : 3); i++) {
		snprintf(name, sizeof(name), "blk.%u.ffn_%s.weight", layer,
			layer ? moe[i].name : dense[i].name);
		if (layer)
			add_random(m, m->type, name, moe[i].a, moe[i].b, moe[i].c);
		else
			add_random(m, m->type, name, dense[i].a, dense[i].b, dense[i].c);
	}
	snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", layer);
	if (layer)
		add_random(m, TENSOR_F32, name, D, EXPERTS, 0);
}

static void add_layer(struct model_file *m, uint32_t layer, bool legacy)
{
	static const struct {
		const char *name;
		uint32_t a, b;
	} parts[] = {
		{"attn_norm", D, 0},
		{"ffn_norm", D, 0},
		{"attn_q_a_norm", Q_RANK, 0},
		{"attn_kv_a_norm", KV_RANK, 0},
		{"attn_q_a", D, Q_RANK},
		{"attn_q_b", Q_RANK, HEADS * (NOPE + ROPE)},
		{"attn_kv_a_mqa", D, KV_RANK + ROPE},
		{"attn_output", HEADS * V, D},
	};
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		char name[64];
		snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, parts[i].name);
		if (parts[i].b)
			add_random(m, m->type, name, parts[i].a, parts[i].b, 0);
		else
			add_norm(m, name, parts[i].a);
	}
	add_kv_b(m, layer, legacy);
	add_feed_forward(m, layer);
}

static void add_keys(struct model_file *m, bool legacy, const char *left_out)
{
	const struct {
		const char *name;
		uint32_t value;
	} keys[] = {
		{"block_count", LAYERS},
		{"context_length", 512},
		{"embedding_length", D},
		{"feed_forward_length", FF},
		{"attention.head_count", HEADS},
		{"attention.head_count_kv", legacy ? HEADS : 1},
		{"attention.key_length", legacy ? NOPE + ROPE : KV_RANK + ROPE},
		{"attention.value_length", legacy ? V : KV_RANK},
		{"attention.q_lora_rank", Q_RANK},
		{"attention.kv_lora_rank", KV_RANK},
		{"rope.dimension_count", ROPE},
		{"leading_dense_block_count", 1},
		{"expert_count", EXPERTS},
		{"expert_used_count", 2},
		{"expert_feed_forward_length", EXPERT_FF},
		{"expert_shared_count", 1},
		{"rope.scaling.original_context_length", 32},
		{"attention.key_length_mla", NOPE + ROPE},
		{"attention.value_length_mla", V},
	};
	size_t n = sizeof(keys) / sizeof(keys[0]) - (legacy ? 2 : 0);
	for (size_t i = 0; i < n; i++) {
		if (!left_out || strcmp(left_out, keys[i].name) != 0)
			add_u32(m, keys[i].name, keys[i].value);
	}
	add_f32(m, "attention.layer_norm_rms_epsilon", 1e-6f);
	add_f32(m, "rope.scaling.factor", 4);
	add_f32(m, "rope.scaling.yarn_log_multiplier", 0.1f);
	build_key_string(&m->keys, "deepseek2.rope.scaling.type", "yarn");
	build_key_string(&m->keys, "general.architecture", "deepseek2");
	m->n_keys += 2;
}

/* The same seed gives the same weights, whatever their type and layout. */
static void write_model(
	struct model_file *m, enum tensor_type type, bool legacy, const char *left_out)
{
	struct build head;
	memset(m, 0, sizeof(*m));
	m->type = type;
	m->random = 5;
	add_keys(m, legacy, left_out);
	add_random(m, type, "token_embd.weight", D, VOCAB, 0);
	add_random(m, type, "output.weight", D, VOCAB, 0);
	add_norm(m, "output_norm.weight", D);
	for (uint32_t i = 0; i < LAYERS; i++)
		add_layer(m, i, legacy);
	build_header(&head, 3, m->n_tensors, m->n_keys);
	build_bytes(&head, m->keys.bytes, m->keys.n);
	build_bytes(&head, m->tensors.bytes, m->tensors.n);
	build_pad(&head, 32);
	snprintf(m->path, sizeof(m->path), "/tmp/outrider-mla-XXXXXX");
	int fd = mkstemp(m->path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, head.bytes, head.n), (ssize_t)head.n);
	assert_int_equal(write(fd, m->data, m->n_data), (ssize_t)m->n_data);
	close(fd);
	free(m->data);
}

/* All logits of ids, `chunk` tokens per pass. */
static float *run(const char *path, const char *kernels, uint32_t threads, enum kv_type type,
	const int32_t *ids, uint32_t chunk)
{
	struct rig rig;
	struct kv_seq seq;
	float *logits = malloc((size_t)N * VOCAB * sizeof(*logits));
	assert_non_null(logits);
	rig_open(&rig, path, kernels, threads, type);
	rig_seq(&rig, &seq);
	rig_chain(&rig, &seq, ids, N, chunk, logits);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
	return logits;
}

static void the_layouts_agree(enum tensor_type type, double limit)
{
	static struct model_file split, legacy;
	int32_t ids[N];
	double square = 0, reference = 0;
	rig_ids(1, VOCAB, ids, N);
	write_model(&split, type, false, NULL);
	write_model(&legacy, type, true, NULL);
	float *a = run(split.path, NULL, 1, KV_F32, ids, 64);
	float *b = run(legacy.path, NULL, 1, KV_F32, ids, 64);
	for (size_t i = 0; i < (size_t)N * VOCAB; i++) {
		square += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
		reference += (double)a[i] * (double)a[i];
	}
	assert_true(reference > 0);
	if (!(sqrt(square / reference) <= limit))
		fail_msg("the layouts differ by %g of the RMS", sqrt(square / reference));
	free(a);
	free(b);
	unlink(split.path);
	unlink(legacy.path);
}

static void layouts_of_the_same_weights_agree(void **state)
{
	(void)state;
	the_layouts_agree(TENSOR_F16, 1e-5);
}

/* Blocks lie across each other in the two layouts, so the weights are not quite the same. */
static void layouts_of_weights_quantised_apart_agree_as_far_as_these_do(void **state)
{
	(void)state;
	the_layouts_agree(TENSOR_Q8_0, 0.05);
}

static void check_invariance(const char *path)
{
	static const uint32_t chunks[] = {1, 7, 64};
	int32_t ids[N];
	rig_ids(2, VOCAB, ids, N);
	for (int type = KV_F32; type <= KV_Q16_0; type++) {
		float *expected = run(path, "scalar", 1, (enum kv_type)type, ids, 1);
		for (size_t i = 0; i < 9; i++) {
			for (const struct kernels *const *k = kernels_all; *k; k++) {
				if (!(*k)->supported() || strcmp((*k)->name, "reference") == 0)
					continue;
				float *got = run(path, (*k)->name, (uint32_t)(i / 3) + 1,
					(enum kv_type)type, ids, chunks[i % 3]);
				assert_memory_equal(
					got, expected, (size_t)N * VOCAB * sizeof(*got));
				free(got);
			}
		}
		free(expected);
	}
}

static void neither_chunks_threads_nor_backends_change_a_bit(void **state)
{
	static struct model_file m;
	(void)state;
	for (int i = 0; i < 3; i++) {
		write_model(&m, i == 2 ? TENSOR_F16 : TENSOR_Q8_0, i == 1, NULL);
		check_invariance(m.path);
		unlink(m.path);
	}
}

static void a_key_that_is_missing_is_named(void **state)
{
	static struct model_file m;
	static const char *const needed[] = {"attention.kv_lora_rank", "attention.q_lora_rank",
		"rope.dimension_count", "attention.value_length_mla", "attention.head_count"};
	(void)state;
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		struct error err = {""};
		struct model *model;
		write_model(&m, TENSOR_F16, false, needed[i]);
		assert_int_equal(model_load(m.path, &model, &err), -EINVAL);
		if (!strstr(err.text, needed[i]))
			fail_msg("%s is missing, and the error is: %s", needed[i], err.text);
		unlink(m.path);
	}
}

/* What the keys say decides which tensors there must be. */
static void tensors_of_the_other_layout_are_refused(void **state)
{
	static struct model_file m;
	struct error err = {""};
	struct model *model;
	(void)state;
	write_model(&m, TENSOR_F16, false, "attention.key_length_mla");
	assert_int_equal(model_load(m.path, &model, &err), -EINVAL);
	unlink(m.path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layouts_of_the_same_weights_agree),
		cmocka_unit_test(layouts_of_weights_quantised_apart_agree_as_far_as_these_do),
		cmocka_unit_test(neither_chunks_threads_nor_backends_change_a_bit),
		cmocka_unit_test(a_key_that_is_missing_is_named),
		cmocka_unit_test(tensors_of_the_other_layout_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
