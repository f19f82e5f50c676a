/*
 * A hash of the logits of one position, to compare runs to the bit without storing the logits. It
 * detects differences, but is no protection against an adversary.
 */
#pragma once

#include <stdint.h>
#include <string.h>

/* Uses FNV-1a's offset and prime, but over 64-bit words. A word holds two logits, the first in its
 * low half, as they lie in memory on a little-endian machine; an odd last logit is zero-extended.
 * After each product h ^= h >> 32, because a product carries nothing downwards. Eight bytes a step
 * take a fifth of the time of the bytewise form (measured on 4,096 logits). */
static inline uint64_t logits_hash(const float *logits, uint32_t n_vocab)
{
	uint64_t h = 0xcbf29ce484222325u;
	for (uint32_t i = 0; i < n_vocab; i += 2) {
		uint32_t low, high = 0;
		memcpy(&low, &logits[i], sizeof(low));
		if (i + 1 < n_vocab)
			memcpy(&high, &logits[i + 1], sizeof(high));
		h = (h ^ ((uint64_t)high << 32 | low)) * 0x100000001b3u;
		h ^= h >> 32;
	}
	return h;
}
