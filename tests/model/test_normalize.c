/* Normalisation: against Python's unicodedata, Hugging Face's tokenizers, and against time. */
#include "shared/model/text/normalize.h"
#include "shared/model/text/tokenizer.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <cmocka.h>

#define DATA "tests/data/tokenizers/"

static struct normalizer normalizer;

static size_t put_character(char *out, uint32_t c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	static const unsigned lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
	for (size_t i = n; i-- > 1; c >>= 6)
		out[i] = (char)(0x80 | (c & 0x3f));
	out[0] = (char)(lead[n] | c);
	return n;
}

/* Of every character: itself, and before and behind others that compose. */
static uint64_t hash_all(enum normalization form)
{
	static const char *const around[][2] = {{"", "\n"}, {"", "\xcc\x81\n"}, {"a", "\n"},
		{"", "\xcc\x81\xcc\xa3\n"}, {"\xe1\x84\x80", "\xe1\x86\xa8\n"}};
	uint64_t hash = 0xcbf29ce484222325u;
	for (uint32_t c = 0; c < 0x110000; c++) {
		char text[128];
		const char *out;
		size_t n = 0, bytes;
		/* Surrogates, and characters of Unicode 15 that have a decomposition or a class: Python 3.11 knows 14. */
		if ((c >= 0xd800 && c < 0xe000) || (c >= 0x10efd && c < 0x10f00) ||
			(c >= 0x11f00 && c < 0x11f60) || (c >= 0x1e030 && c < 0x1e090) ||
			(c >= 0x1e4d0 && c < 0x1e500))
			continue;
		for (size_t i = 0; i < 5; i++) {
			n += (size_t)sprintf(text + n, "%s", around[i][0]);
			n += put_character(text + n, c);
			n += (size_t)sprintf(text + n, "%s", around[i][1]);
		}
		assert_int_equal(normalize(&normalizer, form, text, n, &out, &bytes), 0);
		for (size_t i = 0; i < bytes; i++)
			hash = (hash ^ (unsigned char)out[i]) * 0x100000001b3u;
	}
	return hash;
}

/* The hashes are those of what Python's unicodedata.normalize makes of the same strings. */
static void every_character_is_normalised_as_python_does_it(void **state)
{
	(void)state;
	assert_true(hash_all(NORMALIZATION_NFC) == 0x71451bdfe6074be7u);
	assert_true(hash_all(NORMALIZATION_NFKC) == 0x686329987f82c5acu);
}

static void assert_normal(const char *text, const char *wanted)
{
	const char *out;
	size_t bytes;
	assert_int_equal(
		normalize(&normalizer, NORMALIZATION_NFC, text, strlen(text), &out, &bytes), 0);
	assert_int_equal(bytes, strlen(wanted));
	assert_memory_equal(out, wanted, bytes);
}

static void what_is_no_utf8_stays_and_parts_what_is_around_it(void **state)
{
	(void)state;
	assert_normal("e\xcc\x81\xff"
		      "e\xcc\x81",
		"\xc3\xa9\xff\xc3\xa9");
	assert_normal("e\xff\xcc\x81", "e\xff\xcc\x81");
	assert_normal("e\xcc", "e\xcc");
	assert_normal("e\xcc\x81\xcc", "\xc3\xa9\xcc");
	assert_normal("\xf0\x9f\x98"
		      "e\xcc\x81",
		"\xf0\x9f\x98\xc3\xa9");
	assert_normal("\xed\xa0\x80\xcc\x81", "\xed\xa0\x80\xcc\x81");
	assert_normal("", "");
	/* What needs nothing is not even copied. */
	const char *text = "na\xc3\xafve", *out;
	size_t bytes;
	assert_int_equal(normalize(&normalizer, NORMALIZATION_NFC, text, 6, &out, &bytes), 0);
	assert_ptr_equal(out, text);
}

