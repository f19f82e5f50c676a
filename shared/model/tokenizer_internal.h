/* What tokenizer.c (loading, look-ups) and tokenizer_encode.c share; nobody else includes this. */
#pragma once

#include "shared/model/pretokenizer.h"
#include "shared/model/tokenizer.h"

enum token_type {
	TOKEN_UNDEFINED = 0,
	TOKEN_NORMAL = 1,
	TOKEN_UNKNOWN = 2,
	TOKEN_CONTROL = 3,
	TOKEN_USER_DEFINED = 4,
	TOKEN_UNUSED = 5,
	TOKEN_BYTE = 6,
};

struct merge {
	uint64_t pair; /* left id << 32 | right id; MERGE_NONE in an empty slot */
	uint32_t rank;
	int32_t result;
};

#define MERGE_NONE UINT64_MAX

struct tokenizer {
	struct pretokenizer *pretokenizer;
	uint32_t n_vocab;
	char *text; /* what pieces and texts point into */
	struct gguf_string *texts; /* [n_vocab] as the file writes them */
	struct gguf_string *pieces; /* [n_vocab] the bytes they stand for */
	uint8_t *types; /* [n_vocab] */
	bool *eog; /* [n_vocab] */
	int32_t *words; /* hash of pieces -> id, -1 in an empty slot; n_words is a power of two */
	size_t n_words;
	struct merge *merges; /* hash of pairs; n_merges is a power of two */
	size_t n_merges;
	int32_t byte_ids[256]; /* -1 where the vocabulary lacks the byte */
	int32_t *specials; /* ids of types 2, 3, 4, sorted by text, each text once */
	uint32_t n_specials;
	bool special_first[256]; /* some special begins with this byte */
	int32_t bos; /* -1 when none is to be added */
	uint64_t seed; /* of the hashes: a file cannot know which of its strings collide */
	uint64_t fingerprint;
};

/* Where a word or pair is in its hash, or where it would go: both are at most half full, so a search ends. */
size_t tokenizer_word_slot(const struct tokenizer *tokenizer, const char *bytes, size_t n);
struct merge *tokenizer_merge_slot(const struct tokenizer *tokenizer, int32_t left, int32_t right);
/* Id of the ordinary token that stands for these bytes, or -1. */
int32_t tokenizer_find_word(const struct tokenizer *tokenizer, const char *bytes, size_t n);
/* NULL when the pair does not merge. */
const struct merge *tokenizer_find_merge(
	const struct tokenizer *tokenizer, int32_t left, int32_t right);
