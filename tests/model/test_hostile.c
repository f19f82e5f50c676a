/* Files that are wrong on purpose: each is refused with the right name in the message, none crashes. */
#include "shared/model/arch/model.h"
#include "shared/model/text/tokenizer.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DATA "tests/data/hostile/"

struct bytes {
	unsigned char
		*data; /* of exactly n bytes, so that AddressSanitizer sees a read behind the end */
	size_t n;
};

static struct bytes llama, qwen3moe;

static int read_base(const char *path, struct bytes *out)
{
	FILE *f = fopen(path, "rb");
	if (!f)
		return -1;
	fseek(f, 0, SEEK_END);
	out->n = (size_t)ftell(f);
	rewind(f);
	out->data = malloc(out->n);
	size_t got = out->data ? fread(out->data, 1, out->n, f) : 0;
	fclose(f);
	return got == out->n ? 0 : -1;
}

static int setup(void **state)
{
	(void)state;
	return read_base(DATA "llama.gguf", &llama) || read_base(DATA "qwen3moe.gguf", &qwen3moe)
		       ? -1
		       : 0;
}

static int teardown(void **state)
{
	(void)state;
	free(llama.data);
	free(qwen3moe.data);
	return 0;
}

/* Everything a file goes through before its first token: 0, or the first step's refusal. */
static int load(struct bytes file, struct error *err)
{
	struct gguf *gguf = NULL;
	struct model *model = NULL;
	struct tokenizer *tokenizer = NULL;
	int rc = gguf_open_memory(file.data, file.n, &gguf, err);
	if (!rc)
		rc = model_load_gguf(&gguf, &model, err);
	if (!rc)
		rc = tokenizer_load(model->gguf, &tokenizer, err);
	tokenizer_free(&tokenizer);
	model_free(&model);
	return rc;
}

static struct bytes assemble(const json_t *parts, struct bytes base)
{
	struct bytes out = {NULL, 0};
	size_t at = 0;
	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *part = json_array_get(parts, i);
		out.n += json_is_string(part) ? json_string_length(part) / 2
					      : (size_t)json_integer_value(json_array_get(part, 1));
	}
	out.data = malloc(out.n);
	assert_non_null(out.data);
	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *part = json_array_get(parts, i);
		if (json_is_string(part)) {
			const char *hex = json_string_value(part);
			for (size_t b = 0; b < json_string_length(part) / 2; b++) {
				unsigned value;
				assert_int_equal(sscanf(hex + 2 * b, "%2x", &value), 1);
				out.data[at++] = (unsigned char)value;
			}
			continue;
		}
		size_t from = (size_t)json_integer_value(json_array_get(part, 0));
		size_t n = (size_t)json_integer_value(json_array_get(part, 1));
		assert_true(from + n <= base.n);
		memcpy(out.data + at, base.data + from, n);
		at += n;
	}
	return out;
}

static bool names_one(const char *message, const json_t *names)
{
	for (size_t i = 0; i < json_array_size(names); i++) {
		if (strstr(message, json_string_value(json_array_get(names, i))))
			return true;
	}
	return false;
}

static void test_golden_cases_are_refused_by_name_or_load(void **state)
{
	(void)state;
	json_error_t error;
	json_t *json = json_load_file(DATA "cases.json", 0, &error), *test;
	size_t i;
	if (!json)
		fail_msg("%s", error.text);
	json_array_foreach(json_object_get(json, "cases"), i, test)
	{
		const char *file = json_string_value(json_object_get(test, "file"));
		const char *expect = json_string_value(json_object_get(test, "expect"));
		bool is_llama =
			strcmp(json_string_value(json_object_get(test, "base")), "llama") == 0;
		struct bytes bytes =
			assemble(json_object_get(test, "parts"), is_llama ? llama : qwen3moe);
		struct error err = {""};
		int rc = load(bytes, &err);
		free(bytes.data);
		if (strcmp(expect, "reject") == 0 && rc == 0)
			fail_msg("%s was accepted", file);
		if (strcmp(expect, "accept") == 0 && rc != 0)
			fail_msg("%s was refused: %s", file, err.text);
		if (rc && !names_one(err.text, json_object_get(test, "message_should_name")))
			fail_msg("%s: the message names nothing: %s", file, err.text);
	}
	assert_true(i >= 50);
	json_decref(json);
}

static unsigned char *find(struct bytes in, const char *wanted)
{
	unsigned char *at = memmem(in.data, in.n, wanted, strlen(wanted));
	if (!at)
		fail_msg("%s is not in the base file", wanted);
	return at;
}

