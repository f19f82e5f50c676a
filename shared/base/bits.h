/* Sets of small numbers, with a bit for each. The caller serialises. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BITS_WORDS(n) (((n) + 63u) / 64u)

static inline void bits_set(uint64_t *words, uint32_t i)
{
	words[i / 64] |= UINT64_C(1) << (i % 64);
}

static inline void bits_clear(uint64_t *words, uint32_t i)
{
	words[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

static inline bool bits_get(const uint64_t *words, uint32_t i)
{
	return (words[i / 64] >> (i % 64)) & 1;
}

/* The smallest member in from..n-1; n when there is none. */
static inline uint32_t bits_next(const uint64_t *words, uint32_t n, uint32_t from)
{
	while (from < n) {
		uint64_t left = words[from / 64] >> (from % 64);

		if (left != 0) {
			from += (uint32_t)__builtin_ctzll(left);
			return from < n ? from : n;
		}
		from = (from / 64 + 1) * 64;
	}
	return n;
}
