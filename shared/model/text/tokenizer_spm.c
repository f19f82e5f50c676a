/*
 * SentencePiece's BPE: the characters of a text are merged, the pair with the best score first, of
 * equal ones the leftmost. A character that is no piece is written as its bytes. There are no
 * words, so a text of n bytes is one chain, which takes O(n log n) steps.
 *
 * Pieces write a space as U+2581. Here both the pieces (when loaded) and the text have a plain
 * space instead.
 */
#include "shared/base/utf8.h"
#include "shared/model/text/tokenizer_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPACE_MARK "\xe2\x96\x81"

struct symbol {
	uint32_t at, bytes; /* in the text; 0 bytes: merged into the symbol before it */
	uint32_t previous, next;
	int32_t id; /* a user-defined token, which is never merged; else -1 */
};

struct span {
	uint32_t at, bytes;
};

struct spm_encoder {
	const struct tokenizer *tokenizer;
	struct token_sink *sink;
	char *text;
	uint32_t n_text;
	size_t text_capacity;
	struct symbol *symbols;
	size_t n, capacity;
	struct merge_heap heap; /* order << 32 | index of the pair's left symbol */
	/* [n_vocab] for unused pieces: the bytes of the left part of the last pair that would have
	 * made it; NULL before the first. */
	uint32_t *left_bytes;
	struct span *stack; /* the parts of an unused piece that are still to be written */
	size_t stack_capacity;
	bool unknown; /* the last token was the unknown one */
};

static int no_memory(struct spm_encoder *e)
{
	return error_set(e->sink->err, ENOMEM, "no memory to tokenize");
}

int spm_encoder_create(const struct tokenizer *tokenizer, struct token_sink *sink,
	struct spm_encoder **out, struct error *err)
{
	struct spm_encoder *e = calloc(1, sizeof(*e));
	*out = e;
	if (!e)
		return error_set(err, ENOMEM, "no memory to tokenize");
	e->tokenizer = tokenizer;
	e->sink = sink;
	return 0;
}

void spm_encoder_free(struct spm_encoder **encoder)
{
	struct spm_encoder *e = *encoder;
	if (!e)
		return;
	free(e->text);
	free(e->symbols);
	free(e->heap.items);
	free(e->left_bytes);
	free(e->stack);
	free(e);
	*encoder = NULL;
}

size_t spm_plain_spaces(const char *text, size_t bytes, char *out)
{
	size_t n = 0;
	for (size_t at = 0; at < bytes;) {
		size_t length = utf8_sequence(text + at, bytes - at);
		if (length == 3 && memcmp(text + at, SPACE_MARK, 3) == 0) {
			out[n++] = ' ';
		} else {
			length = length ? length : 1;
			memmove(out + n, text + at, length);
			n += length;
		}
		at += length;
	}
	return n;
}

static int copy_text(struct spm_encoder *e, const char *text, size_t bytes, bool prefix)
{
	if (bytes + 1 > e->text_capacity) {
		char *copy = realloc(e->text, bytes + 1);
		if (!copy)
			return no_memory(e);
		e->text = copy;
		e->text_capacity = bytes + 1;
	}
	e->text[0] = ' ';
	e->n_text = (uint32_t)(prefix + spm_plain_spaces(text, bytes, e->text + (prefix ? 1 : 0)));
	return 0;
}