static struct bytes copy(struct bytes base)
{
	struct bytes out = {malloc(base.n), base.n};
	assert_non_null(out.data);
	memcpy(out.data, base.data, base.n);
	return out;
}

static void assert_refused(struct bytes file, const char *name, const char *what)
{
	struct error err = {""};
	if (load(file, &err) == 0)
		fail_msg("%s: accepted", what);
	if (!strstr(err.text, name))
		fail_msg("%s: the message does not name %s: %s", what, name, err.text);
}

/* Values of 4 bytes (u32 or f32 bits) behind a key of a valid file. */
static void test_impossible_hyperparameters_are_refused_by_key(void **state)
{
	(void)state;
	static const struct {
		bool moe;
		const char *key;
		uint32_t bits;
	} changes[] = {
		{false, "llama.block_count", 257},
		{false, "llama.block_count", UINT32_MAX},
		{false, "llama.context_length", (1 << 20) + 1},
		{false, "llama.embedding_length", 0},
		{false, "llama.embedding_length", 65537},
		{false, "llama.feed_forward_length", 0},
		{false, "llama.feed_forward_length", UINT32_MAX},
		{false, "llama.attention.head_count", 1025},
		{false, "llama.attention.head_count_kv", 0},
		{false, "llama.attention.head_count_kv", 4},
		{false, "llama.attention.key_length", 0},
		{false, "llama.attention.key_length", 1025},
		{false, "llama.attention.value_length", 8},
		{false, "llama.rope.dimension_count", 18},
		{false, "llama.rope.dimension_count", 0},
		{false, "llama.rope.freq_base", 0x7fc00000}, /* NaN */
		{false, "llama.rope.freq_base", 0x7f800000}, /* infinity */
		{false, "llama.rope.freq_base", 0xc61c4000}, /* -10000 */
		{false, "layer_norm_rms_epsilon", 0x7f800000},
		{false, "layer_norm_rms_epsilon", 0xb727c5ac}, /* -1e-5 */
		{false, "layer_norm_rms_epsilon", 0},
		{false, "general.alignment", 3},
		{false, "general.alignment", 1u << 31},
		{false, "tokenizer.ggml.eos_token_id", UINT32_MAX},
		{true, "qwen3moe.expert_count", 0},
		{true, "qwen3moe.expert_count", 1025},
		{true, "qwen3moe.expert_count", UINT32_MAX},
		{true, "qwen3moe.expert_used_count", 0},
		{true, "qwen3moe.expert_used_count", UINT32_MAX},
		{true, "qwen3moe.expert_feed_forward_length", 0},
	};
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct bytes file = copy(changes[i].moe ? qwen3moe : llama);
		memcpy(find(file, changes[i].key) + strlen(changes[i].key) + 4, &changes[i].bits,
			4);
		assert_refused(file, changes[i].key, changes[i].key);
		free(file.data);
	}
}

/* Shapes the keys no longer describe: the message names the tensor. */
static void test_shapes_that_disagree_with_keys_name_the_tensor(void **state)
{
	(void)state;
	static const struct {
		bool moe;
		const char *key;
		uint32_t value;
		const char *tensor;
	} changes[] = {
		{false, "llama.embedding_length", 64, "token_embd.weight"},
		{false, "llama.feed_forward_length", 64, "blk.0.ffn_gate.weight"},
		{false, "llama.attention.head_count", 4, "blk.0.attn_q.weight"},
		{false, "llama.attention.head_count_kv", 2, "blk.0.attn_k.weight"},
		{false, "llama.block_count", 3, "blk.2.attn_norm.weight"},
		{false, "llama.block_count", 1, "blk.1."},
		{true, "qwen3moe.expert_feed_forward_length", 64, "blk.0.ffn_gate_exps.weight"},
		{true, "qwen3moe.expert_count", 3, "blk.0.ffn_gate_inp.weight"},
	};
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct bytes file = copy(changes[i].moe ? qwen3moe : llama);
		memcpy(find(file, changes[i].key) + strlen(changes[i].key) + 4, &changes[i].value,
			4);
		assert_refused(file, changes[i].tensor, changes[i].key);
		free(file.data);
	}
}

