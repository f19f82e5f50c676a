/*
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011): a counter-based generator. A draw is a function of (key, counter), without any state.
 */
#pragma once

#include "shared/base/exact.h"

#include <stdint.h>

/* Round constants of the paper's Philox4x32 (its table 2). */
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

/* The purpose of a draw. It is part of the counter, so that streams never share a draw. */
enum rand_stream {
	RAND_GUMBEL = 0, /* the noise of drafter-invariant sampling: counter = (position, token) */
	RAND_ACCEPT = 1, /* maximal coupling: accept tests, counter = (position, attempt) */
	RAND_RESIDUAL = 2, /* maximal coupling: draw from the residual */
	RAND_DRAFT = 3, /* maximal coupling: the drafter's own sampling */
	RAND_REPLAY = 4, /* errors that the replay drafter adds */
	RAND_XTC = 5, /* whether XTC acts at a position: counter = (position, 0) */
};

/* 128 random bits of (seed, stream, position, index). */
EXACT void rand_philox(
	uint64_t seed, enum rand_stream stream, uint64_t position, uint32_t index, uint32_t out[4])
{
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	uint32_t c0 = index, c1 = (uint32_t)stream, c2 = (uint32_t)position,
		 c3 = (uint32_t)(position >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c1 = (uint32_t)p1;
		c3 = (uint32_t)p0;
		c0 = n0;
		c2 = n2;
		k0 += PHILOX_W0;
		k1 += PHILOX_W1;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

/* The uniform number of the top 24 of 32 random bits. */
EXACT double rand_uniform_of(uint32_t top)
{
	return ((double)top + 0.5) * 0x1p-24;
}

/* Uniform in (0, 1), never 0 or 1: (top 24 bits of word 0 + 0.5) / 2^24, which a double holds
 * exactly. */
double rand_uniform(uint64_t seed, enum rand_stream stream, uint64_t position, uint32_t index);