/* A million marks, of which every other belongs before the one before it: bubble sort would take days. */
static void long_sequences_of_marks_take_linear_time(void **state)
{
	static const char *const pairs[] = {"\xcc\x81\xcc\xa3", "\xcc\x81\xcc\x81",
		"\xcd\x85\xcc\xa7", "\xe1\x85\xa1\xe1\x86\xa8", "\xe0\xa7\x87\xe0\xa6\xbe"};
	const struct itimerval patience = {.it_value.tv_sec = 60}, none = {.it_value.tv_sec = 0};
	enum { PAIRS = 500000 };
	(void)state;
	setitimer(ITIMER_PROF, &patience, NULL);
	for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
		size_t unit = strlen(pairs[p]), bytes;
		char *text = malloc(1 + PAIRS * unit);
		const char *out;
		assert_non_null(text);
		text[0] = 'q';
		for (size_t i = 0; i < PAIRS; i++)
			memcpy(text + 1 + i * unit, pairs[p], unit);
		assert_int_equal(normalize(&normalizer, NORMALIZATION_NFC, text, 1 + PAIRS * unit,
					 &out, &bytes),
			0);
		/* First all that are below, then all that are above. */
		for (size_t i = 0; p == 0 && i < 2 * PAIRS; i++)
			assert_memory_equal(
				out + 1 + 2 * i, i < PAIRS ? "\xcc\xa3" : "\xcc\x81", 2);
		free(text);
	}
	setitimer(ITIMER_PROF, &none, NULL);
}

/* The file's bytes with another tokenizer.ggml.pre. */
static struct tokenizer *load_as(const char *path, const char *pre)
{
	static const char key[] = "tokenizer.ggml.pre\x08\0\0\0";
	static char file[1 << 16], changed[1 << 16];
	FILE *from = fopen(path, "rb");
	assert_non_null(from);
	size_t n = fread(file, 1, sizeof(file), from);
	fclose(from);
	char *at = memmem(file, n, key, sizeof(key) - 1);
	assert_non_null(at);
	size_t before = (size_t)(at - file) + sizeof(key) - 1;
	uint64_t old, bytes = strlen(pre);
	memcpy(&old, file + before, 8);
	memcpy(changed, file, before);
	memcpy(changed + before, &bytes, 8);
	memcpy(changed + before + 8, pre, bytes);
	memcpy(changed + before + 8 + bytes, file + before + 8 + old, n - before - 8 - old);
	struct error err = {""};
	struct gguf *gguf;
	struct tokenizer *t;
	if (gguf_open_memory(changed, n - old + bytes, &gguf, &err) ||
		tokenizer_load(gguf, &t, &err))
		fail_msg("%s as %s: %s", path, pre, err.text);
	gguf_close(&gguf);
	return t;
}

static bool has_ids(const struct tokenizer *t, const json_t *test, bool special, const char *key)
{
	const json_t *text = json_object_get(test, "text"), *wanted = json_object_get(test, key);
	struct error err = {""};
	int32_t *ids = NULL;
	size_t n = 0, capacity = 0;
	if (tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids,
		    &n, &capacity, &err))
		fail_msg("%s", err.text);
	bool equal = n == json_array_size(wanted);
	for (size_t i = 0; equal && i < n; i++)
		equal = ids[i] == json_integer_value(json_array_get(wanted, i));
	free(ids);
	return equal;
}

/* tests/tools/make_normalized.py: a vocabulary as it is cut and normalised under several names. */
static void ids_are_those_of_the_reference(void **state)
{
	json_error_t error;
	json_t *golden = json_load_file(DATA "normalized.json", JSON_ALLOW_NUL, &error), *test;
	struct tokenizer *t = NULL;
	const char *pre = "";
	size_t i;
	(void)state;
	if (!golden)
		fail_msg("%s", error.text);
	json_array_foreach(json_object_get(golden, "cases"), i, test)
	{
		const char *next = json_string_value(json_object_get(test, "pre"));
		if (strcmp(next, pre) != 0) {
			tokenizer_free(&t);
			t = load_as(DATA "tiny-qwen2.gguf", next);
			pre = next;
		}
		if (!has_ids(t, test, false, "ids") || !has_ids(t, test, true, "ids_special"))
			fail_msg("%s: other ids for \"%s\"", pre,
				json_string_value(json_object_get(test, "text")));
	}
	assert_true(i > 150);
	tokenizer_free(&t);
	json_decref(golden);
}

