/* Hands out pieces of one allocation, each from the start of a cache line on: called twice, to count and to place. */
#pragma once

#include "shared/base/round.h"

/* With base NULL it only counts. */
struct carve {
	unsigned char *base;
	size_t used;
};

/* Where the piece begins, as an offset. */
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
