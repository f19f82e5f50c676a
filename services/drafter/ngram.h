/*
 * The longest suffix match over the tokens of one session. For each length from max down to min, a
 * hash table maps an n-gram to the latest place where it ended. It is exact: entries are compared
 * with the tokens, never by their hash alone. ngram_init allocates all memory; an update (per
 * token) and a look-up cost O(max - min) each, whatever the tokens are. Used by the draft thread.
 */
#pragma once

#include <stdint.h>

#define NGRAM_NONE UINT32_MAX

struct ngram {
	uint32_t min, max; /* lengths, 1 <= min <= max <= LIMIT_NGRAM */
	uint32_t mask; /* slots of one table - 1 */
	uint32_t n_indexed; /* the tables hold the n-grams that end before this token */
	uint64_t seed; /* random, so that nobody can choose tokens that collide */
	/* [max - min + 1][mask + 1]: index of the n-gram's last token + 1; 0 = empty */
	uint32_t *slots;
	/* [capacity] for the n-gram of length min that ends with a token: the same of the occurrence
	 * before */
	uint32_t *before;
};

/* capacity: the most tokens that the session can have. -ENOMEM, -EINVAL. */
int ngram_init(struct ngram *ngram, uint32_t min, uint32_t max, uint32_t capacity, uint64_t seed);
void ngram_exit(struct ngram *ngram);
/* Adds the n-grams of tokens[0..n-1] that are new. Those that end with the last token are left out,
 * for they are what ngram_find looks for. n <= capacity. */
void ngram_update(struct ngram *ngram, const int32_t *tokens, uint32_t n);
/* After ngram_update with the same n: the index of the token that followed the most recent
 * earlier occurrence of the longest suffix of length max..min, or NGRAM_NONE. *length: of that
 * suffix. */
uint32_t ngram_find(const struct ngram *ngram, const int32_t *tokens, uint32_t n, uint32_t *length);
/* After ngram_update with the same n: the indices of the tokens that followed earlier occurrences of
 * the last min tokens, latest first, at most `most`. Returns how many. */
uint32_t ngram_places(const struct ngram *ngram, const int32_t *tokens, uint32_t n,
	uint32_t *places, uint32_t most);
/* The length of the match that ngram_find found, as far back as it goes: how many tokens before
 * `from` equal those before n, at most NGRAM_MATCH_MAX. */
enum { NGRAM_MATCH_MAX = 250 };
uint32_t ngram_match(const int32_t *tokens, uint32_t n, uint32_t from);
/* The confidence in token number `ahead` (from 0) of a proposal with such a match, by the rule of
 * succession: a text that has repeated itself for L tokens goes on doing so with probability (L +
 * 1) / (L + 2), and each right token makes the match longer by one. */
float ngram_confidence(uint32_t match, uint32_t ahead);
/* Writes k tokens to out, those from `from` on. Where the text ends, the proposal continues with
 * its own tokens, as in a loop. */
void ngram_propose(const int32_t *tokens, uint32_t n, uint32_t from, uint32_t k, int32_t *out);
