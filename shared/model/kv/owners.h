/*
 * Things by their owner, for a process that takes over what another one left: pages, records, states. An owner's are found without a
 * look at everybody's. Candidates only: who asks compares the owner.
 */
#pragma once

#include <stdint.h>

#define OWNERS_NONE UINT32_MAX

struct owners {
	uint32_t n_buckets; /* a power of two */
	uint32_t *heads; /* [n_buckets] the first of each; NULL: there is nothing to find */
	uint32_t *next; /* [n] */
};

/* For things 0..n-1. -ENOMEM. */
int owners_init(struct owners *owners, uint32_t n);
void owners_exit(struct owners *owners);
/* Once for each; the last that was added is found first. */
void owners_add(struct owners *owners, uint32_t i, uint64_t owner);
/* The first that may be the owner's, and the one behind i; OWNERS_NONE. */
uint32_t owners_first(const struct owners *owners, uint64_t owner);
static inline uint32_t owners_next(const struct owners *owners, uint32_t i)
{
	return owners->next[i];
}
