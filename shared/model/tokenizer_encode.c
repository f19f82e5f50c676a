/*
 * Text -> ids: special tokens first (leftmost, then longest), the text between them into words, each word by merges.
 * A word takes O(n log n) steps: its pairs wait in a heap ordered by rank and then place.
 */
#include "shared/model/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

struct symbol {
	int32_t id;
	uint32_t previous, next; /* SYMBOL_NONE at the ends */
};

#define SYMBOL_NONE UINT32_MAX

struct encoder {
	const struct tokenizer *tokenizer;
	struct pretokenizer_scratch *scratch;
	struct symbol *symbols;
	size_t symbols_capacity;
	uint64_t *heap; /* rank << 32 | index of the pair's left symbol */
	size_t n_heap, heap_capacity;
	int32_t **ids;
	size_t *n, *capacity;
	struct error *err;
};

static int no_memory(struct encoder *e)
{
	return error_set(e->err, ENOMEM, "no memory to tokenize");
}

static int append(struct encoder *e, int32_t id)
{
	if (*e->n == *e->capacity) {
		size_t capacity = *e->capacity ? 2 * *e->capacity : 64;
		int32_t *ids = realloc(*e->ids, capacity * sizeof(*ids));
		if (!ids)
			return no_memory(e);
		*e->ids = ids;
		*e->capacity = capacity;
	}
	(*e->ids)[(*e->n)++] = id;
	return 0;
}

/* A merge takes one pair out and puts at most two in, so a word of n bytes never has more than 2n waiting. */
static int reserve(struct encoder *e, size_t n)
{
	if (n > e->symbols_capacity) {
		size_t capacity = n < 256 ? 256 : n;
		struct symbol *symbols = realloc(e->symbols, capacity * sizeof(*symbols));
		if (!symbols)
			return no_memory(e);
		e->symbols = symbols;
		e->symbols_capacity = capacity;
	}
	if (2 * n > e->heap_capacity) {
		size_t capacity = n < 256 ? 512 : 2 * n;
		uint64_t *heap = realloc(e->heap, capacity * sizeof(*heap));
		if (!heap)
			return no_memory(e);
		e->heap = heap;
		e->heap_capacity = capacity;
	}
	return 0;
}

static void heap_push(struct encoder *e, uint64_t item)
{
	size_t i = e->n_heap++;
	while (i > 0 && e->heap[(i - 1) / 2] > item) {
		e->heap[i] = e->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	e->heap[i] = item;
}

static uint64_t heap_pop(struct encoder *e)
{
	uint64_t top = e->heap[0], item = e->heap[--e->n_heap];
	size_t i = 0;
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= e->n_heap)
			break;
		if (child + 1 < e->n_heap && e->heap[child + 1] < e->heap[child])
			child++;
		if (e->heap[child] >= item)
			break;
		e->heap[i] = e->heap[child];
		i = child;
	}
	e->heap[i] = item;
	return top;
}

static const struct merge *merge_at(const struct encoder *e, uint32_t left)
{
	const struct symbol *s = &e->symbols[left];
	if (s->next == SYMBOL_NONE)
		return NULL;
	return tokenizer_find_merge(e->tokenizer, s->id, e->symbols[s->next].id);
}

static void push_pair(struct encoder *e, uint32_t left)
{
	const struct merge *m = merge_at(e, left);
	if (m)
		heap_push(e, (uint64_t)m->rank << 32 | left);
}

