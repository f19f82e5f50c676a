/* Text -> ids against Hugging Face's tokenizers (tests/data/tokenizers; provenance in its README). */
#include "shared/model/tokenizer.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DATA "tests/data/tokenizers/"

struct ids {
	int32_t *ids;
	size_t n, capacity;
};

static struct tokenizer *load(const char *path)
{
	struct error err = {""};
	struct gguf *gguf;
	struct tokenizer *t;
	if (gguf_open(path, &gguf, &err) || tokenizer_load(gguf, &t, &err))
		fail_msg("%s: %s", path, err.text);
	gguf_close(&gguf);
	return t;
}

static struct ids encode(const struct tokenizer *t, const char *text, size_t bytes, bool special)
{
	struct error err = {""};
	struct ids out = {0};
	if (tokenizer_encode(t, text, bytes, special, &out.ids, &out.n, &out.capacity, &err))
		fail_msg("%s", err.text);
	return out;
}

static void assert_ids(struct ids found, const json_t *wanted, const char *text)
{
	bool equal = found.n == json_array_size(wanted);
	for (size_t i = 0; equal && i < found.n; i++)
		equal = found.ids[i] == json_integer_value(json_array_get(wanted, i));
	if (!equal) {
		for (size_t i = 0; i < found.n; i++)
			print_message("%d ", found.ids[i]);
		char *dump = json_dumps(wanted, JSON_COMPACT);
		print_message("found, %s wanted\n", dump);
		free(dump);
		fail_msg("wrong ids for \"%s\"", text);
	}
}

/* The pieces of all ids, put together, are the text again. */
static void assert_round_trip(
	const struct tokenizer *t, struct ids ids, const char *text, size_t bytes)
{
	size_t at = 0;
	for (size_t i = 0; i < ids.n; i++) {
		struct gguf_string piece = tokenizer_piece(t, ids.ids[i], true);
		assert_true(piece.bytes <= bytes - at);
		assert_memory_equal(text + at, piece.data, piece.bytes);
		at += piece.bytes;
	}
	assert_int_equal(at, bytes);
}

static const json_t *reference(const json_t *test, const char *hf, const char *llama_cpp)
{
	const json_t *ids = json_object_get(test, hf);
	return ids ? ids : json_object_get(test, llama_cpp);
}

static void check_file(const char *gguf, const char *cases)
{
	json_error_t error;
	json_t *golden = json_load_file(cases, JSON_ALLOW_NUL, &error);
	if (!golden)
		fail_msg("%s: %s", cases, error.text);
	struct tokenizer *t = load(gguf);
	size_t i;
	json_t *test;
	json_array_foreach(json_object_get(golden, "cases"), i, test)
	{
		const char *text = json_string_value(json_object_get(test, "text"));
		size_t bytes = json_string_length(json_object_get(test, "text"));
		struct ids plain = encode(t, text, bytes, false);
		assert_ids(plain, reference(test, "ids_hf", "ids"), text);
		assert_round_trip(t, plain, text, bytes);
		struct ids special = encode(t, text, bytes, true);
		const json_t *wanted = reference(test, "ids_parse_special_hf", "ids_parse_special");
		assert_ids(special, wanted ? wanted : reference(test, "ids_hf", "ids"), text);
		assert_round_trip(t, special, text, bytes);
		free(plain.ids);
		free(special.ids);
	}
	assert_true(i > 100);
	const json_t *prefix = json_object_get(golden, "add_special_prefix");
	assert_int_equal(tokenizer_bos(t),
		json_array_size(prefix) ? json_integer_value(json_array_get(prefix, 0)) : -1);
	json_array_foreach(json_object_get(golden, "invalid_utf8"), i, test)
	{
		const char *hex = json_string_value(json_object_get(test, "hex"));
		char bytes[64];
		size_t n = strlen(hex) / 2;
		for (size_t b = 0; b < n; b++) {
			unsigned value;
			assert_int_equal(sscanf(hex + 2 * b, "%2x", &value), 1);
			bytes[b] = (char)value;
		}
		struct ids ids = encode(t, bytes, n, false);
		assert_round_trip(t, ids, bytes, n);
		free(ids.ids);
	}
	tokenizer_free(&t);
	json_decref(golden);
}

static void test_deepseek_v3_equals_reference(void **state)
{
	(void)state;
	check_file(DATA "tiny-deepseek-v3.gguf", DATA "tiny-deepseek-v3.json");
}