/* A tensor's record: name, u32 n_dims, u64 ne[], u32 type, u64 offset. */
static void test_tensor_records_that_lie_are_refused_by_tensor(void **state)
{
	(void)state;
	static const char name[] = "blk.0.attn_q.weight", norm[] = "blk.1.attn_norm.weight";
	static const struct {
		const char *tensor;
		size_t at, n;
		uint64_t value;
	} changes[] = {
		{name, 0, 4, 5}, /* dimensions */
		{name, 0, 4, UINT32_MAX},
		{name, 4, 8, 0}, /* ne[0] */
		{name, 4, 8, INT64_MAX},
		{name, 12, 8, 0}, /* ne[1] */
		{name, 12, 8, UINT64_MAX},
		{name, 12, 8, 1ull << 57},
		{name, 20, 4, 12}, /* type: Q4_K */
		{name, 20, 4, 24}, /* type: I8 */
		{name, 20, 4, UINT32_MAX},
		{name, 24, 8, UINT64_MAX}, /* offset */
		{name, 24, 8, UINT64_MAX - 31},
		{name, 24, 8, 0}, /* on another tensor */
		{name, 24, 8, 33}, /* not aligned */
		{norm, 12, 4, 24}, /* type of a norm: I8 */
		{norm, 4, 8, 31},
	};
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct bytes file = copy(llama);
		const char *tensor = changes[i].tensor;
		memcpy(find(file, tensor) + strlen(tensor) + changes[i].at, &changes[i].value,
			changes[i].n);
		char what[64];
		snprintf(what, sizeof(what), "%s change %zu", tensor, i);
		assert_refused(file, tensor, what);
		free(file.data);
	}
}

static void test_a_norm_that_is_not_finite_is_refused(void **state)
{
	(void)state;
	struct error err = {""};
	struct gguf *gguf;
	assert_int_equal(gguf_open_memory(llama.data, llama.n, &gguf, &err), 0);
	size_t offset = gguf_tensor_find(gguf, "blk.1.ffn_norm.weight")->offset;
	gguf_close(&gguf);
	static const uint32_t bits[] = {0x7fc00000, 0x7f800000, 0xff800000};
	for (size_t i = 0; i < 3; i++) {
		struct bytes file = copy(llama);
		memcpy(file.data + offset + 4 * 7, &bits[i], 4);
		assert_refused(file, "blk.1.ffn_norm.weight", "norm");
		free(file.data);
	}
}

/* A weight or a scale that is not finite, in every matrix's type of these files: named with its row. */
static void test_a_weight_or_scale_that_is_not_finite_is_refused(void **state)
{
	(void)state;
	static const struct {
		bool moe;
		const char *tensor;
		size_t at, n;
		uint32_t bits;
		const char *says;
	} changes[] = {
		{false, "blk.1.ffn_down.weight", 3 * 34, 2, 0x7e00, "row 3 is nan"},
		{false, "token_embd.weight", 261 * 34, 2, 0xfc00, "row 261 is inf"},
		{true, "blk.0.ffn_gate_inp.weight", 4 * (32 + 5), 4, 0x7f800000,
			"column 5 of row 1 is inf"},
		{true, "blk.1.ffn_up_exps.weight", 0, 0, 0x7e00, "row 100 is nan"},
	};
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct bytes file = copy(changes[i].moe ? qwen3moe : llama);
		struct error err = {""};
		struct gguf *gguf;
		assert_int_equal(gguf_open_memory(file.data, file.n, &gguf, &err), 0);
		const struct gguf_tensor *t = gguf_tensor_find(gguf, changes[i].tensor);
		size_t at = changes[i].at, n = changes[i].n;
		if (n == 0) { /* whatever its type: the scale or the first weight of row 100 */
			at = 100 * (t->bytes / (t->ne[1] * t->ne[2]));
			n = 2;
			assert_int_equal(t->type, 8);
		}
		at += t->offset;
		gguf_close(&gguf);
		memcpy(file.data + at, &changes[i].bits, n);
		assert_refused(file, changes[i].tensor, changes[i].tensor);
		assert_refused(file, changes[i].says, changes[i].tensor);
		free(file.data);
	}
}

