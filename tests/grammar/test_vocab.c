/* Masks, against each token asked one by one; and documents that are made through masks alone. */
#include "tests/grammar/rig.h"

#include "kernels/sampler.h"
#include "shared/base/rand.h"
#include "shared/model/grammar/vocab.h"

enum { MASKS = 64, TOKENS = 120, TEXTS = 10 };

static const char *const models[] = {"models/outrider-demo-moe-q4_0.gguf",
	"tests/data/tokenizers/tiny-spm.gguf", "tests/data/tokenizers/tiny-gpt-2.gguf",
	"tests/data/tokenizers/tiny-deepseek-v3.gguf"};

static const struct {
	enum grammar_kind kind;
	const char *source;
} grammars[] = {
	{GRAMMAR_JSON_OBJECT, ""},
	{GRAMMAR_REGEX, "[\\u00e0-\\u00ff]{3} .{0,9}\\p{Lu}"},
	{GRAMMAR_REGEX, "\"[^\"\\\\\\x00-\\x1f]{0,20}\""},
	{GRAMMAR_JSON_SCHEMA,
		"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":12},"
		"\"b\":{\"type\":\"integer\"},\"c\":{\"$ref\":\"#\"}},\"required\":[\"a\",\"b\"],"
		"\"additionalProperties\":false}"},
	{GRAMMAR_GBNF, "root ::= line{1,3}\nline ::= [a-z ]{0,40} (\"(\" line \")\")? \"\\n\""},
};

struct fixture {
	struct gguf *gguf;
	struct tokenizer *tokenizer;
	struct vocab *vocab;
};

static void open_model(struct fixture *f, const char *path)
{
	struct error err = {""};

	if (gguf_open(path, &f->gguf, &err) != 0 ||
		tokenizer_load(f->gguf, &f->tokenizer, &err) != 0)
		fail_msg("%s", err.text);
	assert_int_equal(vocab_create(f->tokenizer, 0, &f->vocab), 0);
}

static void close_model(struct fixture *f)
{
	vocab_free(&f->vocab);
	tokenizer_free(&f->tokenizer);
	gguf_close(&f->gguf);
}

static bool allowed(const uint64_t *mask, int32_t token)
{
	return mask[token / 64] >> (token % 64) & 1;
}

/* A token of the mask by chance, or -1. */
static int32_t draw(const uint64_t *mask, uint32_t n_vocab, uint64_t seed, uint32_t at)
{
	uint32_t n = 0, pick;

	for (int32_t i = 0; i < (int32_t)n_vocab; i++)
		n += allowed(mask, i);
	pick = (uint32_t)(rand_uniform(seed, RAND_GUMBEL, at, 0) * n);
	for (int32_t i = 0; i < (int32_t)n_vocab; i++)
		if (allowed(mask, i) && pick-- == 0)
			return i;
	return -1;
}

/* Each text follows masks to its end, or for TOKENS tokens; no mask differs from what the tokens' texts say. */
static void follow(struct fixture *f, struct rig *rig, struct masks *masks, uint64_t seed)
{
	uint32_t n_vocab = tokenizer_n_vocab(f->tokenizer), state = matcher_start(rig->matcher);

	for (uint32_t at = 0; at < TOKENS; at++) {
		masks_begin(masks, 1);
		const uint64_t *mask = masks_of(masks, state);
		bool can_end = matcher_can_end(rig->matcher, state);

		assert_non_null(mask);
		for (int32_t i = 0; i < (int32_t)n_vocab; i++) {
			bool eog = tokenizer_is_eog(f->tokenizer, i);
			bool follows =
				vocab_token(f->vocab, rig->matcher, state, i) != MATCHER_DEAD;

			if (allowed(mask, i) != (eog ? can_end : follows))
				fail_msg("token %d", i);
		}
		int32_t token = draw(mask, n_vocab, seed, at);
		/* A text can always go on or end: these vocabularies have all bytes. */
		assert_true(token >= 0 || can_end);
		if (token < 0 || tokenizer_is_eog(f->tokenizer, token))
			return;
		state = vocab_token(f->vocab, rig->matcher, state, token);
	}
}

static void masks_are_what_the_tokens_say(void **state)
{
	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(*models); m++) {
		struct fixture f;

		open_model(&f, models[m]);
		for (size_t g = 0; g < sizeof(grammars) / sizeof(*grammars); g++) {
			struct masks *masks;
			struct rig rig;

			rig_open(&rig, grammars[g].kind, grammars[g].source);
			assert_int_equal(masks_create(f.vocab, rig.matcher, MASKS, &masks), 0);
			for (uint64_t seed = 0; seed < TEXTS; seed++)
				follow(&f, &rig, masks, seed);
			masks_free(&masks);
			rig_close(&rig);
		}
		close_model(&f);
	}
}

static void a_text_is_split_into_the_longest_tokens(void **state)
{
	static const uint8_t text[] = "{\"name\": \"value\", \"other\": 123}";
	struct fixture f;
	int32_t tokens[64];
	uint32_t n, bytes = 0;

	(void)state;
	open_model(&f, models[0]);
	n = vocab_split(f.vocab, text, sizeof(text) - 1, tokens, 64);
	for (uint32_t i = 0; i < n; i++) {
		struct gguf_string piece = tokenizer_piece(f.tokenizer, tokens[i], false);

		assert_memory_equal(piece.data, text + bytes, piece.bytes);
		bytes += (uint32_t)piece.bytes;
	}
	assert_int_equal(bytes, sizeof(text) - 1);
	assert_true(n < sizeof(text) - 1);
	assert_int_equal(vocab_split(f.vocab, text, sizeof(text) - 1, tokens, 2), 2);
	close_model(&f);
}

static void masks_stay_until_the_next_begin(void **state)
{
	struct masks *masks;
	struct fixture f;
	struct rig rig;

	(void)state;
	open_model(&f, models[2]);
	rig_open(&rig, GRAMMAR_REGEX, "[ab]{10}");
	assert_int_equal(masks_create(f.vocab, rig.matcher, 2, &masks), 0);
	uint32_t first = matcher_start(rig.matcher), second = matcher_byte(rig.matcher, first, 'a'),
		 third = matcher_byte(rig.matcher, second, 'a');
	masks_begin(masks, 2);
	const uint64_t *a = masks_of(masks, first), *b = masks_of(masks, second);
	assert_ptr_not_equal(a, b);
	assert_ptr_equal(a, masks_of(masks, first));
	assert_null(masks_of(masks, third));
	masks_begin(masks, 1);
	assert_non_null(masks_of(masks, third));
	masks_free(&masks);
	rig_close(&rig);
	close_model(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(masks_are_what_the_tokens_say),
		cmocka_unit_test(a_text_is_split_into_the_longest_tokens),
		cmocka_unit_test(masks_stay_until_the_next_begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
