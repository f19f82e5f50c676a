/*
 * The pre-tokenizer: cuts text into the words that BPE never merges across, by the expressions that
 * tokenizer.ggml.pre names. Read-only after creation; the scratch belongs to one call of tokenizer_encode.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct pretokenizer;

/* What is done to text before it is cut (Unicode Standard Annex #15). */
enum normalization { NORMALIZATION_NONE = 0, NORMALIZATION_NFC, NORMALIZATION_NFKC };

/* name is not terminated. An unknown one is refused with the list of those there are. */
int pretokenizer_create(
	const char *name, size_t bytes, struct pretokenizer **out, struct error *err);
void pretokenizer_free(struct pretokenizer **pretokenizer);

/* A word that is itself a token is that token, without looking at merges. */
bool pretokenizer_ignore_merges(const struct pretokenizer *pretokenizer);
/* Whether files without tokenizer.ggml.add_bos_token mean true. */
bool pretokenizer_adds_bos(const struct pretokenizer *pretokenizer);

enum normalization pretokenizer_normalization(const struct pretokenizer *pretokenizer);

struct pretokenizer_scratch;

int pretokenizer_scratch_create(struct pretokenizer_scratch **out, struct error *err);
void pretokenizer_scratch_free(struct pretokenizer_scratch **scratch);

/* Calls word(arg, ...) for each word of text in order; together they are the text. Stops at the first word that
 * returns not 0, and returns that. Bytes that are not UTF-8 are words of their own. */
int pretokenizer_split(const struct pretokenizer *pretokenizer,
	struct pretokenizer_scratch *scratch, const char *text, size_t bytes,
	int (*word)(void *arg, const char *text, size_t bytes), void *arg, struct error *err);
