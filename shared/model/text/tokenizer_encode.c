/*
 * From text to ids: finds special tokens (leftmost, then longest), and encodes the text between
 * them by the vocabulary's kind (tokenizer_bpe.c, tokenizer_spm.c).
 */
#include "shared/model/text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

struct encoder {
	const struct tokenizer *tokenizer;
	const char *text;
	size_t bytes;
	bool special; /* control tokens are recognised everywhere */
	const uint8_t *literal; /* or only where these are set; NULL: nowhere */
	size_t at;
	bool prefix; /* at the beginning, or after a special token */
	struct bpe_encoder *bpe;
	struct spm_encoder *spm;
	struct token_sink sink;
};

int token_sink_put(struct token_sink *sink, int32_t id)
{
	if (*sink->n == *sink->capacity) {
		size_t capacity = *sink->capacity ? 2 * *sink->capacity : 64;
		int32_t *ids = realloc(*sink->ids, capacity * sizeof(*ids));
		if (!ids)
			return error_set(sink->err, ENOMEM, "no memory to tokenize");
		*sink->ids = ids;
		*sink->capacity = capacity;
	}
	(*sink->ids)[(*sink->n)++] = id;
	return 0;
}

/* Whether a special token may be recognised at the encoder's place. */
static bool usable(const void *arg, int32_t id, size_t bytes)
{
	const struct encoder *e = arg;
	const struct tokenizer *t = e->tokenizer;
	if (e->special || (e->literal && !memchr(e->literal + e->at, 0, bytes)))
		return true;
	/* SentencePiece's own user-defined tokens do not end the text before them; tokenizer_spm.c
	 * handles them. */
	return t->types[id] == TOKEN_USER_DEFINED && !(t->spm && (uint32_t)id < t->n_trained);
}

static int encode_between(struct encoder *e, size_t from, size_t to)
{
	if (from == to)
		return 0;
	bool prefix = e->prefix && e->tokenizer->add_space;
	e->prefix = false;
	return e->spm ? spm_encode(e->spm, e->text + from, to - from, prefix)
		      : bpe_encode(e->bpe, e->text + from, to - from);
}

/* White space as in C: special tokens of the Phi-3 tokenizers include the white space behind them.
 */
static bool space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static int encode_text(struct encoder *e)
{
	const struct tokenizer *t = e->tokenizer;
	size_t start = 0;
	e->prefix = true;
	for (e->at = 0; e->at < e->bytes;) {
		int32_t id = token_list_match(
			&t->specials, e->text + e->at, e->bytes - e->at, usable, e);
		if (id < 0) {
			e->at++;
			continue;
		}
		int rc = encode_between(e, start, e->at);
		if (!rc)
			rc = token_sink_put(&e->sink, id);
		if (rc)
			return rc;
		e->at += t->texts[id].bytes;
		while (t->strips && t->strips[id] && e->at < e->bytes && space(e->text[e->at]))
			e->at++;
		start = e->at;
		e->prefix = true;
	}
	return encode_between(e, start, e->bytes);
}

static int encode(struct encoder *e)
{
	size_t before = *e->sink.n;
	if (e->bytes > SYMBOLS_MAX)
		return error_set(e->sink.err, E2BIG, "a text of %zu bytes is too long to tokenize",
			e->bytes);
	int rc = e->tokenizer->spm
			 ? spm_encoder_create(e->tokenizer, &e->sink, &e->spm, e->sink.err)
			 : bpe_encoder_create(e->tokenizer, &e->sink, &e->bpe, e->sink.err);
	if (!rc)
		rc = encode_text(e);
	if (rc)
		*e->sink.n = before;
	spm_encoder_free(&e->spm);
	bpe_encoder_free(&e->bpe);
	return rc;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
	bool special, int32_t **ids, size_t *n, size_t *capacity, struct error *err)
{
	struct encoder e = {.tokenizer = tokenizer,
		.text = text,
		.bytes = bytes,
		.special = special,
		.sink = {ids, n, capacity, err}};
	return encode(&e);
}

int tokenizer_encode_rendered(const struct tokenizer *tokenizer, const char *text, size_t bytes,
	const uint8_t *literal, int32_t **ids, size_t *n, size_t *capacity, struct error *err)
{
	struct encoder e = {.tokenizer = tokenizer,
		.text = text,
		.bytes = bytes,
		.literal = literal,
		.sink = {ids, n, capacity, err}};
	return encode(&e);
}