/* A prompt that a template wrote is normalised as one text, whoever wrote which part. */
static void rendered_text_is_normalised_across_its_parts(void **state)
{
	(void)state;
	struct tokenizer *t = load_as(DATA "tiny-qwen2.gguf", "qwen2");
	static const char text[] = "<|im_start|>cafe\xcc\x81<|im_end|>";
	uint8_t literal[sizeof(text)];
	struct error err = {""};
	int32_t *a = NULL, *b = NULL;
	size_t n = 0, m = 0, capacity_a = 0, capacity_b = 0;
	memset(literal, 1, sizeof(literal));
	literal[16] = literal[17] = 0; /* the mark is the user's */
	assert_int_equal(tokenizer_encode_rendered(
				 t, text, sizeof(text) - 1, literal, &a, &n, &capacity_a, &err),
		0);
	static const char composed[] = "<|im_start|>caf\xc3\xa9<|im_end|>";
	assert_int_equal(tokenizer_encode(t, composed, sizeof(composed) - 1, true, &b, &m,
				 &capacity_b, &err),
		0);
	assert_int_equal(n, m);
	assert_memory_equal(a, b, n * sizeof(*a));
	free(a);
	free(b);
	tokenizer_free(&t);
}

static void the_names_normalise_as_their_models_do(void **state)
{
	static const struct {
		const char *name;
		enum normalization form;
	} names[] = {{"qwen2", NORMALIZATION_NFC}, {"qwen35", NORMALIZATION_NFC},
		{"deepseek-r1-qwen", NORMALIZATION_NFC}, {"f2llmv2", NORMALIZATION_NFC},
		{"stablelm2", NORMALIZATION_NFC}, {"hunyuan", NORMALIZATION_NFC},
		{"olmo", NORMALIZATION_NFC}, {"mpt", NORMALIZATION_NFC},
		{"modern-bert", NORMALIZATION_NFC}, {"command-r", NORMALIZATION_NFC},
		{"tiny_aya", NORMALIZATION_NFC}, {"cohere2moe", NORMALIZATION_NFC},
		{"exaone-moe", NORMALIZATION_NFC}, {"exaone", NORMALIZATION_NFKC},
		{"exaone4", NORMALIZATION_NFKC}, {"gpt-2", NORMALIZATION_NONE},
		{"llama-bpe", NORMALIZATION_NONE}, {"llama4", NORMALIZATION_NONE},
		{"gpt-4o", NORMALIZATION_NONE}, {"glm4", NORMALIZATION_NONE},
		{"deepseek-v3", NORMALIZATION_NONE}, {"deepseek-llm", NORMALIZATION_NONE},
		{"deepseek-coder", NORMALIZATION_NONE}, {"smollm", NORMALIZATION_NONE},
		{"starcoder", NORMALIZATION_NONE}, {"falcon", NORMALIZATION_NONE},
		{"tekken", NORMALIZATION_NONE}, {"kimi-k2", NORMALIZATION_NONE},
		{"bloom", NORMALIZATION_NONE}, {"dbrx", NORMALIZATION_NONE},
		{"default", NORMALIZATION_NONE}};
	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct pretokenizer *p;
		struct error err = {""};
		assert_int_equal(
			pretokenizer_create(names[i].name, strlen(names[i].name), &p, &err), 0);
		if (pretokenizer_normalization(p) != names[i].form)
			fail_msg("%s", names[i].name);
		pretokenizer_free(&p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_character_is_normalised_as_python_does_it),
		cmocka_unit_test(what_is_no_utf8_stays_and_parts_what_is_around_it),
		cmocka_unit_test(long_sequences_of_marks_take_linear_time),
		cmocka_unit_test(ids_are_those_of_the_reference),
		cmocka_unit_test(rendered_text_is_normalised_across_its_parts),
		cmocka_unit_test(the_names_normalise_as_their_models_do),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	normalizer_free(&normalizer);
	return failed;
}
