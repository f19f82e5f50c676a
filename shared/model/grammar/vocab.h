/*
 * A grammar over the tokens of a model: which tokens may follow a text. The texts of the vocabulary
 * form a tree, which is walked together with the matcher, so that a prefix that several tokens
 * share is looked at once. Control tokens are allowed where the grammar names them, and tokens that
 * end the generation where the text may end. A token may end within a character, and may extend
 * over several parts of the grammar.
 */
#pragma once

#include "shared/model/grammar/matcher.h"
#include "shared/model/text/tokenizer.h"

/* Read-only; any number of threads may use it. */
struct vocab;

/* tokenizer: borrowed until vocab_free. n_vocab: tokens of a mask, as many as the model computes
 * logits for, which may be more than the tokenizer has; those beyond are never allowed. */
int vocab_create(const struct tokenizer *tokenizer, uint32_t n_vocab, struct vocab **out);
void vocab_free(struct vocab **vocab);

/* The state after a token. MATCHER_DEAD after a token that ends the generation. */
uint32_t vocab_token(
	const struct vocab *vocab, struct matcher *matcher, uint32_t state, int32_t token);

/* Splits a text into tokens, at most n, each the longest possible one. Returns how many; their
 * texts together are a prefix of the text. */
uint32_t vocab_split(
	const struct vocab *vocab, const uint8_t *text, size_t bytes, int32_t *out, uint32_t n);

/* A cache of masks for the states of one matcher. Used by the matcher's thread. */
struct masks;

/* most: how many masks it holds, each with one bit per token. */
int masks_create(
	const struct vocab *vocab, struct matcher *matcher, uint32_t most, struct masks **out);
void masks_free(struct masks **masks);

/* Makes sure that the next n masks do not replace each other. n is at most `most`. */
void masks_begin(struct masks *masks, uint32_t n);
/* [SAMPLER_ALLOWED_WORDS(n_vocab)] the tokens that may follow; NULL: there is no room in the
 * matcher, or no memory. Valid until the next masks_begin. */
const uint64_t *masks_of(struct masks *masks, uint32_t state);
