/* Loading models with gated delta nets: the layouts they come in give the same bytes, what contradicts itself is refused
 * by the name of its key or tensor. The files are made from the golden one. */
#include "tests/model/rig.h"

#define GOLDEN "tests/data/golden/models/qwen3next.f32.gguf"

enum { FILE_MAX = 4 << 20, TENSORS_MAX = 128, N = 24 };

struct piece {
	char name[64];
	uint64_t ne[4];
	const void *data; /* borrowed */
	size_t bytes;
};

/* A file in the making: the keys as bytes, the tensors one by one. */
struct file {
	struct gguf *from;
	unsigned char *keys; /* [keys_bytes] */
	size_t keys_bytes;
	uint64_t n_keys;
	struct piece pieces[TENSORS_MAX];
	size_t n_pieces;
	unsigned char *bytes; /* [FILE_MAX] */
	size_t n;
};

static void file_open(struct file *f)
{
	struct error err;
	memset(f, 0, sizeof(*f));
	assert_int_equal(gguf_open(GOLDEN, &f->from, &err), 0);
	const unsigned char *all = gguf_data(f->from);
	/* Behind magic, version and two counts, up to the length of the first tensor's name. */
	size_t end =
		(size_t)((const unsigned char *)gguf_tensor_at(f->from, 0)->name.data - all) - 8;
	f->keys_bytes = end - 24;
	f->keys = malloc(f->keys_bytes);
	f->bytes = malloc(FILE_MAX);
	assert_true(f->keys && f->bytes);
	memcpy(f->keys, all + 24, f->keys_bytes);
	memcpy(&f->n_keys, all + 16, sizeof(f->n_keys));
	f->n_pieces = gguf_n_tensors(f->from);
	assert_true(f->n_pieces + 32 <= TENSORS_MAX);
	for (size_t i = 0; i < f->n_pieces; i++) {
		const struct gguf_tensor *t = gguf_tensor_at(f->from, i);
		snprintf(f->pieces[i].name, sizeof(f->pieces[i].name), "%.*s", (int)t->name.bytes,
			t->name.data);
		memcpy(f->pieces[i].ne, t->ne, sizeof(t->ne));
		f->pieces[i].data = gguf_tensor_data(f->from, t);
		f->pieces[i].bytes = t->bytes;
	}
}

static void file_close(struct file *f)
{
	gguf_close(&f->from);
	free(f->keys);
	free(f->bytes);
}

/* The key's name in the bytes of the keys. */
static unsigned char *key_at(struct file *f, const char *key)
{
	unsigned char *at = memmem(f->keys, f->keys_bytes, key, strlen(key));
	assert_non_null(at);
	return at;
}

/* The value of a u32 key, or with offset of an array's element or count. */
static void set_u32(struct file *f, const char *key, size_t offset, uint32_t value)
{
	memcpy(key_at(f, key) + strlen(key) + 4 + offset, &value, sizeof(value));
}

/* Nobody asks for a key of that name. */
static void hide_key(struct file *f, const char *key)
{
	*key_at(f, key) = 'Q';
}

static struct piece *piece(struct file *f, const char *name)
{
	for (size_t i = 0; i < f->n_pieces; i++)
		if (strcmp(f->pieces[i].name, name) == 0)
			return &f->pieces[i];
	fail_msg("no tensor %s", name);
	return NULL;
}

static void put(struct file *f, const void *data, size_t bytes)
{
	assert_true(f->n + bytes <= FILE_MAX);
	memcpy(f->bytes + f->n, data, bytes);
	f->n += bytes;
}

static void pad(struct file *f)
{
	while (f->n % 32)
		f->bytes[f->n++] = 0;
}

static int file_load(struct file *f, struct model **model, struct error *err)
{
	const uint32_t magic = 0x46554747, version = 3, f32 = 0;
	const uint64_t n = f->n_pieces;
	uint64_t offset = 0;
	struct gguf *gguf;
	f->n = 0;
	put(f, &magic, 4);
	put(f, &version, 4);
	put(f, &n, 8);
	put(f, &f->n_keys, 8);
	put(f, f->keys, f->keys_bytes);
	for (size_t i = 0; i < n; i++) {
		const struct piece *p = &f->pieces[i];
		uint64_t length = strlen(p->name);
		uint32_t dims = 4;
		while (dims > 1 && p->ne[dims - 1] == 1)
			dims--;
		put(f, &length, 8);
		put(f, p->name, length);
		put(f, &dims, 4);
		put(f, p->ne, dims * sizeof(p->ne[0]));
		put(f, &f32, 4);
		put(f, &offset, 8);
		offset += (p->bytes + 31) / 32 * 32;
	}
	pad(f);
	for (size_t i = 0; i < n; i++) {
		put(f, f->pieces[i].data, f->pieces[i].bytes);
		pad(f);
	}
	assert_int_equal(gguf_open_memory(f->bytes, f->n, &gguf, err), 0);
	return model_load_gguf(&gguf, model, err);
}

