#pragma once

#include <stdint.h>

/* The next multiple of `to`; the caller has seen that there is one. */
static inline uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}
