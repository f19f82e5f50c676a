/*
 * Byte-level BPE: text is cut into words, and each word's bytes are merged, lowest rank first, ties
 * leftmost. A word of n bytes takes O(n log n) steps: its pairs wait in a heap ordered by rank and
 * then place.
 */
#include "shared/base/utf8.h"
#include "shared/model/text/normalize.h"
#include "shared/model/text/tokenizer_internal.h"

#include <stdlib.h>

struct symbol {
	int32_t id; /* -1: merged into the symbol before it */
	uint32_t previous, next;
};

struct bpe_encoder {
	const struct tokenizer *tokenizer;
	struct token_sink *sink;
	struct pretokenizer_scratch *scratch;
	struct normalizer normalizer;
	struct symbol *symbols;
	size_t n, capacity;
	struct merge_heap heap; /* rank << 32 | index of the pair's left symbol */
};

int bpe_encoder_create(const struct tokenizer *tokenizer, struct token_sink *sink,
	struct bpe_encoder **out, struct error *err)
{
	struct bpe_encoder *e = calloc(1, sizeof(*e));
	*out = e;
	if (!e)
		return error_set(err, ENOMEM, "no memory to tokenize");
	e->tokenizer = tokenizer;
	e->sink = sink;
	return pretokenizer_scratch_create(&e->scratch, err);
}

void bpe_encoder_free(struct bpe_encoder **encoder)
{
	struct bpe_encoder *e = *encoder;
	if (!e)
		return;
	pretokenizer_scratch_free(&e->scratch);
	normalizer_free(&e->normalizer);
	free(e->symbols);
	free(e->heap.items);
	free(e);
	*encoder = NULL;
}

/* A merge removes one pair and adds at most two, so for a word of n symbols at most 2n pairs wait.
 */
static int reserve(struct bpe_encoder *e, size_t n)
{
	if (n > e->capacity) {
		size_t capacity = n < 256 ? 256 : n;
		struct symbol *symbols = realloc(e->symbols, capacity * sizeof(*symbols));
		if (!symbols)
			return error_set(e->sink->err, ENOMEM, "no memory to tokenize");
		e->symbols = symbols;
		e->capacity = capacity;
	}
	if (merge_heap_reserve(&e->heap, 2 * n))
		return error_set(e->sink->err, ENOMEM, "no memory to tokenize");
	return 0;
}

static const struct merge *merge_at(const struct bpe_encoder *e, uint32_t left)
{
	const struct symbol *s = &e->symbols[left];
	if (s->next == SYMBOL_NONE)
		return NULL;
	return tokenizer_find_merge(e->tokenizer, s->id, e->symbols[s->next].id);
}

static void push_pair(struct bpe_encoder *e, uint32_t left)
{
	const struct merge *m = merge_at(e, left);
	if (m)
		merge_heap_push(&e->heap, (uint64_t)m->rank << 32 | left);
}

static void merge_symbols(struct bpe_encoder *e)
{
	while (e->heap.n) {
		uint64_t item = merge_heap_pop(&e->heap);
		uint32_t left = (uint32_t)item;
		struct symbol *s = &e->symbols[left];
		/* The pair may have changed since it was pushed: a symbol that was merged away has
		 * id -1, and a different pair has a different rank. */
		const struct merge *m = s->id < 0 ? NULL : merge_at(e, left);
		if (!m || m->rank != item >> 32)
			continue;
		struct symbol *right = &e->symbols[s->next];
		s->id = m->result;
		s->next = right->next;
		right->id = -1;
		if (s->next != SYMBOL_NONE)
			e->symbols[s->next].previous = left;
		if (s->previous != SYMBOL_NONE)
			push_pair(e, s->previous);
		push_pair(e, left);
	}
}

static void add_symbol(struct bpe_encoder *e, int32_t id)
{
	uint32_t i = (uint32_t)e->n++;
	e->symbols[i] = (struct symbol){id, i ? i - 1 : SYMBOL_NONE, SYMBOL_NONE};
	if (i)
		e->symbols[i - 1].next = i;
}

/* Called for a byte that the vocabulary lacks. The unknown token stands for it. If there is none,
 * the byte is left out, as in Hugging Face's tokenizers. But if it is not UTF-8, the replacement
 * character stands for it, as far as the vocabulary has that. */
static void add_missing(struct bpe_encoder *e, bool valid)
{
	static const unsigned char replacement[] = {0xef, 0xbf, 0xbd};
	const struct tokenizer *t = e->tokenizer;
	if (t->unknown >= 0)
		add_symbol(e, t->unknown);
	for (int i = 0; t->unknown < 0 && !valid && i < 3; i++)
		if (t->byte_ids[replacement[i]] >= 0)
			add_symbol(e, t->byte_ids[replacement[i]]);
}

static int encode_word(void *arg, const char *text, size_t bytes)
{
	struct bpe_encoder *e = arg;
	const struct tokenizer *t = e->tokenizer;
	size_t missing = 0;
	if (pretokenizer_ignore_merges(t->pretokenizer)) {
		int32_t id = tokenizer_find_word(t, text, bytes);
		if (id >= 0)
			return token_sink_put(e->sink, id);
	}
	for (size_t i = 0; i < bytes; i++)
		missing += t->byte_ids[(unsigned char)text[i]] < 0;
	int rc = reserve(e, bytes + 2 * missing);
	if (rc)
		return rc;
	/* A word is valid, or has no valid character. */
	bool valid = utf8_sequence(text, bytes) > 0;
	e->n = e->heap.n = 0;
	for (size_t i = 0; i < bytes; i++) {
		int32_t id = t->byte_ids[(unsigned char)text[i]];
		if (id < 0)
			add_missing(e, valid);
		else
			add_symbol(e, id);
	}
	for (size_t i = 0; i < e->n; i++)
		push_pair(e, (uint32_t)i);
	merge_symbols(e);
	/* The first symbol is never the right one of a pair, so the chain begins there. */
	for (uint32_t i = e->n ? 0 : SYMBOL_NONE; !rc && i != SYMBOL_NONE; i = e->symbols[i].next)
		rc = token_sink_put(e->sink, e->symbols[i].id);
	return rc;
}

int bpe_encode(struct bpe_encoder *encoder, const char *text, size_t bytes)
{
	const struct pretokenizer *p = encoder->tokenizer->pretokenizer;
	struct error *err = encoder->sink->err;
	int rc = normalize(
		&encoder->normalizer, pretokenizer_normalization(p), text, bytes, &text, &bytes);
	if (rc)
		return error_set(err, -rc, "no memory to tokenize a text of %zu bytes", bytes);
	if (bytes > SYMBOLS_MAX)
		return error_set(err, E2BIG, "a text of %zu bytes is too long to tokenize", bytes);
	return pretokenizer_split(p, encoder->scratch, text, bytes, encode_word, encoder, err);
}
