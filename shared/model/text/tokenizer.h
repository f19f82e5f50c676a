/*
 * Text <-> token ids by the GGUF file's own metadata: byte-level BPE with its pre-tokenizer (PCRE2
 * with Unicode properties; normalised before, where the model's own tokenizer does that), and
 * SentencePiece's BPE. Read-only after loading, so any thread may use it: encode allocates its
 * scratch per call.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/model/gguf/gguf.h"

struct tokenizer;

int tokenizer_load(const struct gguf *gguf, struct tokenizer **out, struct error *err);
void tokenizer_free(struct tokenizer **tokenizer);

uint32_t tokenizer_n_vocab(const struct tokenizer *tokenizer);

/* Appends the ids of text to *ids (malloc'd, *n of *capacity used; grows; the caller frees it).
 * special: control tokens that are written out in the text are recognised; never set it for user
 * text. Invalid UTF-8 becomes byte tokens. Special tokens are searched in the text as it is. The
 * text between them may be normalised, so the ids may stand for other bytes than the text has. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
	bool special, int32_t **ids, size_t *n, size_t *capacity, struct error *err);

/* The same for a text of which only some bytes may be part of a control token: literal[i] (i <
 * bytes) is 1 when the template wrote byte i, as in struct template_text. Apart from that all is
 * one text, so words and merges extend across the places where user text begins and ends. */
int tokenizer_encode_rendered(const struct tokenizer *tokenizer, const char *text, size_t bytes,
	const uint8_t *literal, int32_t **ids, size_t *n, size_t *capacity, struct error *err);

/* True when the first piece of a text, or of a part behind a special token, begins with a space
 * that the text does not have (SentencePiece's add_space_prefix). */
bool tokenizer_adds_space(const struct tokenizer *tokenizer);

/* The BOS token that comes first according to the file (add_bos_token), or -1. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);

/* The bytes of one token; for a control token "" unless special. Borrowed, without a NUL; may be
 * part of a UTF-8 sequence. An id out of range gives "". */
struct gguf_string tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, bool special);

/* True when the token ends a generation: eos, eot, and the tokens that are found by their text,
 * because converters write only one id (tokenizer_special.c). */
bool tokenizer_is_eog(const struct tokenizer *tokenizer, int32_t id);
/* Lists all such tokens with ids below n_vocab in *ids, which the caller frees. -ENOMEM: *ids is
 * NULL. */
int tokenizer_list_eog(
	const struct tokenizer *tokenizer, uint32_t n_vocab, int32_t **ids, size_t *n);

/* Equal for tokenizers that map every id to the same string and type. */
uint64_t tokenizer_fingerprint(const struct tokenizer *tokenizer);

/* Checks that the ids that both tokenizers have stand for the same strings, so that each model can
 * read the other's tokens. The vocabularies may be padded to different sizes. *shared: how many ids
 * both have. -EINVAL names the first one that differs. */
int tokenizer_compare(const struct tokenizer *target, const struct tokenizer *draft,
	uint32_t *shared, struct error *err);

/* Bytes of the longest prefix of text that ends between two UTF-8 characters (an invalid byte
 * counts as one). That much may be streamed now; the rest waits for the next token. */
size_t tokenizer_utf8_complete(const char *text, size_t bytes);
