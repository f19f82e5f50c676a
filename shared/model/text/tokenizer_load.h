/* Loads a tokenizer from metadata in steps, which tokenizer.c calls in the order below. Errors name
 * the key. */
#pragma once

#include "shared/model/text/tokenizer_internal.h"

/* Reads the keys for model and pre-tokenizer, and refuses kinds that are neither BPE nor
 * SentencePiece. */
int tokenizer_load_kind(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* Fills texts, pieces, types, byte_ids, the hash of words, and the token lists. */
int tokenizer_load_tokens(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* For BPE only. */
int tokenizer_load_merges(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* For SentencePiece only: fills order. */
int spm_load_scores(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* Fills bos, unknown, and the tokens that end a generation or include spaces; every special id must
 * be a token. */
int tokenizer_load_special_ids(struct tokenizer *t, const struct gguf *gguf, struct error *err);

/* Sorts the list's ids by their strings and keeps each string once. */
void token_list_sort(struct token_list *list);

/* Writes the bytes for which a token's text stands in byte-level BPE, where each byte is a
 * character; -1 when a character stands for none. out has room for s.bytes. Returns the length. */
ptrdiff_t tokenizer_unmap_bytes(struct gguf_string s, char *out);
/* Writes a SentencePiece text with plain spaces for U+2581. out has room for bytes, and may be
 * text. Returns the length. */
size_t spm_plain_spaces(const char *text, size_t bytes, char *out);

#define TOKENS_KEY "tokenizer.ggml.tokens"
#define MERGES_KEY "tokenizer.ggml.merges"