static void test_gpt_2_equals_reference(void **state)
{
	(void)state;
	check_file(DATA "tiny-gpt-2.gguf", DATA "tiny-gpt-2.json");
}

static void test_gpt_4o_equals_reference(void **state)
{
	(void)state;
	check_file(DATA "tiny-gpt-4o.gguf", DATA "tiny-gpt-4o.json");
}

static void test_llama_bpe_equals_reference(void **state)
{
	(void)state;
	check_file(DATA "tiny-llama-bpe.gguf", DATA "tiny-llama-bpe.json");
}

static void test_qwen2_equals_reference(void **state)
{
	(void)state;
	check_file(DATA "tiny-qwen2.gguf", DATA "tiny-qwen2.json");
}

static void test_smollm_equals_reference(void **state)
{
	(void)state;
	check_file(DATA "tiny-smollm.gguf", DATA "tiny-smollm.json");
}

static void test_gpt_2_vocabulary_equals_reference(void **state)
{
	(void)state;
	const char *golden = getenv("OUTRIDER_GOLDEN");
	char gguf[512], cases[512];
	golden = golden ? golden : "../shared/golden";
	snprintf(gguf, sizeof(gguf), "%s/tokenizers/ggml-vocab-gpt-2.gguf", golden);
	snprintf(cases, sizeof(cases), "%s/tokenizers/vocab-gpt-2.json", golden);
	if (access(gguf, R_OK) || access(cases, R_OK)) {
		print_message(
			"skipped: %s is not there (OUTRIDER_GOLDEN names the golden data)\n", gguf);
		skip();
	}
	check_file(gguf, cases);
}

static void test_demo_model_ends_at_both_of_its_end_tokens(void **state)
{
	(void)state;
	struct tokenizer *t = load("models/outrider-demo-moe-q8_0.gguf");
	assert_true(tokenizer_is_eog(t, 0)); /* <|endoftext|> */
	assert_false(tokenizer_is_eog(t, 1));
	assert_true(tokenizer_is_eog(t, 2)); /* <|im_end|> */
	assert_false(tokenizer_is_eog(t, 3));
	assert_false(tokenizer_is_eog(t, -1));
	assert_false(tokenizer_is_eog(t, 4096));
	assert_int_equal(tokenizer_bos(t), -1);
	assert_int_equal(tokenizer_n_vocab(t), 4096);
	tokenizer_free(&t);
}

static void test_user_text_never_yields_control_tokens(void **state)
{
	(void)state;
	struct tokenizer *t = load("models/outrider-demo-moe-q8_0.gguf");
	const char *text = "<|im_start|>system\n<|im_end|><|endoftext|>";
	struct ids plain = encode(t, text, strlen(text), false);
	for (size_t i = 0; i < plain.n; i++)
		assert_true(plain.ids[i] > 2);
	struct ids special = encode(t, text, strlen(text), true);
	assert_int_equal(special.ids[0], 1);
	assert_int_equal(special.ids[special.n - 2], 2);
	assert_int_equal(special.ids[special.n - 1], 0);
	free(plain.ids);
	free(special.ids);
	tokenizer_free(&t);
}

static void test_control_tokens_have_no_text_unless_asked(void **state)
{
	(void)state;
	struct tokenizer *t = load("models/outrider-demo-moe-q8_0.gguf");
	assert_int_equal(tokenizer_piece(t, 2, false).bytes, 0);
	assert_int_equal(tokenizer_piece(t, 2, true).bytes, 10);
	assert_memory_equal(tokenizer_piece(t, 2, true).data, "<|im_end|>", 10);
	assert_int_equal(tokenizer_piece(t, -5, true).bytes, 0);
	assert_int_equal(tokenizer_piece(t, 1 << 20, true).bytes, 0);
	tokenizer_free(&t);
}

static void test_encode_appends_and_keeps_what_was_there(void **state)
{
	(void)state;
	struct tokenizer *t = load(DATA "tiny-qwen2.gguf");
	struct error err = {""};
	struct ids ids = encode(t, "one", 3, false), both = encode(t, "one", 3, false);
	size_t first = ids.n;
	assert_int_equal(
		tokenizer_encode(t, "two", 3, false, &both.ids, &both.n, &both.capacity, &err), 0);
	struct ids second = encode(t, "two", 3, false);
	assert_int_equal(both.n, first + second.n);
	assert_memory_equal(both.ids, ids.ids, first * sizeof(int32_t));
	assert_memory_equal(both.ids + first, second.ids, second.n * sizeof(int32_t));
	free(ids.ids);
	free(both.ids);
	free(second.ids);
	tokenizer_free(&t);
}

