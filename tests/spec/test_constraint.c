/* A session's grammar: which drafts it leaves, what may follow each, what must follow, and where the output ends. */
#include "shared/spec/constraint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct gguf *gguf;
static struct tokenizer *tokenizer;
static struct constraint_vocab vocab;
static uint32_t n_vocab;

static int open_model(void **state)
{
	struct error err = {""};

	(void)state;
	if (gguf_open("models/outrider-demo-moe-q4_0.gguf", &gguf, &err) != 0 ||
		tokenizer_load(gguf, &tokenizer, &err) != 0) {
		print_error("%s\n", err.text);
		return -1;
	}
	n_vocab = tokenizer_n_vocab(tokenizer);
	constraint_vocab_init(&vocab, tokenizer, n_vocab + 100);
	return 0;
}

static int close_model(void **state)
{
	(void)state;
	constraint_vocab_exit(&vocab);
	tokenizer_free(&tokenizer);
	gguf_close(&gguf);
	return 0;
}

static int make(
	enum grammar_kind kind, const char *source, struct constraint **out, struct error *err)
{
	static struct session_request request;

	memset(&request, 0, sizeof(request));
	request.grammar_kind = kind;
	request.grammar_bytes = (uint32_t)strlen(source);
	memcpy(request.stops, source, request.grammar_bytes);
	return constraint_create(&request, &vocab, out, err);
}

static struct constraint *made(enum grammar_kind kind, const char *source)
{
	struct constraint *c;
	struct error err = {""};

	if (make(kind, source, &c, &err) != 0)
		fail_msg("%s", err.text);
	assert_non_null(c);
	return c;
}

/* The token of one byte. */
static int32_t byte(char c)
{
	for (int32_t i = 0; i < (int32_t)n_vocab; i++) {
		struct gguf_string text = tokenizer_piece(tokenizer, i, false);

		if (text.bytes == 1 && text.data[0] == c)
			return i;
	}
	fail_msg("no token is \"%c\"", c);
	return -1;
}

static bool allows(const uint64_t *allowed, int32_t token)
{
	return allowed[token / 64] >> (token % 64) & 1;
}

static void without_a_grammar_there_is_none(void **state)
{
	struct constraint *c;
	struct error err;
	int32_t tokens[CONSTRAINT_FORCED];

	(void)state;
	assert_int_equal(make(GRAMMAR_NONE, "", &c, &err), 0);
	assert_null(c);
	assert_int_equal(constraint_token(c, 0, 5), CONSTRAINT_MORE);
	assert_int_equal(constraint_forced(c, tokens, 5), 0);
}

static void what_is_wrong_is_named(void **state)
{
	struct constraint *c;
	struct error err;

	(void)state;
	assert_int_equal(make(GRAMMAR_REGEX, "a)", &c, &err), -EINVAL);
	assert_string_equal(err.text, "grammar: byte 2: ) without (");
	assert_null(c);
}

/* A tree: "a" ("b" ("x"), "c"), "x" ("b"). */
static void a_draft_keeps_what_the_grammar_allows(void **state)
{
	struct constraint *c = made(GRAMMAR_REGEX, "a[bc]d?");
	struct draft_node nodes[] = {{byte('a'), -1, 0}, {byte('b'), 0, 0}, {byte('x'), 1, 0},
		{byte('c'), 0, 0}, {byte('x'), -1, 0}, {byte('b'), 4, 0}};
	struct draft_reply draft = {.n = 6, .node = nodes};
	const uint64_t *allowed[7];
	const uint16_t *kept;
	uint32_t n;

	(void)state;
	assert_true(constraint_draft(c, &draft, allowed, &kept, &n));
	assert_int_equal(n, 3);
	static const uint16_t expected[] = {1, 1, 0, 1, 0, 0};
	assert_memory_equal(kept, expected, sizeof(expected));
	assert_true(allows(allowed[0], byte('a')));
	assert_false(allows(allowed[0], byte('b')));
	assert_true(allows(allowed[1], byte('b')) && allows(allowed[1], byte('c')));
	assert_true(allows(allowed[2], byte('d')));
	assert_false(allows(allowed[2], byte('b')));
	assert_ptr_equal(allowed[2], allowed[3]);
	/* Tokens that only the model has are never allowed. */
	for (int32_t i = (int32_t)n_vocab; i < (int32_t)n_vocab + 100; i++)
		assert_false(allows(allowed[1], i));
	assert_true(constraint_draft(c, NULL, allowed, &kept, &n));
	assert_true(allows(allowed[0], byte('a')));
	constraint_free(&c);
}

static void the_output_ends_where_nothing_may_follow(void **state)
{
	struct constraint *c = made(GRAMMAR_REGEX, "a[bc]d?");
	const uint64_t *allowed[1];
	const uint16_t *kept;
	uint32_t n, ends = 0;

	(void)state;
	assert_int_equal(constraint_token(c, 0, byte('a')), CONSTRAINT_MORE);
	assert_int_equal(constraint_token(c, 0, byte('a')), CONSTRAINT_MORE);
	assert_int_equal(constraint_token(c, 1, byte('c')), CONSTRAINT_MORE);
	/* It may end here: the model's own end is allowed. */
	assert_true(constraint_draft(c, NULL, allowed, &kept, &n));
	for (int32_t i = 0; i < (int32_t)n_vocab; i++)
		ends += tokenizer_is_eog(tokenizer, i) && allows(allowed[0], i);
	assert_true(ends > 0);
	assert_int_equal(constraint_token(c, 2, byte('d')), CONSTRAINT_COMPLETE);
	assert_int_equal(constraint_token(c, 2, byte('d')), CONSTRAINT_COMPLETE);
	assert_false(constraint_broken(c));
	assert_int_equal(constraint_token(c, 3, byte('d')), CONSTRAINT_BROKEN);
	assert_true(constraint_broken(c));
	constraint_free(&c);
}