/* Sizes that would wrap or be cut in another width: published holes of other readers, by what they were. */
static void test_sizes_that_wrap_elsewhere_are_refused(void **state)
{
	(void)state;
	static const char q[] = "blk.0.attn_q.weight", norm[] = "blk.1.attn_norm.weight";
	static const struct {
		const char *why, *tensor;
		uint64_t ne[2];
		uint32_t type;
		uint64_t offset;
	} cases[] = {
		{"CVE-2026-33298: elements fit 63 bits, bytes do not", q, {1ull << 61, 2}, 0, 0},
		{"CVE-2026-33298: and of a type with blocks", q, {1ull << 58, 32}, 8, 0},
		{"CVE-2025-53630: with one more the sum of sizes wraps", q, {(1ull << 61) - 8, 1},
			0, 0},
		{"CVE-2026-27940: and with the records' own", q, {0x1fffffffffffff00, 1}, 0, 0},
		{"padding to the alignment wraps to 0", q, {INT64_MAX / 4, 1}, 0, 0},
		{"CVE-2026-7482: data behind the file's end", q, {32, 1u << 20}, 8, 0},
		{"CVE-2026-7482: an offset behind the file's end", q, {32, 32}, 8, 1ull << 40},
		{"CVE-2026-53923: rows that are 32 in 32 bits", q, {32, (1ull << 32) + 32}, 8, 0},
		{"CVE-2026-53923: columns that are 32 in 32 bits", q, {(1ull << 32) + 32, 32}, 8,
			0},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bytes file = copy(llama);
		unsigned char *at = find(file, q) + strlen(q) + 4;
		memcpy(at, cases[i].ne, 16);
		memcpy(at + 16, &cases[i].type, 4);
		memcpy(at + 20, &cases[i].offset, 8);
		assert_refused(file, cases[i].tensor, cases[i].why);
		free(file.data);
	}
	/* A vector of 2^32 + 32 elements. */
	struct bytes file = copy(llama);
	uint64_t ne = (1ull << 32) + 32;
	memcpy(find(file, norm) + strlen(norm) + 4, &ne, 8);
	assert_refused(file, norm, "CVE-2026-53923: a vector");
	free(file.data);
}

/* CVE-2024-32878: reading ends inside a key whose pointers were never set, and cleaning up frees them. Every cut in the
 * keys, here in order, under a sanitizer. CVE-2025-49847, a token longer than a 32-bit length can say, and
 * CVE-2025-52566, more tokens than an int counts, need files of gigabytes: tests/integration/huge-files.t. */
static void test_cuts_inside_keys_leave_nothing_behind(void **state)
{
	(void)state;
	size_t end = (size_t)(find(llama, "token_embd.weight") - llama.data);
	for (size_t n = 24; n < end; n++) {
		struct bytes file = {malloc(n), n};
		struct error err = {""};
		assert_non_null(file.data);
		memcpy(file.data, llama.data, n);
		struct gguf *gguf = (struct gguf *)(uintptr_t)1;
		assert_true(gguf_open_memory(file.data, n, &gguf, &err) < 0);
		assert_null(gguf);
		free(file.data);
	}
}

struct found {
	int n;
	char text[8][512];
};

static void keep(void *arg, const char *problem)
{
	struct found *found = arg;
	if (found->n < 8)
		snprintf(found->text[found->n], sizeof(found->text[0]), "%s", problem);
	found->n++;
}

/* One file, five things wrong with it; loading says the first, checking all. */
static void test_checking_goes_on_past_every_problem(void **state)
{
	(void)state;
	static const char *const says[] = {"blk.0.attn_q.weight: type 99", "blk.0.ffn_up.weight",
		"blk.0.attn_q.weight is missing", "blk.1.attn_k.weight has shape",
		"blk.1.ffn_norm.weight: element 2"};
	struct bytes file = copy(llama);
	struct error err = {""};
	struct gguf *gguf;
	struct model *model;
	uint32_t type = 99, nan = 0x7fc00000;
	uint64_t offset = 33, rows = 8;
	assert_int_equal(gguf_open_memory(file.data, file.n, &gguf, &err), 0);
	memcpy(file.data + gguf_tensor_find(gguf, "blk.1.ffn_norm.weight")->offset + 8, &nan, 4);
	gguf_close(&gguf);
	memcpy(find(file, "blk.0.attn_q.weight") + 19 + 4 + 16, &type, 4);
	memcpy(find(file, "blk.0.ffn_up.weight") + 19 + 4 + 16 + 4, &offset, 8);
	memcpy(find(file, "blk.1.attn_k.weight") + 19 + 4 + 8, &rows, 8);
	struct found found = {0};
	assert_int_equal(gguf_open_memory_checked(file.data, file.n, keep, &found, &gguf, &err), 0);
	assert_int_equal(found.n, 2);
	assert_int_equal(gguf_n_tensors(gguf), 19);
	assert_int_equal(model_load_gguf(&gguf, &model, &err), -ECANCELED);
	/* blk.0.ffn_up.weight, left out, is missing too. */
	assert_int_equal(found.n, 6);
	for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++) {
		bool said = false;
		for (int f = 0; f < found.n; f++)
			said = said || strstr(found.text[f], says[i]);
		if (!said)
			fail_msg("not said: %s", says[i]);
	}
	free(file.data);
	/* A file without problems is checked as it is loaded. */
	found.n = 0;
	assert_int_equal(
		gguf_open_memory_checked(llama.data, llama.n, keep, &found, &gguf, &err), 0);
	assert_int_equal(model_load_gguf(&gguf, &model, &err), 0);
	assert_int_equal(found.n, 0);
	model_free(&model);
}

