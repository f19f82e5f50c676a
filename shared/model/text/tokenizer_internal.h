/* Shared by the files tokenizer*.c; no other file includes it. */
#pragma once

#include "shared/model/text/pretokenizer.h"
#include "shared/model/text/tokenizer.h"

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

/* Tokens that are searched for at each byte of a text: ids sorted by their strings, each string
 * once. */
struct token_list {
	const struct gguf_string *strings; /* [n_vocab] */
	int32_t *ids;
	uint32_t n;
	bool first[256]; /* some string begins with this byte */
};

struct tokenizer {
	bool spm; /* SentencePiece; else byte-level BPE */
	uint32_t n_vocab;
	char *text; /* owned; pieces and texts point into it */
	struct gguf_string *texts; /* [n_vocab] as the file writes them */
	struct gguf_string *pieces; /* [n_vocab] the bytes they stand for */
	uint8_t *types; /* [n_vocab] */
	bool *eog; /* [n_vocab] */
	int32_t *words; /* hash of pieces -> id, -1 in an empty slot; n_words is a power of two */
	size_t n_words;
	size_t longest_word; /* bytes */
	int32_t byte_ids[256]; /* -1 if the vocabulary lacks the byte */
	struct token_list specials; /* types 2, 3, 4, by their texts */
	int32_t bos; /* -1: none is added */
	int32_t unknown; /* -1: none */
	/* random, for the hashes, so that a file cannot be made whose strings collide */
	uint64_t seed;
	uint64_t fingerprint;
	/* For BPE. */
	struct pretokenizer *pretokenizer;
	struct merge *merges; /* hash of pairs; n_merges is a power of two */
	size_t n_merges;
	/* For SentencePiece. */
	/* [n_vocab] rank of a merge into this token: smaller ones are done first (falling score) */
	uint32_t *order;
	uint32_t n_trained; /* ids from here on were added to the trained vocabulary */
	/* trained user-defined tokens, by their pieces: never merged with a neighbour */
	struct token_list symbols;
	bool add_space;
	bool *strips; /* [n_vocab] the token includes the spaces behind it; NULL: none does */
};

/* The slot of a word or pair in its hash table, or the empty slot where it would be put. Both
 * tables are at most half full, so a search ends. */
size_t tokenizer_word_slot(const struct tokenizer *tokenizer, const char *bytes, size_t n);
struct merge *tokenizer_merge_slot(const struct tokenizer *tokenizer, int32_t left, int32_t right);
/* Id of the ordinary token that stands for these bytes, or -1. */
int32_t tokenizer_find_word(const struct tokenizer *tokenizer, const char *bytes, size_t n);
/* NULL when the pair does not merge. */
const struct merge *tokenizer_find_merge(
	const struct tokenizer *tokenizer, int32_t left, int32_t right);

/* The longest of the list's strings with which text begins: its id, or -1. bytes > 0. usable is
 * called with the id and the length, and returns true if the string counts (NULL: all count). */
int32_t token_list_match(const struct token_list *list, const char *text, size_t bytes,
	bool (*usable)(const void *arg, int32_t id, size_t bytes), const void *arg);

/* Appends an id as tokenizer_encode does. */
struct token_sink {
	int32_t **ids;
	size_t *n, *capacity;
	struct error *err;
};
int token_sink_put(struct token_sink *sink, int32_t id);

/* Pairs that may be merged, the smallest first. */
struct merge_heap {
	uint64_t *items;
	size_t n, capacity;
};
/* Makes room for n; -ENOMEM. */
int merge_heap_reserve(struct merge_heap *heap, size_t n);
void merge_heap_push(struct merge_heap *heap, uint64_t item);
uint64_t merge_heap_pop(struct merge_heap *heap);

/* Encodes the text between two special tokens, which is normalised separately. One encoder serves
 * all such texts of a call. */
struct bpe_encoder;
int bpe_encoder_create(const struct tokenizer *tokenizer, struct token_sink *sink,
	struct bpe_encoder **out, struct error *err);
void bpe_encoder_free(struct bpe_encoder **encoder);
int bpe_encode(struct bpe_encoder *encoder, const char *text, size_t bytes);

struct spm_encoder;
int spm_encoder_create(const struct tokenizer *tokenizer, struct token_sink *sink,
	struct spm_encoder **out, struct error *err);
void spm_encoder_free(struct spm_encoder **encoder);
/* prefix: a space comes before the text. */
int spm_encode(struct spm_encoder *encoder, const char *text, size_t bytes, bool prefix);

/* In the chains of symbols of both encoders: there is no neighbour. */
#define SYMBOL_NONE UINT32_MAX
/* Symbols are numbered with 32 bits, and a byte may become three of them. */
#define SYMBOLS_MAX (UINT32_MAX / 4)