static void what_must_follow_is_a_draft(void **state)
{
	struct constraint *c = made(GRAMMAR_REGEX, "x?the only way[01]");
	int32_t tokens[CONSTRAINT_FORCED];
	char text[64] = "";
	uint32_t n;

	(void)state;
	assert_int_equal(constraint_forced(c, tokens, CONSTRAINT_FORCED), 0);
	assert_int_equal(constraint_token(c, 0, byte('x')), CONSTRAINT_MORE);
	n = constraint_forced(c, tokens, CONSTRAINT_FORCED);
	for (uint32_t i = 0; i < n; i++) {
		struct gguf_string piece = tokenizer_piece(tokenizer, tokens[i], false);

		strncat(text, piece.data, piece.bytes);
	}
	assert_string_equal(text, "the only way");
	assert_int_equal(constraint_forced(c, tokens, 1), 1);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(constraint_token(c, 1 + i, tokens[i]), CONSTRAINT_MORE);
	assert_int_equal(constraint_forced(c, tokens, CONSTRAINT_FORCED), 0);
	assert_int_equal(constraint_token(c, 1 + n, byte('1')), CONSTRAINT_COMPLETE);
	constraint_free(&c);
}

/* Far more states than there is room for at once, with drafts all the while. */
/* What a drafter asks: nothing of it moves the output. */
static void tokens_ahead_are_followed_without_being_output(void **state)
{
	struct constraint *c = made(GRAMMAR_REGEX, "a[bc]d?");
	const int32_t a = byte('a'), b = byte('b'), d = byte('d'), x = byte('x');
	const int32_t right[] = {a, b, d}, wrong[] = {a, b, x, b};
	int32_t *ends, both[3] = {a, b};
	size_t n_ends;

	(void)state;
	assert_true(allows(constraint_ahead(c, NULL, 0), a));
	assert_false(allows(constraint_ahead(c, NULL, 0), b));
	assert_true(allows(constraint_ahead(c, right, 2), d));
	assert_null(constraint_ahead(c, wrong, 3));
	assert_int_equal(constraint_allows(c, right, 3), 3);
	assert_int_equal(constraint_allows(c, wrong, 4), 2);
	assert_int_equal(constraint_allows(c, wrong + 1, 3), 0);
	/* The token that ends the output is allowed where it may end, and nothing behind it. */
	assert_int_equal(tokenizer_list_eog(tokenizer, n_vocab, &ends, &n_ends), 0);
	assert_true(n_ends > 0);
	both[2] = ends[0];
	assert_int_equal(constraint_allows(c, both, 3), 3);
	both[1] = ends[0];
	assert_int_equal(constraint_allows(c, both, 3), 1);
	both[1] = (int32_t)n_vocab + 5000;
	assert_int_equal(constraint_allows(c, both, 3), 1);
	both[1] = -1;
	assert_int_equal(constraint_allows(c, both, 3), 1);
	free(ends);
	assert_int_equal(constraint_token(c, 0, a), CONSTRAINT_MORE);
	assert_int_equal(constraint_allows(c, right + 1, 2), 2);
	assert_int_equal(constraint_token(c, 1, x), CONSTRAINT_BROKEN);
	assert_null(constraint_ahead(c, NULL, 0));
	assert_int_equal(constraint_allows(c, right, 1), 0);
	constraint_free(&c);
}

static void long_outputs_stay_within_the_room(void **state)
{
	struct constraint *c = made(GRAMMAR_REGEX, "[ab]{90000}");
	struct draft_node node = {byte('b'), -1, 0};
	struct draft_reply draft = {.n = 1, .node = &node};
	const uint64_t *allowed[2];
	const uint16_t *kept;
	uint32_t n;

	(void)state;
	for (uint32_t i = 0; i < 20000; i++) {
		if (i % 10 == 0) {
			assert_true(constraint_draft(c, &draft, allowed, &kept, &n));
			assert_int_equal(n, 1);
			assert_true(allows(allowed[1], byte('a')));
		}
		assert_int_equal(constraint_token(c, i, byte('a')), CONSTRAINT_MORE);
	}
	constraint_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_grammar_there_is_none),
		cmocka_unit_test(what_is_wrong_is_named),
		cmocka_unit_test(a_draft_keeps_what_the_grammar_allows),
		cmocka_unit_test(the_output_ends_where_nothing_may_follow),
		cmocka_unit_test(what_must_follow_is_a_draft),
		cmocka_unit_test(tokens_ahead_are_followed_without_being_output),
		cmocka_unit_test(long_outputs_stay_within_the_room),
	};

	return cmocka_run_group_tests(tests, open_model, close_model);
}
