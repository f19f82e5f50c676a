/* One rule at a time, with vocabularies made for it: SentencePiece's ways, special tokens, duplicates, ends. */
#include "shared/model/text/tokenizer.h"
#include "tests/model/gguf_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

struct token {
	const char *text;
	int type;
	float score;
};

static struct build file;

/* Keys beside the tokens. */
struct extra {
	const char *key;
	uint32_t type; /* 4: u32, 7: bool, 8: string */
	uint32_t value;
	const char *text;
};

static const struct extra no_extra[] = {{0}};

static int load(const char *model, const struct token *tokens, const char *const *merges,
	const struct extra *extra, struct tokenizer **out, struct error *err)
{
	bool spm = strcmp(model, "llama") == 0;
	uint64_t n = 0, n_merges = 0, n_extra = 0;
	struct gguf *gguf;
	while (tokens[n].text)
		n++;
	while (merges && merges[n_merges])
		n_merges++;
	if (!extra)
		extra = no_extra;
	while (extra[n_extra].key)
		n_extra++;
	build_header(&file, 3, 0, 4 + n_extra);
	build_key_string(&file, "tokenizer.ggml.model", model);
	build_key(&file, "tokenizer.ggml.tokens", 9);
	build_u32(&file, 8);
	build_u64(&file, n);
	for (uint64_t i = 0; i < n; i++)
		build_string(&file, tokens[i].text);
	build_key(&file, "tokenizer.ggml.token_type", 9);
	build_u32(&file, 5);
	build_u64(&file, n);
	for (uint64_t i = 0; i < n; i++)
		build_u32(&file, (uint32_t)tokens[i].type);
	build_key(&file, spm ? "tokenizer.ggml.scores" : "tokenizer.ggml.merges", 9);
	build_u32(&file, spm ? 6 : 8);
	build_u64(&file, spm ? n : n_merges);
	for (uint64_t i = 0; spm && i < n; i++)
		build_bytes(&file, &tokens[i].score, sizeof(float));
	for (uint64_t i = 0; !spm && i < n_merges; i++)
		build_string(&file, merges[i]);
	for (uint64_t i = 0; i < n_extra; i++) {
		build_key(&file, extra[i].key, extra[i].type);
		if (extra[i].type == 8)
			build_string(&file, extra[i].text);
		else
			build_bytes(&file, &extra[i].value, extra[i].type == 7 ? 1 : 4);
	}
	int rc = gguf_open_memory(file.bytes, file.n, &gguf, err);
	if (rc)
		return rc;
	rc = tokenizer_load(gguf, out, err);
	gguf_close(&gguf);
	return rc;
}

static struct tokenizer *make(const char *model, const struct token *tokens,
	const char *const *merges, const struct extra *extra)
{
	struct error err = {""};
	struct tokenizer *t;
	if (load(model, tokens, merges, extra, &t, &err))
		fail_msg("%s", err.text);
	return t;
}

/* The ids of text, compared with `expected`, which ends with -1. */
static void assert_encodes(
	const struct tokenizer *t, const char *text, bool special, const int32_t *expected)
{
	struct error err = {""};
	int32_t *ids = NULL;
	size_t n = 0, capacity = 0, wanted = 0;
	if (tokenizer_encode(t, text, strlen(text), special, &ids, &n, &capacity, &err))
		fail_msg("%s", err.text);
	while (expected[wanted] >= 0)
		wanted++;
	bool equal = n == wanted && (n == 0 || memcmp(ids, expected, n * sizeof(*ids)) == 0);
	for (size_t i = 0; !equal && i < n; i++)
		print_message("%d ", ids[i]);
	if (!equal)
		fail_msg("are the ids of \"%s\"", text);
	free(ids);
}
#define IDS(...)                \
	(const int32_t[])       \
	{                       \
		__VA_ARGS__, -1 \
	}
#define NOTHING           \
	(const int32_t[]) \
	{                 \
		-1        \
	}

#define SPACE_MARK "\xe2\x96\x81"