/* One word of a megabyte, then a megabyte of spaces, then of digits: a quadratic step would take hours. */
static void test_a_megabyte_of_one_kind_is_not_quadratic(void **state)
{
	static const char kinds[] = "a \n0<'\xff";
	(void)state;
	const size_t bytes = 1 << 20;
	char *text = malloc(bytes);
	assert_non_null(text);
	static const char *const files[] = {
		DATA "tiny-qwen2.gguf", DATA "tiny-gpt-4o.gguf", DATA "tiny-deepseek-v3.gguf"};
	alarm(60);
	for (size_t f = 0; f < 3; f++) {
		struct tokenizer *t = load(files[f]);
		for (const char *kind = kinds; *kind; kind++) {
			memset(text, *kind, bytes);
			struct ids ids = encode(t, text, bytes, false);
			assert_round_trip(t, ids, text, bytes);
			free(ids.ids);
		}
		tokenizer_free(&t);
	}
	alarm(0);
	free(text);
}

static void test_fingerprints_tell_vocabularies_apart(void **state)
{
	(void)state;
	struct tokenizer *moe = load("models/outrider-demo-moe-q8_0.gguf");
	struct tokenizer *draft = load("models/outrider-demo-draft-small-q8_0.gguf");
	struct tokenizer *other = load(DATA "tiny-qwen2.gguf");
	assert_true(tokenizer_fingerprint(moe) == tokenizer_fingerprint(draft));
	assert_true(tokenizer_fingerprint(moe) != tokenizer_fingerprint(other));
	tokenizer_free(&moe);
	tokenizer_free(&draft);
	tokenizer_free(&other);
}

static void test_sentencepiece_is_refused_by_name(void **state)
{
	(void)state;
	struct error err = {""};
	struct gguf *gguf;
	struct tokenizer *t;
	assert_int_equal(gguf_open(DATA "tiny-spm.gguf", &gguf, &err), 0);
	assert_int_equal(tokenizer_load(gguf, &t, &err), -ENOTSUP);
	assert_null(t);
	assert_non_null(strstr(err.text, "tokenizer.ggml.model"));
	assert_non_null(strstr(err.text, "gpt2"));
	gguf_close(&gguf);
}

static void test_utf8_waits_for_the_rest_of_a_character(void **state)
{
	(void)state;
	assert_int_equal(tokenizer_utf8_complete("", 0), 0);
	assert_int_equal(tokenizer_utf8_complete("abc", 3), 3);
	assert_int_equal(tokenizer_utf8_complete("a\xc3", 2), 1);
	assert_int_equal(tokenizer_utf8_complete("a\xc3\xa9", 3), 3);
	assert_int_equal(tokenizer_utf8_complete("\xe2\x82", 2), 0);
	assert_int_equal(tokenizer_utf8_complete("x\xf0\x9f\x98", 4), 1);
	assert_int_equal(tokenizer_utf8_complete("\xf0\x9f\x98\x80", 4), 4);
	/* What can never become a character is not waited for. */
	assert_int_equal(tokenizer_utf8_complete("a\xff", 2), 2);
	assert_int_equal(tokenizer_utf8_complete("\x80\x80\x80\x80", 4), 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_deepseek_v3_equals_reference),
		cmocka_unit_test(test_gpt_2_equals_reference),
		cmocka_unit_test(test_gpt_4o_equals_reference),
		cmocka_unit_test(test_llama_bpe_equals_reference),
		cmocka_unit_test(test_qwen2_equals_reference),
		cmocka_unit_test(test_smollm_equals_reference),
		cmocka_unit_test(test_gpt_2_vocabulary_equals_reference),
		cmocka_unit_test(test_demo_model_ends_at_both_of_its_end_tokens),
		cmocka_unit_test(test_user_text_never_yields_control_tokens),
		cmocka_unit_test(test_control_tokens_have_no_text_unless_asked),
		cmocka_unit_test(test_encode_appends_and_keeps_what_was_there),
		cmocka_unit_test(test_a_megabyte_of_one_kind_is_not_quadratic),
		cmocka_unit_test(test_fingerprints_tell_vocabularies_apart),
		cmocka_unit_test(test_sentencepiece_is_refused_by_name),
		cmocka_unit_test(test_utf8_waits_for_the_rest_of_a_character),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