/* Cuts the text into characters, bytes that are not UTF-8, and user-defined tokens. */
static int cut(struct spm_encoder *e)
{
	if (e->n_text > e->capacity) {
		struct symbol *symbols = realloc(e->symbols, e->n_text * sizeof(*symbols));
		if (!symbols)
			return no_memory(e);
		e->symbols = symbols;
		e->capacity = e->n_text;
	}
	if (merge_heap_reserve(&e->heap, 2 * (size_t)e->n_text))
		return no_memory(e);
	e->n = e->heap.n = 0;
	for (uint32_t at = 0; at < e->n_text;) {
		const struct tokenizer *t = e->tokenizer;
		int32_t id =
			token_list_match(&t->symbols, e->text + at, e->n_text - at, NULL, NULL);
		size_t bytes =
			id >= 0 ? t->pieces[id].bytes : utf8_sequence(e->text + at, e->n_text - at);
		uint32_t i = (uint32_t)e->n++;
		e->symbols[i] = (struct symbol){
			.at = at,
			.bytes = bytes ? (uint32_t)bytes : 1,
			.previous = i ? i - 1 : SYMBOL_NONE,
			.next = SYMBOL_NONE,
			.id = id,
		};
		if (i)
			e->symbols[i - 1].next = i;
		at += e->symbols[i].bytes;
	}
	return 0;
}

/* The token that a symbol and the next one would form, or -1. */
static int32_t pair_at(const struct spm_encoder *e, uint32_t left)
{
	const struct symbol *s = &e->symbols[left];
	if (s->next == SYMBOL_NONE || s->id >= 0 || e->symbols[s->next].id >= 0)
		return -1;
	size_t bytes = (size_t)s->bytes + e->symbols[s->next].bytes;
	if (bytes > e->tokenizer->longest_word)
		return -1;
	return tokenizer_find_word(e->tokenizer, e->text + s->at, bytes);
}

static int push_pair(struct spm_encoder *e, uint32_t left)
{
	const struct tokenizer *t = e->tokenizer;
	int32_t id = pair_at(e, left);
	if (id < 0)
		return 0;
	if (t->types[id] == TOKEN_UNUSED) {
		if (!e->left_bytes)
			e->left_bytes = calloc(t->n_vocab, sizeof(*e->left_bytes));
		if (!e->left_bytes)
			return no_memory(e);
		e->left_bytes[id] = e->symbols[left].bytes;
	}
	merge_heap_push(&e->heap, (uint64_t)t->order[id] << 32 | left);
	return 0;
}

static int merge_symbols(struct spm_encoder *e)
{
	int rc = 0;
	while (!rc && e->heap.n) {
		uint64_t item = merge_heap_pop(&e->heap);
		uint32_t left = (uint32_t)item;
		struct symbol *s = &e->symbols[left];
		/* The pair may have changed since it was pushed. If another pair of the same score
		 * is at this place now, it is in the heap with the same number, so it does not
		 * matter which of the two is taken. */
		int32_t id = s->bytes ? pair_at(e, left) : -1;
		if (id < 0 || e->tokenizer->order[id] != item >> 32)
			continue;
		struct symbol *right = &e->symbols[s->next];
		s->bytes += right->bytes;
		s->next = right->next;
		right->bytes = 0;
		if (s->next != SYMBOL_NONE)
			e->symbols[s->next].previous = left;
		if (s->previous != SYMBOL_NONE)
			rc = push_pair(e, s->previous);
		if (!rc)
			rc = push_pair(e, left);
	}
	return rc;
}

/* Writes a character that is no piece: its bytes, or one unknown token for a run of such
 * characters. */
static int put_bytes(struct spm_encoder *e, const char *bytes, size_t n)
{
	const struct tokenizer *t = e->tokenizer;
	bool all = true;
	if (n == 1 && *bytes == ' ') {
		bytes = SPACE_MARK;
		n = 3;
	}
	for (size_t i = 0; i < n; i++)
		all &= t->byte_ids[(unsigned char)bytes[i]] >= 0;
	if (all) {
		int rc = 0;
		for (size_t i = 0; !rc && i < n; i++)
			rc = token_sink_put(e->sink, t->byte_ids[(unsigned char)bytes[i]]);
		e->unknown = false;
		return rc;
	}
	if (t->unknown < 0)
		return error_set(e->sink->err, EILSEQ,
			"the vocabulary has no token for byte 0x%02x and no unknown token",
			(unsigned char)bytes[0]);
	bool again = e->unknown;
	e->unknown = true;
	return again ? 0 : token_sink_put(e->sink, t->unknown);
}