static void merge_symbols(struct encoder *e)
{
	while (e->n_heap) {
		uint64_t item = heap_pop(e);
		uint32_t left = (uint32_t)item;
		struct symbol *s = &e->symbols[left];
		/* The pair may have changed since it was pushed: a symbol that was merged away has id -1, and a
		 * different pair has a different rank. */
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

static int encode_word(void *arg, const char *text, size_t bytes)
{
	struct encoder *e = arg;
	const struct tokenizer *t = e->tokenizer;
	if (pretokenizer_ignore_merges(t->pretokenizer)) {
		int32_t id = tokenizer_find_word(t, text, bytes);
		if (id >= 0)
			return append(e, id);
	}
	int rc = reserve(e, bytes);
	if (rc)
		return rc;
	for (size_t i = 0; i < bytes; i++) {
		int32_t id = t->byte_ids[(unsigned char)text[i]];
		if (id < 0)
			return error_set(e->err, EILSEQ,
				"the vocabulary has no token for byte 0x%02x",
				(unsigned char)text[i]);
		e->symbols[i] = (struct symbol){
			.id = id,
			.previous = i ? (uint32_t)i - 1 : SYMBOL_NONE,
			.next = i + 1 < bytes ? (uint32_t)i + 1 : SYMBOL_NONE,
		};
	}
	e->n_heap = 0;
	for (size_t i = 0; i < bytes; i++)
		push_pair(e, (uint32_t)i);
	merge_symbols(e);
	/* The first symbol is only ever the left of a pair, so the chain starts there. */
	for (uint32_t i = 0; !rc && i != SYMBOL_NONE; i = e->symbols[i].next)
		rc = append(e, e->symbols[i].id);
	return rc;
}

/* The first of specials[low..high-1] whose byte at depth is not below byte (strict: above it). All of them share
 * their first depth bytes; shorter texts sort before longer ones. */
static uint32_t special_bound(const struct tokenizer *t, uint32_t low, uint32_t high, size_t depth,
	unsigned byte, bool strict)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		struct gguf_string s = t->texts[t->specials[middle]];
		bool below = s.bytes <= depth;
		if (!below) {
			unsigned b = (unsigned char)s.data[depth];
			below = strict ? b <= byte : b < byte;
		}
		if (below)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The longest special token at the start of text that may be used; its id or -1. */
static int32_t match_special(
	const struct tokenizer *t, const char *text, size_t bytes, bool special)
{
	int32_t best = -1;
	uint32_t low = 0, high = t->n_specials;
	if (!t->special_first[(unsigned char)text[0]])
		return -1;
	for (size_t depth = 0; low < high; depth++) {
		/* A text of just these bytes comes first in the range. */
		int32_t id = t->specials[low];
		if (depth > 0 && t->texts[id].bytes == depth &&
			(special || t->types[id] == TOKEN_USER_DEFINED))
			best = id;
		if (depth == bytes)
			break;
		unsigned byte = (unsigned char)text[depth];
		low = special_bound(t, low, high, depth, byte, false);
		high = special_bound(t, low, high, depth, byte, true);
	}
	return best;
}

static int encode_text(struct encoder *e, const char *text, size_t bytes, bool special)
{
	size_t start = 0;
	for (size_t at = 0; at < bytes;) {
		int32_t id = match_special(e->tokenizer, text + at, bytes - at, special);
		if (id < 0) {
			at++;
			continue;
		}
		int rc = pretokenizer_split(e->tokenizer->pretokenizer, e->scratch, text + start,
			at - start, encode_word, e, e->err);
		if (!rc)
			rc = append(e, id);
		if (rc)
			return rc;
		at += e->tokenizer->texts[id].bytes;
		start = at;
	}
	return pretokenizer_split(e->tokenizer->pretokenizer, e->scratch, text + start,
		bytes - start, encode_word, e, e->err);
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
	bool special, int32_t **ids, size_t *n, size_t *capacity, struct error *err)
{
	struct encoder e = {
		.tokenizer = tokenizer, .ids = ids, .n = n, .capacity = capacity, .err = err};
	size_t before = *n;
	/* Symbols are numbered with 32 bits. */
	if (bytes > UINT32_MAX / 2)
		return error_set(err, E2BIG, "a text of %zu bytes is too long to tokenize", bytes);
	int rc = pretokenizer_scratch_create(&e.scratch, err);
	if (!rc)
		rc = encode_text(&e, text, bytes, special);
	if (rc)
		*n = before;
	pretokenizer_scratch_free(&e.scratch);
	free(e.symbols);
	free(e.heap);
	return rc;
}
