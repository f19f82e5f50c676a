/*
 * A grammar over the tokens of a model: which tokens may follow a text. The vocabulary's texts are a tree, which is walked
 * together with the matcher, so that beginnings that several tokens share are looked at once. Control tokens are allowed
 * where the grammar names them, and those that end the generation where the text may end. Tokens that are part of a character, or go over the boundaries
 * of what the grammar names, are as good as any.
 */
#pragma once

#include "shared/model/grammar/matcher.h"
#include "shared/model/text/tokenizer.h"

/* Read-only; any number of threads. */
struct vocab;

/* Of a tokenizer, which is borrowed until vocab_free. n_vocab: tokens of a mask, as many as a model computes logits of, or more
 * than the tokenizer has; those beyond are never allowed. */
int vocab_create(const struct tokenizer *tokenizer, uint32_t n_vocab, struct vocab **out);
void vocab_free(struct vocab **vocab);

/* Behind a token. A token that ends the generation leads nowhere. */
uint32_t vocab_token(
	const struct vocab *vocab, struct matcher *matcher, uint32_t state, int32_t token);

/* Splits a text into tokens, each the longest there is: at most n. The texts of all tokens together are a beginning of it. */
uint32_t vocab_split(
	const struct vocab *vocab, const uint8_t *text, size_t bytes, int32_t *out, uint32_t n);

/* Masks that were made, by the states of one matcher. One thread at a time, the matcher's. */
struct masks;

/* most: masks at once, each of a bit per token. */
int masks_create(
	const struct vocab *vocab, struct matcher *matcher, uint32_t most, struct masks **out);
void masks_free(struct masks **masks);

/* Makes sure that the next n masks do not take the places of each other. n is at most `most`. */
void masks_begin(struct masks *masks, uint32_t n);
/* [SAMPLER_ALLOWED_WORDS(n_vocab)] the tokens that may follow; NULL: no room in the matcher, or no memory. Borrowed until the
 * next masks_begin. */
const uint64_t *masks_of(struct masks *masks, uint32_t state);