static int push_span(struct spm_encoder *e, size_t *n, struct span span)
{
	if (*n == e->stack_capacity) {
		size_t capacity = *n ? 2 * *n : 16;
		struct span *stack = realloc(e->stack, capacity * sizeof(*stack));
		if (!stack)
			return no_memory(e);
		e->stack = stack;
		e->stack_capacity = capacity;
	}
	e->stack[(*n)++] = span;
	return 0;
}

/* Unused pieces only serve to form longer ones: those that are left are split into their parts
 * again. */
static int put_span(struct spm_encoder *e, struct span span)
{
	const struct tokenizer *t = e->tokenizer;
	size_t n = 0;
	int rc = push_span(e, &n, span);
	while (!rc && n) {
		span = e->stack[--n];
		const char *bytes = e->text + span.at;
		int32_t id = tokenizer_find_word(t, bytes, span.bytes);
		bool unused = id >= 0 && t->types[id] == TOKEN_UNUSED;
		uint32_t left = unused && e->left_bytes ? e->left_bytes[id] : 0;
		if (left) {
			rc = push_span(e, &n, (struct span){span.at + left, span.bytes - left});
			if (!rc)
				rc = push_span(e, &n, (struct span){span.at, left});
		} else if (id < 0 || unused) {
			rc = put_bytes(e, bytes, span.bytes);
		} else {
			e->unknown = false;
			rc = token_sink_put(e->sink, id);
		}
	}
	return rc;
}

int spm_encode(struct spm_encoder *encoder, const char *text, size_t bytes, bool prefix)
{
	struct spm_encoder *e = encoder;
	int rc = copy_text(e, text, bytes, prefix);
	if (!rc)
		rc = cut(e);
	for (size_t i = 0; !rc && i < e->n; i++)
		rc = push_pair(e, (uint32_t)i);
	if (!rc)
		rc = merge_symbols(e);
	e->unknown = false;
	/* The first symbol is never the right one of a pair, so the chain begins there. */
	for (uint32_t i = 0; !rc && i != SYMBOL_NONE; i = e->symbols[i].next) {
		const struct symbol *s = &e->symbols[i];
		if (s->id >= 0) {
			e->unknown = false;
			rc = token_sink_put(e->sink, s->id);
		} else {
			rc = put_span(e, (struct span){s->at, s->bytes});
		}
	}
	return rc;
}

/* Maps larger scores to smaller numbers. */
static uint32_t order_of(float score)
{
	uint32_t bits;
	score = score == 0 ? 0 : score; /* -0 is 0 */
	memcpy(&bits, &score, sizeof(bits));
	return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

int spm_load_scores(struct tokenizer *t, const struct gguf *gguf, struct error *err)
{
	const char *key = "tokenizer.ggml.scores";
	enum gguf_value_type type;
	uint64_t n;
	int rc = gguf_get_array(gguf, key, &type, &n, err);
	if (rc == -ENOENT)
		return error_set(err, EINVAL,
			"key %s is missing: a SentencePiece vocabulary is merged by its scores",
			key);
	if (rc)
		return rc;
	if (type != GGUF_F32 && type != GGUF_F64)
		return error_set(err, EINVAL, "key %s is an array, but not of floats", key);
	if (n != t->n_vocab)
		return error_set(err, EINVAL, "key %s has %llu elements for %u tokens", key,
			(unsigned long long)n, t->n_vocab);
	t->order = calloc(t->n_vocab, sizeof(*t->order));
	if (!t->order)
		return error_set(err, ENOMEM, "no memory for a tokenizer");
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		double score = gguf_array_f64(gguf, key, i);
		if (!isfinite(score))
			return error_set(err, EINVAL, "key %s: element %u is %g", key, i, score);
		t->order[i] = order_of((float)score);
	}
	return 0;
}
