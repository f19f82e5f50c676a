#pragma once

#include "shared/base/limits.h"

/* The next multiple of `to`; the caller has seen that there is one. */
static inline uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

/* In whole cache lines. */
static inline size_t round_lines(size_t bytes)
{
	return (size_t)round_up(bytes, CACHE_LINE);
}
