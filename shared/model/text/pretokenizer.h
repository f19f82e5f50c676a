/*
 * The pre-tokenizer: cuts a text into words, across whose boundaries BPE never merges, by the
 * expressions for the name in tokenizer.ggml.pre. Read-only after creation; each call of
 * tokenizer_encode has scratch of its own.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct pretokenizer;

/* The normal form into which a text is brought before it is cut (Unicode Standard Annex #15). */
enum normalization { NORMALIZATION_NONE = 0, NORMALIZATION_NFC, NORMALIZATION_NFKC };

/* name has no NUL. An unknown name is refused with a list of the known ones. */
int pretokenizer_create(
	const char *name, size_t bytes, struct pretokenizer **out, struct error *err);
void pretokenizer_free(struct pretokenizer **pretokenizer);

/* True when a word that is itself a token becomes that token, whatever the merges say. */
bool pretokenizer_ignore_merges(const struct pretokenizer *pretokenizer);
/* True when a missing tokenizer.ggml.add_bos_token means true. */
bool pretokenizer_adds_bos(const struct pretokenizer *pretokenizer);

enum normalization pretokenizer_normalization(const struct pretokenizer *pretokenizer);

struct pretokenizer_scratch;

int pretokenizer_scratch_create(struct pretokenizer_scratch **out, struct error *err);
void pretokenizer_scratch_free(struct pretokenizer_scratch **scratch);

/* Calls word(arg, ...) for each word of text in order; together they are the whole text. Stops at
 * the first call that does not return 0, and returns its value. Bytes that are not UTF-8 are words
 * of their own. */
int pretokenizer_split(const struct pretokenizer *pretokenizer,
	struct pretokenizer_scratch *scratch, const char *text, size_t bytes,
	int (*word)(void *arg, const char *text, size_t bytes), void *arg, struct error *err);
