/* Loading a tokenizer from metadata in steps: tokenizer.c calls these in the order below. Errors name the key. */
#pragma once

#include "shared/model/text/tokenizer_internal.h"

/* The model and pre-tokenizer keys; kinds that are neither BPE nor SentencePiece are refused here. */
int tokenizer_load_kind(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* texts, pieces, types, byte_ids, the hash of words, the token lists. */
int tokenizer_load_tokens(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* BPE only. */
int tokenizer_load_merges(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* SentencePiece only: order. */
int spm_load_scores(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* bos, unknown, the tokens that end a generation or take spaces along; every special id must be a token. */
int tokenizer_load_special_ids(struct tokenizer *t, const struct gguf *gguf, struct error *err);

/* Sorts the list's ids by their strings and leaves each string once. */
void token_list_sort(struct token_list *list);

/* The bytes that a token's text stands for in byte-level BPE, each byte a character; -1 when a character stands for
 * none. out has room for s.bytes. Returns the length. */
ptrdiff_t tokenizer_unmap_bytes(struct gguf_string s, char *out);
/* A SentencePiece text with plain spaces for U+2581. out has room for bytes, and may be text. Returns the length. */
size_t spm_plain_spaces(const char *text, size_t bytes, char *out);

#define TOKENS_KEY "tokenizer.ggml.tokens"
#define MERGES_KEY "tokenizer.ggml.merges"