static const struct token spm[] = {
	{"<unk>", UNKNOWN, 0},
	{"<s>", CONTROL, 0},
	{"</s>", CONTROL, 0},
	{"<sep>", USER, 0},
	{"<0x0A>", BYTE, 0},
	{SPACE_MARK, NORMAL, -9}, /* 5 */
	{"a", NORMAL, -8},
	{"b", NORMAL, -8},
	{"ab", NORMAL, -2},
	{"ba", NORMAL, -1}, /* 9 */
	{SPACE_MARK "a", NORMAL, -3},
	{"aba", UNUSED, -4},
	{"abab", NORMAL, -5},
	{"<|x|>", CONTROL, -1000}, /* 13: added */
	{"<y>", USER, -1000},
	{NULL, 0, 0},
};

static void spm_merges_the_best_score_first_then_the_leftmost(void **state)
{
	(void)state;
	struct tokenizer *t = make("llama", spm, NULL, NULL);
	/* ba beats ab and _a. */
	assert_encodes(t, "aba", false, IDS(10, 9));
	assert_encodes(t, "aa", false, IDS(10, 6));
	assert_encodes(t, "", false, NOTHING);
	assert_encodes(t, " ", false, IDS(5, 5));
	tokenizer_free(&t);
}

static void spm_space_prefix_can_be_off(void **state)
{
	(void)state;
	const struct extra off[] = {{"tokenizer.ggml.add_space_prefix", 7, 0, NULL}, {0}};
	struct tokenizer *t = make("llama", spm, NULL, off);
	assert_false(tokenizer_adds_space(t));
	assert_encodes(t, "a", false, IDS(6));
	assert_encodes(t, "<|x|>a", true, IDS(13, 6));
	tokenizer_free(&t);
	t = make("llama", spm, NULL, NULL);
	assert_true(tokenizer_adds_space(t));
	assert_encodes(t, "<|x|>a", true, IDS(13, 10));
	tokenizer_free(&t);
}

/* A vocabulary in which only an unused piece leads to the longer one. */
static void spm_unused_pieces_fall_back_into_their_parts(void **state)
{
	static const struct token tokens[] = {
		{"<unk>", UNKNOWN, 0},
		{"<s>", CONTROL, 0},
		{"</s>", CONTROL, 0},
		{"a", NORMAL, -5},
		{"b", NORMAL, -5},
		{"ab", UNUSED, -1}, /* 5 */
		{"abab", NORMAL, -2},
		{"c", UNUSED, -5},
		{NULL, 0, 0},
	};
	const struct extra off[] = {{"tokenizer.ggml.add_space_prefix", 7, 0, NULL}, {0}};
	(void)state;
	struct tokenizer *t = make("llama", tokens, NULL, off);
	assert_encodes(t, "abab", false, IDS(6));
	assert_encodes(t, "ab", false, IDS(3, 4));
	assert_encodes(t, "ababab", false, IDS(6, 3, 4));
	assert_encodes(t, "ac", false, IDS(3, 0));
	assert_int_equal(tokenizer_piece(t, 5, true).bytes, 0);
	tokenizer_free(&t);
}

static void spm_falls_back_to_bytes_or_one_unknown_token(void **state)
{
	(void)state;
	struct tokenizer *t = make("llama", spm, NULL, NULL);
	assert_encodes(t, "\na", false, IDS(5, 4, 6));
	assert_encodes(t, "xyz", false, IDS(5, 0));
	assert_encodes(t, "x\ny", false, IDS(5, 0, 4, 0));
	assert_encodes(t,
		"\xff\xfe"
		"a",
		false, IDS(5, 0, 6));
	assert_memory_equal(tokenizer_piece(t, 4, false).data, "\n", 1);
	tokenizer_free(&t);
}

/* <sep> was trained with the vocabulary, <y> was added to it afterwards. */
static void spm_user_defined_tokens_are_found_in_any_text(void **state)
{
	(void)state;
	struct tokenizer *t = make("llama", spm, NULL, NULL);
	assert_encodes(t, "a<sep>a", false, IDS(10, 3, 6));
	assert_encodes(t, "a<y>a", false, IDS(10, 14, 10));
	assert_encodes(t, "a<sep>a", true, IDS(10, 3, 10));
	tokenizer_free(&t);
}

