/* Loading a tokenizer from metadata in steps: tokenizer.c calls these in the order below. Errors name the key. */
#pragma once

#include "shared/model/tokenizer_internal.h"

/* The model and pre-tokenizer keys; SentencePiece and others are refused here. */
int tokenizer_load_kind(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* texts, pieces, types, byte_ids, the hash of words, specials. */
int tokenizer_load_tokens(struct tokenizer *t, const struct gguf *gguf, struct error *err);
int tokenizer_load_merges(struct tokenizer *t, const struct gguf *gguf, struct error *err);
/* bos and the tokens that end a generation; every special id must be a token. */
int tokenizer_load_special_ids(struct tokenizer *t, const struct gguf *gguf, struct error *err);

/* The bytes that a token's text stands for in byte-level BPE, each byte a character; -1 when a character stands for
 * none. out has room for s.bytes. Returns the length. */
ptrdiff_t tokenizer_unmap_bytes(struct gguf_string s, char *out);

#define TOKENS_KEY "tokenizer.ggml.tokens"
#define MERGES_KEY "tokenizer.ggml.merges"
