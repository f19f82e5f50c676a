/*
 * Longest suffix match over the tokens of one session: for each length max..min, a hash table from
 * the n-gram to the latest place it ended at. Exact: entries are compared with the tokens, never
 * only by hash. Memory is allocated at ngram_init; an update and a look-up cost O(max - min) each,
 * whatever the tokens are. Used by the draft thread.
 */
#pragma once

#include <stdint.h>

#define NGRAM_NONE UINT32_MAX

struct ngram {
	uint32_t min, max; /* lengths, 1 <= min <= max <= LIMIT_NGRAM */
	uint32_t mask; /* slots of one table - 1 */
	uint32_t n_indexed; /* n-grams that end before this token are in the tables */
	uint64_t seed; /* so that nobody can choose tokens that collide */
	uint32_t *
		slots; /* [max - min + 1][mask + 1]: index of the n-gram's last token + 1; 0 = empty */
};

/* capacity: the most tokens the session can have. -ENOMEM, -EINVAL. */
int ngram_init(struct ngram *ngram, uint32_t min, uint32_t max, uint32_t capacity, uint64_t seed);
void ngram_exit(struct ngram *ngram);
/* Takes up tokens[0..n-1] so far as they are new. The n-grams that end with the last token are
 * left out: they are what is looked for. n <= capacity. */
void ngram_update(struct ngram *ngram, const int32_t *tokens, uint32_t n);
/* After ngram_update with the same n: the index of the token that followed the most recent
 * earlier occurrence of the longest suffix of length max..min, or NGRAM_NONE. *length: of that
 * suffix. */
uint32_t ngram_find(const struct ngram *ngram, const int32_t *tokens, uint32_t n, uint32_t *length);
/* How many tokens before `from` are the ones before n, at most NGRAM_MATCH_MAX: the match that ngram_find found, as far back as
 * it goes. */
enum { NGRAM_MATCH_MAX = 250 };
uint32_t ngram_match(const int32_t *tokens, uint32_t n, uint32_t from);
/* How sure the token at `ahead` of a proposal with such a match is, by the rule of succession: a text that repeated itself
 * for L tokens goes on doing so with (L + 1) / (L + 2), and each drafted token that is right makes the match longer. */
float ngram_confidence(uint32_t match, uint32_t ahead);
/* k tokens from `from` on; where the text ends the proposal goes on with itself, as a loop would. */
void ngram_propose(const int32_t *tokens, uint32_t n, uint32_t from, uint32_t k, int32_t *out);
