#include "services/drafter/ngram.h"

#include "shared/base/limits.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int ngram_init(struct ngram *ngram, uint32_t min, uint32_t max, uint32_t capacity, uint64_t seed)
{
	memset(ngram, 0, sizeof(*ngram));
	if (min < 1 || min > max || max > LIMIT_NGRAM || capacity == 0 || capacity > 1u << 28)
		return -EINVAL;
	/* The tables are at most half full, so probes stay short. */
	uint32_t slots = 16;
	while (slots < 2 * capacity)
		slots *= 2;
	ngram->slots = calloc((size_t)(max - min + 1) * slots, sizeof(*ngram->slots));
	ngram->before = malloc(capacity * sizeof(*ngram->before));
	if (!ngram->slots || !ngram->before) {
		ngram_exit(ngram);
		return -ENOMEM;
	}
	ngram->min = min;
	ngram->max = max;
	ngram->mask = slots - 1;
	ngram->seed = seed;
	return 0;
}

void ngram_exit(struct ngram *ngram)
{
	free(ngram->slots);
	free(ngram->before);
	memset(ngram, 0, sizeof(*ngram));
}

/* Extends the hash by a token in front of the n-gram. Mixes 64 bits after each token, so that every
 * token reaches every bit. */
static uint64_t extend(uint64_t hash, int32_t token)
{
	hash = (hash ^ (uint32_t)token) * UINT64_C(0x9E3779B97F4A7C15);
	return hash ^ hash >> 29;
}

static bool same(const int32_t *tokens, uint32_t end_a, uint32_t end_b, uint32_t length)
{
	return end_a + 1 >= length && end_b + 1 >= length &&
	       memcmp(tokens + end_a + 1 - length, tokens + end_b + 1 - length,
		       length * sizeof(*tokens)) == 0;
}

/* The slot of the n-gram of this length that ends at token `end`: the one that holds it, or the
 * empty one in which it would be put. */
static uint32_t *slot_of(const struct ngram *ngram, const int32_t *tokens, uint32_t end,
	uint32_t length, uint64_t hash)
{
	uint32_t *table = ngram->slots + (size_t)(length - ngram->min) * ((size_t)ngram->mask + 1);
	uint32_t i = (uint32_t)(hash >> 32) & ngram->mask;
	while (table[i] != 0 && !same(tokens, table[i] - 1, end, length))
		i = (i + 1) & ngram->mask;
	return &table[i];
}

void ngram_update(struct ngram *ngram, const int32_t *tokens, uint32_t n)
{
	for (; ngram->n_indexed + 1 < n; ngram->n_indexed++) {
		uint32_t end = ngram->n_indexed;
		uint64_t hash = ngram->seed;
		for (uint32_t length = 1; length <= ngram->max && length <= end + 1; length++) {
			hash = extend(hash, tokens[end + 1 - length]);
			if (length < ngram->min)
				continue;
			uint32_t *slot = slot_of(ngram, tokens, end, length, hash);
			if (length == ngram->min)
				ngram->before[end] = *slot;
			*slot = end + 1;
		}
	}
}

uint32_t ngram_find(const struct ngram *ngram, const int32_t *tokens, uint32_t n, uint32_t *length)
{
	uint64_t hash[LIMIT_NGRAM + 1] = {ngram->seed};
	uint32_t longest = n < ngram->max ? n : ngram->max;
	for (uint32_t i = 1; i <= longest; i++)
		hash[i] = extend(hash[i - 1], tokens[n - i]);
	for (uint32_t i = longest; i >= ngram->min; i--) {
		uint32_t found = *slot_of(ngram, tokens, n - 1, i, hash[i]);
		if (found != 0) {
			*length = i;
			return found;
		}
	}
	*length = 0;
	return NGRAM_NONE;
}

uint32_t ngram_places(const struct ngram *ngram, const int32_t *tokens, uint32_t n,
	uint32_t *places, uint32_t most)
{
	uint64_t hash = ngram->seed;
	uint32_t found = 0;
	if (n < ngram->min)
		return 0;
	for (uint32_t i = 1; i <= ngram->min; i++)
		hash = extend(hash, tokens[n - i]);
	for (uint32_t at = *slot_of(ngram, tokens, n - 1, ngram->min, hash);
		at != 0 && found < most; at = ngram->before[at - 1])
		places[found++] = at;
	return found;
}

uint32_t ngram_match(const int32_t *tokens, uint32_t n, uint32_t from)
{
	uint32_t length = 0;
	while (length < NGRAM_MATCH_MAX && length < from &&
		tokens[from - 1 - length] == tokens[n - 1 - length])
		length++;
	return length;
}

float ngram_confidence(uint32_t match, uint32_t ahead)
{
	return (float)(match + ahead + 1) / (float)(match + ahead + 2);
}

void ngram_propose(const int32_t *tokens, uint32_t n, uint32_t from, uint32_t k, int32_t *out)
{
	for (uint32_t i = 0; i < k; i++) {
		uint32_t at = from + i;
		out[i] = at < n ? tokens[at] : out[at - n];
	}
}