static void spm_without_ids_for_them_has_the_usual_first_and_last_token(void **state)
{
	(void)state;
	struct tokenizer *t = make("llama", spm, NULL, NULL);
	assert_int_equal(tokenizer_bos(t), 1);
	assert_true(tokenizer_is_eog(t, 2));
	tokenizer_free(&t);
	const struct extra none[] = {{"tokenizer.ggml.add_bos_token", 7, 0, NULL}, {0}};
	t = make("llama", spm, NULL, none);
	assert_int_equal(tokenizer_bos(t), -1);
	tokenizer_free(&t);
}

static void phi_3s_special_tokens_take_spaces_along(void **state)
{
	const struct extra phi[] = {{"general.name", 8, 0, "Phi3 mini"}, {0}};
	(void)state;
	struct tokenizer *t = make("llama", spm, NULL, phi);
	assert_encodes(t, "<|x|> \n a", true, IDS(13, 10));
	assert_encodes(t, "<|x|> ", true, IDS(13));
	assert_encodes(t, "<s> a", true, IDS(1, 5, 10));
	tokenizer_free(&t);
	t = make("llama", spm, NULL, NULL);
	assert_encodes(t, "<|x|> a", true, IDS(13, 5, 10));
	tokenizer_free(&t);
}

static void spm_needs_scores(void **state)
{
	struct error err = {""};
	struct tokenizer *t;
	struct gguf *gguf;
	(void)state;
	build_header(&file, 3, 0, 2);
	build_key_string(&file, "tokenizer.ggml.model", "llama");
	build_key(&file, "tokenizer.ggml.tokens", 9);
	build_u32(&file, 8);
	build_u64(&file, 1);
	build_string(&file, "a");
	assert_int_equal(gguf_open_memory(file.bytes, file.n, &gguf, &err), 0);
	assert_int_equal(tokenizer_load(gguf, &t, &err), -EINVAL);
	assert_non_null(strstr(err.text, "tokenizer.ggml.scores"));
	gguf_close(&gguf);
}

static const struct token bpe[] = {
	{"a", NORMAL, 0},
	{"b", NORMAL, 0},
	{"ab", NORMAL, 0},
	{"<|im_end|>", CONTROL, 0},
	{"<|end|>", CONTROL, 0},
	{"<t>", USER, 0}, /* 5 */
	{"<", NORMAL, 0},
	{"|", NORMAL, 0},
	{"e", NORMAL, 0},
	{"n", NORMAL, 0},
	{"d", NORMAL, 0}, /* 10 */
	{">", NORMAL, 0},
	{"t", NORMAL, 0},
	{NULL, 0, 0},
};
static const char *const bpe_merges[] = {"a b", NULL};

static void the_last_of_duplicate_strings_counts_and_all_decode(void **state)
{
	static const struct token twice[] = {{"a", NORMAL, 0}, {"b", NORMAL, 0}, {"a", NORMAL, 0},
		{"ab", NORMAL, 0}, {"ab", NORMAL, 0}, {"<x>", CONTROL, 0}, {"<x>", CONTROL, 0},
		{NULL, 0, 0}};
	(void)state;
	struct tokenizer *t = make("gpt2", twice, bpe_merges, NULL);
	assert_encodes(t, "a", false, IDS(2));
	assert_encodes(t, "ab", false, IDS(4));
	assert_encodes(t, "<x>", true, IDS(6));
	for (int32_t id = 3; id <= 4; id++) {
		assert_int_equal(tokenizer_piece(t, id, false).bytes, 2);
		assert_memory_equal(tokenizer_piece(t, id, false).data, "ab", 2);
	}
	tokenizer_free(&t);
}

static void a_control_token_is_one_token_or_plain_text(void **state)
{
	(void)state;
	struct tokenizer *t = make("gpt2", bpe, bpe_merges, NULL);
	assert_encodes(t, "<|end|>", true, IDS(4));
	assert_encodes(t, "<|end|>", false, IDS(6, 7, 8, 9, 10, 7, 11));
	assert_encodes(t, "<t>", true, IDS(5));
	assert_encodes(t, "<t>", false, IDS(5));
	tokenizer_free(&t);
}

