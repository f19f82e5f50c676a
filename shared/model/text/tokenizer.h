/*
 * Text <-> token ids from the GGUF's own metadata: byte-level BPE with its pre-tokenizer (PCRE2 with Unicode
 * properties; normalised before, where the model's own tokenizer does that), and SentencePiece's BPE. Read-only after loading,
 * thread-safe: encode allocates its scratch per call.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/model/gguf/gguf.h"

struct tokenizer;

int tokenizer_load(const struct gguf *gguf, struct tokenizer **out, struct error *err);
void tokenizer_free(struct tokenizer **tokenizer);

uint32_t tokenizer_n_vocab(const struct tokenizer *tokenizer);

/* Appends the ids of text to *ids (malloc'd, *n used, *capacity; grows; caller frees). special: control tokens
 * written out in the text are recognised; never set for user text. Invalid UTF-8 passes through byte tokens. Special tokens are
 * found in the text as it is. What is between them may be normalised, so that the ids stand for other bytes than the text has. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
	bool special, int32_t **ids, size_t *n, size_t *capacity, struct error *err);

/* The same for a text of which only some bytes may be part of a control token: literal[i] (of bytes) says whether byte i
 * was written by the template, as in struct template_text. Everything else is as if all were one text, so words and
 * merges go across where user text begins and ends. */
int tokenizer_encode_rendered(const struct tokenizer *tokenizer, const char *text, size_t bytes,
	const uint8_t *literal, int32_t **ids, size_t *n, size_t *capacity, struct error *err);

/* Whether the first piece of a text, and of what follows a special token, begins with a space that the text does not
 * have (SentencePiece's add_space_prefix). */
bool tokenizer_adds_space(const struct tokenizer *tokenizer);

/* The BOS that the file says comes first (add_bos_token), or -1. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);

/* The bytes of one token; control tokens give "" unless special. Borrowed, no NUL; may be part of a UTF-8
 * sequence. id out of range gives "". */
struct gguf_string tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, bool special);

/* End of generation (eos, eot, and the tokens found by text, GGUF_NOTES section 4). */
bool tokenizer_is_eog(const struct tokenizer *tokenizer, int32_t id);
/* All tokens of that kind among the first n_vocab, in *ids, which the caller frees. -ENOMEM: *ids is NULL. */
int tokenizer_list_eog(
	const struct tokenizer *tokenizer, uint32_t n_vocab, int32_t **ids, size_t *n);

/* Equal for tokenizers that map every id to the same string and type. */
uint64_t tokenizer_fingerprint(const struct tokenizer *tokenizer);

/* Whether the ids that both have stand for the same strings, so that one model's tokens can be read by the other:
 * vocabularies may be padded to different sizes. *shared: how many ids both have. -EINVAL names the first that differs. */
int tokenizer_compare(const struct tokenizer *target, const struct tokenizer *draft,
	uint32_t *shared, struct error *err);

/* Bytes of the longest prefix of text that ends on a UTF-8 boundary (invalid bytes count as whole): what may be
 * streamed now; the rest waits for the next token. */
size_t tokenizer_utf8_complete(const char *text, size_t bytes);
