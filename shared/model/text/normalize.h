/*
 * Unicode normalisation of a text before it is tokenized (Unicode Standard Annex #15, with
 * utf8proc's data). Time and memory are linear in the text, however long a sequence of combining
 * marks is. Bytes that are not UTF-8 are unchanged, and nothing composes across them.
 * tokenizer_bpe.c calls this, on any thread, with a normalizer for each call of tokenizer_encode.
 */
#pragma once

#include "shared/model/text/pretokenizer.h"

#include <stdint.h>

/* Scratch memory that is reused from text to text: zero it first. */
struct normalizer {
	char *text; /* the last result, unless the text was normal already */
	size_t bytes, capacity;
	int32_t *characters, *sorted;
	size_t n, n_capacity, sorted_capacity;
};

/* *out, of *out_bytes, is the text itself, or memory of the normalizer that is valid until its next
 * call. 0 or -errno. */
int normalize(struct normalizer *normalizer, enum normalization form, const char *text,
	size_t bytes, const char **out, size_t *out_bytes);
void normalizer_free(struct normalizer *normalizer);
