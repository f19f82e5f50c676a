/*
 * usage: grammar-sample MODEL SCHEMA N: N documents by chance that masks alone keep within the schema in the file, one JSON string
 * each line, and how many were not finished after so many tokens, which are left out. For generate.t, which validates them.
 */
#include "shared/base/rand.h"
#include "shared/model/grammar/vocab.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 3000, TEXT = 1 << 20 };

struct sample {
	struct gguf *gguf;
	struct tokenizer *tokenizer;
	struct vocab *vocab;
	struct grammar *grammar;
	struct matcher *matcher;
	struct masks *masks;
};

/* By chance; the longer the text, the likelier an end where it may end, and a short token, so that it comes to one. */
static int32_t draw(struct sample *s, const uint64_t *mask, uint64_t seed, uint32_t at)
{
	uint32_t n_vocab = tokenizer_n_vocab(s->tokenizer);
	double best = -1e9;
	int32_t token = -1;

	for (int32_t i = 0; i < (int32_t)n_vocab; i++) {
		struct gguf_string text = tokenizer_piece(s->tokenizer, i, false);
		double value;

		if ((mask[i / 64] >> (i % 64) & 1) == 0)
			continue;
		value = rand_uniform(seed, RAND_GUMBEL, at, (uint32_t)i);
		if (text.bytes > 0 && strchr("\"}]", text.data[text.bytes - 1]) != NULL)
			value += at * 0.01;
		if (value > best) {
			best = value;
			token = i;
		}
	}
	return token;
}

static bool document(struct sample *s, uint64_t seed, char *text)
{
	uint32_t state = matcher_start(s->matcher);
	size_t n = 0;

	for (uint32_t at = 0; at < TOKENS && !matcher_must_end(s->matcher, state); at++) {
		masks_begin(s->masks, 1);
		const uint64_t *mask = masks_of(s->masks, state);
		if (mask == NULL)
			exit(3);
		int32_t token = draw(s, mask, seed, at);
		if (token < 0)
			exit(4);
		if (tokenizer_is_eog(s->tokenizer, token))
			break;
		struct gguf_string piece = tokenizer_piece(s->tokenizer, token, false);
		memcpy(text + n, piece.data, piece.bytes);
		n += piece.bytes;
		state = vocab_token(s->vocab, s->matcher, state, token);
	}
	text[n] = 0;
	return matcher_can_end(s->matcher, state);
}

static int open_all(struct sample *s, char **argv, struct error *err)
{
	json_error_t at;
	json_t *schema = json_load_file(argv[2], JSON_DECODE_ANY, &at);
	char *source = schema != NULL ? json_dumps(schema, JSON_ENCODE_ANY) : NULL;
	int rc = source != NULL ? 0 : error_set(err, EINVAL, "%s", at.text);

	if (rc == 0)
		rc = gguf_open(argv[1], &s->gguf, err);
	if (rc == 0)
		rc = tokenizer_load(s->gguf, &s->tokenizer, err);
	if (rc == 0)
		rc = grammar_compile(GRAMMAR_JSON_SCHEMA, source, strlen(source), &s->grammar, err);
	if (rc == 0)
		rc = vocab_create(s->tokenizer, 0, &s->vocab);
	if (rc == 0)
		rc = matcher_create(s->grammar, MATCHER_BYTES_DEFAULT, &s->matcher);
	if (rc == 0)
		rc = masks_create(s->vocab, s->matcher, 1024, &s->masks);
	free(source);
	json_decref(schema);
	return rc;
}

int main(int argc, char **argv)
{
	struct sample s = {0};
	struct error err = {""};
	char *text = malloc(TEXT);
	int unfinished = 0;

	if (argc != 4 || text == NULL || open_all(&s, argv, &err) != 0) {
		fprintf(stderr, "grammar-sample: %s\n", err.text);
		return 2;
	}
	for (int i = 0; i < atoi(argv[3]); i++) {
		if (document(&s, (uint64_t)i, text)) {
			json_t *line = json_stringn(text, strlen(text));
			char *written = json_dumps(line, JSON_ENCODE_ANY);

			printf("%s\n", written != NULL ? written : "null");
			free(written);
			json_decref(line);
		} else {
			unfinished++;
		}
	}
	fprintf(stderr, "%d unfinished\n", unfinished);
	masks_free(&s.masks);
	matcher_free(&s.matcher);
	vocab_free(&s.vocab);
	grammar_free(&s.grammar);
	tokenizer_free(&s.tokenizer);
	gguf_close(&s.gguf);
	free(text);
	return 0;
}
