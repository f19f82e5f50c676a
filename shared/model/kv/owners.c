#include "shared/model/kv/owners.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int owners_init(struct owners *owners, uint32_t n)
{
	owners->n_buckets = 64;
	while (owners->n_buckets < n && owners->n_buckets < 1 << 16)
		owners->n_buckets *= 2;
	owners->heads = malloc(owners->n_buckets * sizeof(*owners->heads));
	owners->next = malloc(((size_t)n + 1) * sizeof(*owners->next));
	if (!owners->heads || !owners->next) {
		owners_exit(owners);
		return -ENOMEM;
	}
	memset(owners->heads, 0xff, owners->n_buckets * sizeof(*owners->heads));
	return 0;
}

void owners_exit(struct owners *owners)
{
	free(owners->heads);
	free(owners->next);
	memset(owners, 0, sizeof(*owners));
}

static uint32_t *bucket(const struct owners *owners, uint64_t owner)
{
	/* Multiplicative hashing by 2^64 over the golden ratio, which puts neighbours far apart
	 * (Knuth, TAOCP 3, section 6.4). */
	return &owners->heads[owner * 0x9E3779B97F4A7C15u >> 32 & (owners->n_buckets - 1)];
}

void owners_add(struct owners *owners, uint32_t i, uint64_t owner)
{
	uint32_t *head = bucket(owners, owner);
	owners->next[i] = *head;
	*head = i;
}

uint32_t owners_first(const struct owners *owners, uint64_t owner)
{
	return owners->heads ? *bucket(owners, owner) : OWNERS_NONE;
}