/* The template's bytes are marked: those of the user are never part of a control token, not even of one that begins in
 * the template, but merges go across. */
static void rendered_text_has_control_tokens_only_where_the_template_wrote_them(void **state)
{
	static const struct {
		const char *text, *mask;
		int32_t ids[10];
	} cases[] = {
		{"<|end|>", "1111111", {4, -1}},
		{"<|end|>", "0000000", {6, 7, 8, 9, 10, 7, 11, -1}},
		{"<|end|>", "1111110", {6, 7, 8, 9, 10, 7, 11, -1}},
		{"<|end|>", "0111111", {6, 7, 8, 9, 10, 7, 11, -1}},
		{"ab<|end|>", "101111111", {2, 4, -1}},
		{"a<t>b", "00000", {0, 5, 1, -1}},
	};
	(void)state;
	struct tokenizer *t = make("gpt2", bpe, bpe_merges, NULL);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct error err = {""};
		uint8_t literal[16];
		int32_t *ids = NULL;
		size_t n = 0, capacity = 0, bytes = strlen(cases[i].text);
		for (size_t b = 0; b < bytes; b++)
			literal[b] = cases[i].mask[b] == '1';
		assert_int_equal(tokenizer_encode_rendered(t, cases[i].text, bytes, literal, &ids,
					 &n, &capacity, &err),
			0);
		for (size_t j = 0; j < n; j++)
			assert_int_equal(ids[j], cases[i].ids[j]);
		assert_int_equal(cases[i].ids[n], -1);
		free(ids);
	}
	tokenizer_free(&t);
}

static void ends_are_found_by_text_but_for_gpt_oss(void **state)
{
	static const struct token gpt_oss[] = {{"a", NORMAL, 0}, {"<|end|>", CONTROL, 0},
		{"<|call|>", CONTROL, 0}, {"<|return|>", CONTROL, 0}, {NULL, 0, 0}};
	const char *const none[] = {NULL};
	(void)state;
	struct tokenizer *t = make("gpt2", bpe, bpe_merges, NULL);
	assert_true(tokenizer_is_eog(t, 3));
	assert_true(tokenizer_is_eog(t, 4));
	assert_false(tokenizer_is_eog(t, 5));
	tokenizer_free(&t);
	t = make("gpt2", gpt_oss, none, NULL);
	assert_false(tokenizer_is_eog(t, 1));
	assert_true(tokenizer_is_eog(t, 2));
	assert_true(tokenizer_is_eog(t, 3));
	tokenizer_free(&t);
	/* What the file says counts in any case. */
	const struct extra eos[] = {{"tokenizer.ggml.eos_token_id", 4, 1, NULL}, {0}};
	t = make("gpt2", gpt_oss, none, eos);
	assert_true(tokenizer_is_eog(t, 1));
	tokenizer_free(&t);
}

/* As in Hugging Face's tokenizers, whose text is always UTF-8; what is not is the replacement character, as in Python. */
static void a_byte_that_the_vocabulary_lacks_is_unknown_or_left_out(void **state)
{
	static const struct token with_unknown[] = {{"a", NORMAL, 0}, {"b", NORMAL, 0},
		{"ab", NORMAL, 0}, {"<unk>", UNKNOWN, 0}, {NULL, 0, 0}};
	/* The replacement character's bytes, as byte-level BPE writes them. */
	static const struct token with_replacement[] = {{"a", NORMAL, 0}, {"b", NORMAL, 0},
		{"ab", NORMAL, 0}, {"\xc3\xaf", NORMAL, 0}, {"\xc2\xbf", NORMAL, 0},
		{"\xc2\xbd", NORMAL, 0}, {NULL, 0, 0}};
	const struct extra unknown[] = {{"tokenizer.ggml.unknown_token_id", 4, 3, NULL}, {0}};
	(void)state;
	struct tokenizer *t = make("gpt2", with_unknown, bpe_merges, unknown);
	assert_encodes(t, "a\xf8", false, IDS(0, 3));
	assert_encodes(t, "a\x13", false, IDS(0, 3));
	tokenizer_free(&t);
	t = make("gpt2", with_replacement, bpe_merges, NULL);
	assert_encodes(t,
		"a\xf8"
		"b",
		false, IDS(0, 3, 4, 5, 1));
	assert_encodes(t, "\x13", false, NOTHING);
	assert_encodes(t,
		"a\x13"
		"b",
		false, IDS(0, 1));
	/* Of U+FF3D's bytes ef bc bd the middle one is not there. */
	assert_encodes(t, "\xef\xbc\xbd", false, IDS(3, 5));
	tokenizer_free(&t);
	t = make("gpt2", bpe, bpe_merges, NULL);
	assert_encodes(t, "ab\xf8", false, IDS(2));
	assert_encodes(t, "\xf0\x9f\x98\x80", false, NOTHING);
	/* What is left of a word merges. */
	assert_encodes(t, "a\xcc\x81", false, IDS(0));
	assert_encodes(t, "axb", false, IDS(2));
	tokenizer_free(&t);
}

