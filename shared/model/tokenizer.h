/*
 * Text <-> token ids from the GGUF's own metadata: byte-level BPE with its pre-tokenizer (PCRE2 with Unicode
 * properties). Read-only after loading, thread-safe except that encode uses a per-call scratch it allocates.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/model/gguf.h"

struct tokenizer;

int tokenizer_load(const struct gguf *gguf, struct tokenizer **out, struct error *err);
void tokenizer_free(struct tokenizer **tokenizer);

uint32_t tokenizer_n_vocab(const struct tokenizer *tokenizer);

/* Appends the ids of text to *ids (malloc'd, *n used, *capacity; grows; caller frees). special: control tokens
 * written out in the text are recognised; never set for user text. Invalid UTF-8 passes through byte tokens. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
	bool special, int32_t **ids, size_t *n, size_t *capacity, struct error *err);

/* The BOS that the file says comes first (add_bos_token), or -1. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);

/* The bytes of one token; control tokens give "" unless special. Borrowed, no NUL; may be part of a UTF-8
 * sequence. id out of range gives "". */
struct gguf_string tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, bool special);

/* End of generation (eos, eot, and the tokens found by text, GGUF_NOTES section 4). */
bool tokenizer_is_eog(const struct tokenizer *tokenizer, int32_t id);

/* Equal for tokenizers that map every id to the same string and type: target and draft must agree. */
uint64_t tokenizer_fingerprint(const struct tokenizer *tokenizer);

/* Bytes of the longest prefix of text that ends on a UTF-8 boundary (invalid bytes count as whole): what may be
 * streamed now; the rest waits for the next token. */
size_t tokenizer_utf8_complete(const char *text, size_t bytes);
