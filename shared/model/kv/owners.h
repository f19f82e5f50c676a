/*
 * Looks things up by their owner, for a process that takes over what another one left: pages,
 * records, states. Finds an owner's things without looking at all. They are only candidates: the
 * caller must compare the owner.
 */
#pragma once

#include <stdint.h>

#define OWNERS_NONE UINT32_MAX

struct owners {
	uint32_t n_buckets; /* a power of two */
	uint32_t *heads; /* [n_buckets] the first thing in each; NULL: nothing can be found */
	uint32_t *next; /* [n] */
};

/* For things 0..n-1. -ENOMEM. */
int owners_init(struct owners *owners, uint32_t n);
void owners_exit(struct owners *owners);
/* Call once for each thing; the last one added is found first. */
void owners_add(struct owners *owners, uint32_t i, uint64_t owner);
/* The first thing that may be the owner's, and the next after i; OWNERS_NONE: none. */
uint32_t owners_first(const struct owners *owners, uint64_t owner);
static inline uint32_t owners_next(const struct owners *owners, uint32_t i)
{
	return owners->next[i];
}
