/*
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a
 * counter-based generator, so a draw is a function of (key, counter) and of nothing that happened before.
 */
#pragma once

#include <stdint.h>

/* What a draw is for; part of the counter, so that streams never meet. */
enum rand_stream {
	RAND_GUMBEL = 0, /* the noise of drafter-invariant sampling: counter = (position, token) */
	RAND_ACCEPT = 1, /* maximal coupling: accept tests, counter = (position, attempt) */
	RAND_RESIDUAL = 2, /* maximal coupling: draw from the residual */
	RAND_DRAFT = 3, /* maximal coupling: the drafter's own sampling */
	RAND_REPLAY = 4, /* errors the replay drafter puts in */
};

/* 128 random bits of (seed, stream, position, index). */
void rand_philox(
	uint64_t seed, enum rand_stream stream, uint64_t position, uint32_t index, uint32_t out[4]);

/* Uniform in (0, 1), never 0 or 1: (top 24 bits + 0.5) / 2^24, exact in float32's range as a double. */
double rand_uniform(uint64_t seed, enum rand_stream stream, uint64_t position, uint32_t index);
