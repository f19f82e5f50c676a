/* Text -> ids against Hugging Face's tokenizers and SentencePiece (tests/data/tokenizers; provenance in its README). */
#include "shared/model/text/tokenizer.h"

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

/* SentencePiece's text without special tokens: a space comes first, and the mark U+2581 is read as one. */
static void assert_spm_round_trip(
	const struct tokenizer *t, struct ids ids, const char *text, size_t bytes)
{
	char *plain = malloc(bytes + 1);
	size_t n = 0;
	assert_non_null(plain);
	if (bytes && tokenizer_adds_space(t))
		plain[n++] = ' ';
	for (size_t at = 0; at < bytes; at++) {
		bool mark = bytes - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0;
		plain[n++] = mark ? ' ' : text[at];
		at += mark ? 2 : 0;
	}
	assert_round_trip(t, ids, plain, n);
	free(plain);
}

/* Bytes that are not UTF-8: each is a token, or U+FFFD where the vocabulary lacks it. */
static void assert_bytes_pass(const struct tokenizer *t, const char *bytes, size_t n, bool spm)
{
	char expected[256];
	size_t at = 0;
	struct ids ids = encode(t, bytes, n, false);
	for (size_t i = 0; i < n; i++) {
		struct ids one = encode(t, bytes + i, 1, false);
		struct gguf_string last = tokenizer_piece(t, one.ids[one.n - 1], true);
		bool kept = last.bytes && last.data[last.bytes - 1] == bytes[i];
		memcpy(expected + at, kept ? bytes + i : "\xef\xbf\xbd", kept ? 1 : 3);
		at += kept ? 1 : 3;
		free(one.ids);
	}
	if (spm)
		assert_spm_round_trip(t, ids, expected, at);
	else
		assert_round_trip(t, ids, expected, at);
	free(ids.ids);
}

/* The library that disagrees with llama.cpp is right. */
static const json_t *reference(const json_t *test, const char *name)
{
	static const char *const libraries[] = {"_hf", "_sentencepiece", ""};
	for (int i = 0; i < 3; i++) {
		char key[64];
		snprintf(key, sizeof(key), "%s%s", name, libraries[i]);
		const json_t *ids = json_object_get(test, key);
		if (ids)
			return ids;
	}
	return NULL;
}

static struct gguf_string text_of(const json_t *test, const char *key)
{
	const json_t *text = json_object_get(test, key);
	return (struct gguf_string){json_string_value(text), json_string_length(text)};
}

static void check_case(const struct tokenizer *t, const json_t *test, bool spm)
{
	struct gguf_string text = text_of(test, "text"), normal = text_of(test, "normalized");
	struct ids plain = encode(t, text.data, text.bytes, false);
	assert_ids(plain, reference(test, "ids"), text.data);
	/* What the ids stand for, where the tokenizer normalises. */
	normal = normal.data ? normal : text;
	if (!spm)
		assert_round_trip(t, plain, normal.data, normal.bytes);
	else if (!strstr(text.data, "<think>"))
		assert_spm_round_trip(t, plain, text.data, text.bytes);
	struct ids special = encode(t, text.data, text.bytes, true);
	const json_t *wanted = reference(test, "ids_parse_special");
	/* Where only the plain ids were corrected, llama.cpp's are those of both ways; but it does not normalise. */
	if (!wanted)
		wanted = normal.data == text.data ? json_object_get(test, "ids")
						  : reference(test, "ids");
	assert_ids(special, wanted, text.data);
	if (!spm)
		assert_round_trip(t, special, normal.data, normal.bytes);
	free(plain.ids);
	free(special.ids);
}

