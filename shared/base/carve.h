/* Divides one allocation into pieces, each of which begins on a cache line. A layout function is
 * run twice: to count the bytes, and then to place the pieces. */
#pragma once

#include "shared/base/round.h"

/* base NULL: only counts. */
struct carve {
	unsigned char *base;
	size_t used;
};

/* Takes n elements of `each` bytes; returns the offset of the piece. carve returns its address,
 * NULL while counting. */
static inline size_t carve_at(struct carve *c, size_t n, size_t each)
{
	size_t at = c->used;
	c->used += round_lines(n * each);
	return at;
}

static inline void *carve(struct carve *c, size_t n, size_t each)
{
	size_t at = carve_at(c, n, each);
	return c->base ? c->base + at : NULL;
}

#define CARVE(c, field, n) ((field) = carve((c), (n), sizeof(*(field))))
