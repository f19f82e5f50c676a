#pragma once

#include "shared/base/limits.h"

/* The next multiple of `to`. The caller ensures that it does not overflow. */
static inline uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

/* Rounds up to whole cache lines. */
static inline size_t round_lines(size_t bytes)
{
	return (size_t)round_up(bytes, CACHE_LINE);
}