/* Logits of N tokens; takes the model. */
static void logits_of(struct model *model, float *out)
{
	struct rig rig = {.model = model};
	struct kv_seq seq;
	struct error err;
	int32_t ids[N];
	struct kv_layout layout = kv_layout_of(model, KV_F32, 2);
	rig_backend(&rig, kernels_select(NULL, &err), 1);
	rig_kv(&rig, &layout, true);
	assert_int_equal(experts_mapped_init(&rig.experts, model, rig.backend, &err), 0);
	assert_int_equal(forward_create(model, rig.backend, &rig.kv, &rig.experts.source,
				 &rig_limits(RIG_CONTEXT), &rig.forward, &err),
		0);
	rig.n_vocab = model->config.n_vocab;
	rig_ids(9, 380, ids, N);
	assert_int_equal(kv_seq_init(&seq, 1, N), 0);
	rig_chain(&rig, &seq, ids, N, 5, out);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

static void expect_same_logits(struct file *f)
{
	struct model *model;
	struct error err = {""};
	if (model_load(GOLDEN, &model, &err) < 0)
		fail_msg("%s", err.text);
	size_t bytes = (size_t)N * model->config.n_vocab * sizeof(float);
	float *expected = malloc(bytes), *got = malloc(bytes);
	assert_true(expected && got);
	logits_of(model, expected);
	if (file_load(f, &model, &err) < 0)
		fail_msg("%s", err.text);
	logits_of(model, got);
	assert_memory_equal(got, expected, bytes);
	free(expected);
	free(got);
}

/* The golden model has 2 key heads of 16, 4 value heads of 16, and 64 inputs. */
static void matrices_mixed_by_key_head_give_the_same_bytes(void **state)
{
	enum { ROW = 64, HEAD = 16 * ROW };
	static float mixed[3][12 * HEAD];
	struct file f;
	(void)state;
	file_open(&f);
	for (int layer = 0; layer < 3; layer++) {
		char name[64];
		float *to = mixed[layer];
		snprintf(name, sizeof(name), "blk.%d.attn_gate.weight", layer);
		struct piece *gate = piece(&f, name);
		const float *z = gate->data;
		snprintf(name, sizeof(name), "blk.%d.attn_qkv.weight", layer);
		struct piece *qkv = piece(&f, name);
		const float *q = qkv->data, *k = q + 2 * HEAD, *v = k + 2 * HEAD;
		for (int g = 0; g < 2; g++) {
			memcpy(to, q + g * HEAD, HEAD * sizeof(*to));
			memcpy(to + HEAD, k + g * HEAD, HEAD * sizeof(*to));
			memcpy(to + 2 * HEAD, v + g * 2 * HEAD, 2 * HEAD * sizeof(*to));
			memcpy(to + 4 * HEAD, z + g * 2 * HEAD, 2 * HEAD * sizeof(*to));
			to += 6 * HEAD;
		}
		snprintf(qkv->name, sizeof(qkv->name), "blk.%d.ssm_in.weight", layer);
		qkv->ne[1] = 192;
		qkv->data = mixed[layer];
		qkv->bytes = sizeof(mixed[layer]);
		*gate = f.pieces[--f.n_pieces];
	}
	expect_same_logits(&f);
	file_close(&f);
}

static void blocks_that_predict_further_tokens_are_left_out(void **state)
{
	static const float eh_proj[64 * 128] = {1};
	struct file f;
	(void)state;
	file_open(&f);
	/* One more block, like the last; which layers have attention is then said by the interval alone. */
	set_u32(&f, "qwen3next.block_count", 0, 5);
	hide_key(&f, "qwen3next.attention.recurrent_layers");
	static const char key[] = "qwen3next.nextn_predict_layers";
	const uint64_t length = sizeof(key) - 1;
	const uint32_t u32 = 4, one = 1;
	f.keys = realloc(f.keys, f.keys_bytes + 8 + length + 8);
	assert_non_null(f.keys);
	memcpy(f.keys + f.keys_bytes, &length, 8);
	memcpy(f.keys + f.keys_bytes + 8, key, length);
	memcpy(f.keys + f.keys_bytes + 8 + length, &u32, 4);
	memcpy(f.keys + f.keys_bytes + 12 + length, &one, 4);
	f.keys_bytes += 16 + length;
	f.n_keys++;
	for (size_t i = 0, n = f.n_pieces; i < n; i++) {
		if (strncmp(f.pieces[i].name, "blk.3.", 6) != 0)
			continue;
		f.pieces[f.n_pieces] = f.pieces[i];
		f.pieces[f.n_pieces++].name[4] = '4';
	}
	f.pieces[f.n_pieces++] = (struct piece){
		"blk.4.nextn.eh_proj.weight", {128, 64, 1, 1}, eh_proj, sizeof(eh_proj)};
	expect_same_logits(&f);
	file_close(&f);
}

static void keys_that_contradict_each_other_are_refused(void **state)
{
	static const struct {
		const char *key;
		size_t offset;
		uint32_t value;
		const char *named;
	} wrong[] = {
		{"qwen3next.ssm.group_count", 0, 3, "ssm.group_count"},
		{"qwen3next.ssm.group_count", 0, 0, "ssm.group_count"},
		{"qwen3next.ssm.time_step_rank", 0, 1u << 31, "ssm.time_step_rank"},
		{"qwen3next.ssm.time_step_rank", 0, 8, "tensor blk.0."},
		{"qwen3next.ssm.state_size", 0, 0, "ssm.state_size"},
		{"qwen3next.ssm.state_size", 0, 1 << 20, "ssm.state_size"},
		{"qwen3next.ssm.inner_size", 0, 62, "ssm.inner_size"},
		{"qwen3next.ssm.inner_size", 0, UINT32_MAX, "ssm.inner_size"},
		{"qwen3next.ssm.inner_size", 0, 8192, "ssm.inner_size"},
		{"qwen3next.ssm.conv_kernel", 0, 17, "ssm.conv_kernel"},
		{"qwen3next.ssm.conv_kernel", 0, 3, "ssm_conv1d"},
		/* All four layers recurrent; the attention layer too; one that is not. */
		{"qwen3next.attention.recurrent_layers", 12, 0x01010101, "recurrent_layers"},
		{"qwen3next.attention.recurrent_layers", 12, 0x01010001, "tensor blk.1."},
		{"qwen3next.attention.recurrent_layers", 0, 0, "recurrent_layers"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct file f;
		struct model *model = NULL;
		struct error err = {""};
		file_open(&f);
		set_u32(&f, wrong[i].key, wrong[i].offset, wrong[i].value);
		assert_true(file_load(&f, &model, &err) < 0);
		assert_null(model);
		if (!strstr(err.text, wrong[i].named))
			fail_msg("%s = %u: \"%s\" does not name %s", wrong[i].key, wrong[i].value,
				err.text, wrong[i].named);
		file_close(&f);
	}
}

static void tensors_and_keys_that_are_missing_are_named(void **state)
{
	static const char *const tensors[] = {"ssm_a", "ssm_conv1d.weight", "ssm_dt.bias",
		"ssm_ba.weight", "attn_qkv.weight", "attn_gate.weight", "ssm_norm.weight",
		"ssm_out.weight"};
	static const char *const keys[] = {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
		"ssm.time_step_rank", "ssm.inner_size"};
	struct file f;
	struct model *model;
	struct error err;
	(void)state;
	for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
		char name[64];
		file_open(&f);
		snprintf(name, sizeof(name), "blk.1.%s", tensors[i]);
		*piece(&f, name) = f.pieces[--f.n_pieces];
		assert_true(file_load(&f, &model, &err) < 0);
		assert_non_null(strstr(err.text, name));
		file_close(&f);
	}
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		char key[64];
		file_open(&f);
		snprintf(key, sizeof(key), "qwen3next.%s", keys[i]);
		hide_key(&f, key);
		assert_true(file_load(&f, &model, &err) < 0);
		assert_non_null(strstr(err.text, key));
		file_close(&f);
	}
}

static void weights_that_are_not_numbers_are_named(void **state)
{
	static const char *const names[] = {"blk.1.ssm_a", "blk.1.ssm_conv1d.weight",
		"blk.1.ssm_dt.bias", "blk.1.ssm_norm.weight"};
	static float copy[4096];
	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct file f;
		struct model *model;
		struct error err;
		file_open(&f);
		struct piece *p = piece(&f, names[i]);
		assert_true(p->bytes <= sizeof(copy));
		memcpy(copy, p->data, p->bytes);
		copy[p->bytes / sizeof(float) - 1] = i % 2 ? __builtin_inff() : __builtin_nanf("");
		p->data = copy;
		assert_true(file_load(&f, &model, &err) < 0);
		assert_non_null(strstr(err.text, names[i]));
		file_close(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matrices_mixed_by_key_head_give_the_same_bytes),
		cmocka_unit_test(blocks_that_predict_further_tokens_are_left_out),
		cmocka_unit_test(keys_that_contradict_each_other_are_refused),
		cmocka_unit_test(tensors_and_keys_that_are_missing_are_named),
		cmocka_unit_test(weights_that_are_not_numbers_are_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