static void check_file(const char *gguf, const char *cases)
{
	json_error_t error;
	json_t *golden = json_load_file(cases, JSON_ALLOW_NUL, &error);
	if (!golden)
		fail_msg("%s: %s", cases, error.text);
	struct tokenizer *t = load(gguf);
	bool spm = strcmp(json_string_value(json_object_get(golden, "reference")),
			   "sentencepiece") == 0;
	size_t i;
	json_t *test;
	json_array_foreach(json_object_get(golden, "cases"), i, test)
	{
		check_case(t, test, spm);
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
		assert_bytes_pass(t, bytes, n, spm);
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

static void test_sentencepiece_equals_reference(void **state)
{
	(void)state;
	check_file(DATA "tiny-spm.gguf", DATA "tiny-spm.json");
}

/* Vocabularies of released models are not in this repository. */
static void check_released(const char *model, const char *cases)
{
	const char *golden = getenv("OUTRIDER_GOLDEN");
	char gguf[512], json[512];
	golden = golden ? golden : "../shared/golden";
	snprintf(gguf, sizeof(gguf), "%s/tokenizers/%s", golden, model);
	snprintf(json, sizeof(json), "%s/tokenizers/%s", golden, cases);
	const char *missing = access(gguf, R_OK) ? gguf : access(json, R_OK) ? json : NULL;
	if (missing) {
		print_message("skipped: %s is not there (OUTRIDER_GOLDEN names the golden data)\n",
			missing);
		skip();
	}
	check_file(gguf, json);
}

static void test_gpt_2_vocabulary_equals_reference(void **state)
{
	(void)state;
	check_released("ggml-vocab-gpt-2.gguf", "vocab-gpt-2.json");
}

static void test_phi_3_vocabulary_equals_reference(void **state)
{
	(void)state;
	check_released("ggml-vocab-phi-3.gguf", "vocab-phi-3.json");
}

/* The model itself is in no golden folder: put it or a link to it there. */
static void test_smollm2_equals_reference(void **state)
{
	(void)state;
	check_released("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m.json");
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
	static const char *const files[] = {DATA "tiny-qwen2.gguf", DATA "tiny-gpt-4o.gguf",
		DATA "tiny-deepseek-v3.gguf", DATA "tiny-spm.gguf"};
	for (size_t f = 0; f < 4; f++) {
		struct tokenizer *t = load(files[f]);
		for (const char *kind = kinds; *kind; kind++) {
			alarm(600);
			memset(text, *kind, bytes);
			struct ids ids = encode(t, text, bytes, false);
			if (tokenizer_adds_space(t))
				assert_spm_round_trip(t, ids, text, bytes);
			else
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

/* As a stream is sent: after each token what is complete goes out. Rare characters are byte tokens. */
static void test_a_stream_is_cut_between_characters(void **state)
{
	static const char text[] =
		"na\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\xa6\x99\xf0\x9f\x98\x80!";
	static const char *const files[] = {DATA "tiny-qwen2.gguf", DATA "tiny-spm.gguf"};
	(void)state;
	for (size_t f = 0; f < 2; f++) {
		struct tokenizer *t = load(files[f]);
		struct ids ids = encode(t, text, strlen(text), false);
		size_t skip = tokenizer_adds_space(t), at = 0, sent = 0, waits = 0;
		char buffer[64];
		for (size_t i = 0; i < ids.n; i++) {
			struct gguf_string piece = tokenizer_piece(t, ids.ids[i], false);
			assert_true(at + piece.bytes < sizeof(buffer));
			memcpy(buffer + at, piece.data, piece.bytes);
			at += piece.bytes;
			sent += tokenizer_utf8_complete(buffer + sent, at - sent);
			/* What follows never begins inside a character. */
			assert_true(sent < skip || (text[sent - skip] & 0xc0) != 0x80);
			waits += sent < at;
		}
		assert_int_equal(sent, skip + strlen(text));
		assert_true(waits > 0);
		free(ids.ids);
		tokenizer_free(&t);
	}
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
		cmocka_unit_test(test_sentencepiece_equals_reference),
		cmocka_unit_test(test_gpt_2_vocabulary_equals_reference),
		cmocka_unit_test(test_phi_3_vocabulary_equals_reference),
		cmocka_unit_test(test_smollm2_equals_reference),
		cmocka_unit_test(test_demo_model_ends_at_both_of_its_end_tokens),
		cmocka_unit_test(test_user_text_never_yields_control_tokens),
		cmocka_unit_test(test_control_tokens_have_no_text_unless_asked),
		cmocka_unit_test(test_encode_appends_and_keeps_what_was_there),
		cmocka_unit_test(test_a_megabyte_of_one_kind_is_not_quadratic),
		cmocka_unit_test(test_fingerprints_tell_vocabularies_apart),
		cmocka_unit_test(test_utf8_waits_for_the_rest_of_a_character),
		cmocka_unit_test(test_a_stream_is_cut_between_characters),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