static void vocabularies_of_other_sizes_are_compared_as_far_as_both_go(void **state)
{
	struct token other[16];
	struct error err = {""};
	uint32_t shared;
	(void)state;
	struct tokenizer *t = make("gpt2", bpe, bpe_merges, NULL);
	memcpy(other, bpe, sizeof(bpe));
	other[13] = (struct token){"[PAD]", UNUSED, 0};
	other[14] = (struct token){NULL, 0, 0};
	struct tokenizer *padded = make("gpt2", other, bpe_merges, NULL);
	assert_int_equal(tokenizer_compare(t, padded, &shared, &err), 0);
	assert_int_equal(shared, 13);
	assert_int_equal(tokenizer_compare(padded, t, &shared, &err), 0);
	assert_int_equal(shared, 13);
	assert_true(tokenizer_fingerprint(t) != tokenizer_fingerprint(padded));
	tokenizer_free(&padded);
	other[12].text = "u";
	padded = make("gpt2", other, bpe_merges, NULL);
	assert_int_equal(tokenizer_compare(t, padded, &shared, &err), -EINVAL);
	assert_non_null(strstr(err.text, "token 12 is \"t\" in the model and \"u\" in the draft"));
	tokenizer_free(&padded);
	tokenizer_free(&t);
}

static void an_unknown_pre_tokenizer_is_refused_by_name(void **state)
{
	const struct extra pre[] = {{"tokenizer.ggml.pre", 8, 0, "no-such-rules"}, {0}};
	struct error err = {""};
	struct tokenizer *t;
	(void)state;
	assert_int_equal(load("gpt2", bpe, bpe_merges, pre, &t, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "tokenizer.ggml.pre"));
	assert_non_null(strstr(err.text, "no-such-rules"));
	assert_non_null(strstr(err.text, "qwen35"));
	assert_int_equal(load("bert", bpe, bpe_merges, NULL, &t, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "tokenizer.ggml.model"));
	assert_non_null(strstr(err.text, "bert"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spm_merges_the_best_score_first_then_the_leftmost),
		cmocka_unit_test(spm_space_prefix_can_be_off),
		cmocka_unit_test(spm_unused_pieces_fall_back_into_their_parts),
		cmocka_unit_test(spm_falls_back_to_bytes_or_one_unknown_token),
		cmocka_unit_test(spm_user_defined_tokens_are_found_in_any_text),
		cmocka_unit_test(spm_without_ids_for_them_has_the_usual_first_and_last_token),
		cmocka_unit_test(phi_3s_special_tokens_take_spaces_along),
		cmocka_unit_test(spm_needs_scores),
		cmocka_unit_test(the_last_of_duplicate_strings_counts_and_all_decode),
		cmocka_unit_test(a_control_token_is_one_token_or_plain_text),
		cmocka_unit_test(
			rendered_text_has_control_tokens_only_where_the_template_wrote_them),
		cmocka_unit_test(ends_are_found_by_text_but_for_gpt_oss),
		cmocka_unit_test(a_byte_that_the_vocabulary_lacks_is_unknown_or_left_out),
		cmocka_unit_test(vocabularies_of_other_sizes_are_compared_as_far_as_both_go),
		cmocka_unit_test(an_unknown_pre_tokenizer_is_refused_by_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
