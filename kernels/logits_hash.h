/*
 * A hash of the logits of one position, to compare runs to the bit without storing the logits. It
 * detects differences, but is no protection against an adversary.
 */
#pragma once

#include "shared/base/exact.h"

#include <stdint.h>
#include <string.h>

#define LOGITS_HASH_FIRST 0xcbf29ce484222325u

/* The hash behind one more word. */
EXACT uint64_t logits_hash_next(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x100000001b3u;
	return h ^ h >> 32;
}

/* Uses FNV-1a's offset and prime, but over 64-bit words. A word holds two logits, the first in its
 * low half, as they lie in memory on a little-endian machine; an odd last logit is zero-extended.
 * After each product h ^= h >> 32, because a product carries nothing downwards. Eight bytes a step
 * take a fifth of the time of the bytewise form (measured on 4,096 logits). */
static inline uint64_t logits_hash(const float *logits, uint32_t n_vocab)
{
	uint64_t h = LOGITS_HASH_FIRST;
	for (uint32_t i = 0; i < n_vocab; i += 2) {
		uint32_t low, high = 0;
		memcpy(&low, &logits[i], sizeof(low));
		if (i + 1 < n_vocab)
			memcpy(&high, &logits[i + 1], sizeof(high));
		h = logits_hash_next(h, (uint64_t)high << 32 | low);
	}
	return h;
}