static void test_every_truncation_is_refused(void **state)
{
	(void)state;
	const struct bytes *bases[] = {&llama, &qwen3moe};
	for (size_t b = 0; b < 2; b++) {
		size_t step = 1;
		for (size_t n = 0; n + 32 < bases[b]->n; n += step) {
			/* Every cut in the metadata, then in steps. */
			struct bytes file = {malloc(n ? n : 1), n};
			struct error err = {""};
			assert_non_null(file.data);
			memcpy(file.data, bases[b]->data, n);
			if (load(file, &err) == 0)
				fail_msg("a file cut at %zu was accepted", n);
			assert_true(err.text[0] != '\0');
			free(file.data);
			step = n < 6000 ? 3 : 501;
		}
	}
}

/* Single bytes of the metadata replaced: refused or not, but never a crash or a hang, and always with a message. */
static void test_corrupt_bytes_never_crash(void **state)
{
	(void)state;
	static const unsigned char values[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
	const struct bytes *bases[] = {&llama, &qwen3moe};
	for (size_t b = 0; b < 2; b++) {
		struct bytes file = copy(*bases[b]);
		for (size_t at = 0; at < 7000; at += 3) {
			unsigned char was = file.data[at];
			struct error err = {""};
			file.data[at] = values[at / 3 % sizeof(values)];
			if (load(file, &err))
				assert_true(err.text[0] != '\0' && !strchr(err.text, '\n'));
			file.data[at] = was;
		}
		free(file.data);
	}
}

/* The same for keys and tensors that only some architectures have. */
static void test_corrupt_bytes_of_other_architectures_never_crash(void **state)
{
	(void)state;
	static const char *const names[] = {"olmoe", "qwen2moe", "phimoe", "gpt-oss", "glm4moe"};
	for (size_t m = 0; m < sizeof(names) / sizeof(names[0]); m++) {
		static const unsigned char values[] = {0xff, 0x00, 0x01, 0x7f, 0x80};
		char path[128];
		struct bytes file;
		struct error err = {""};
		struct gguf *gguf;
		snprintf(path, sizeof(path), "tests/data/golden/models/%s.f32.gguf", names[m]);
		assert_int_equal(read_base(path, &file), 0);
		assert_int_equal(gguf_open_memory(file.data, file.n, &gguf, &err), 0);
		size_t end = file.n;
		for (size_t i = 0; i < gguf_n_tensors(gguf); i++)
			if (gguf_tensor_at(gguf, i)->offset < end)
				end = gguf_tensor_at(gguf, i)->offset;
		gguf_close(&gguf);
		for (size_t at = 0; at < end; at += 11) {
			unsigned char was = file.data[at];
			err.text[0] = '\0';
			file.data[at] = values[at / 11 % sizeof(values)];
			if (load(file, &err))
				assert_true(err.text[0] != '\0' && !strchr(err.text, '\n'));
			file.data[at] = was;
		}
		free(file.data);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden_cases_are_refused_by_name_or_load),
		cmocka_unit_test(test_impossible_hyperparameters_are_refused_by_key),
		cmocka_unit_test(test_shapes_that_disagree_with_keys_name_the_tensor),
		cmocka_unit_test(test_tensor_records_that_lie_are_refused_by_tensor),
		cmocka_unit_test(test_a_norm_that_is_not_finite_is_refused),
		cmocka_unit_test(test_a_weight_or_scale_that_is_not_finite_is_refused),
		cmocka_unit_test(test_sizes_that_wrap_elsewhere_are_refused),
		cmocka_unit_test(test_cuts_inside_keys_leave_nothing_behind),
		cmocka_unit_test(test_checking_goes_on_past_every_problem),
		cmocka_unit_test(test_every_truncation_is_refused),
		cmocka_unit_test(test_corrupt_bytes_never_crash),
		cmocka_unit_test(test_corrupt_bytes_of_other_architectures_never_crash),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
