/* Sums and differences of sizes that stop at the ends of their range. */
#pragma once

#include <stdint.h>

/* a + b, at most UINT64_MAX. */
static inline uint64_t saturate_add(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* a - b, at least 0. */
static inline uint64_t saturate_sub(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}
