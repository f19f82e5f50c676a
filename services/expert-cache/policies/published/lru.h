/*
 * What the policies share that evict the least recently used expert and prefetch hints by score;
 * they differ in the hints they take. Their states begin with this struct, so that its functions
 * can be the policies' own.
 */
#pragma once

#include "services/expert-cache/policies/prefetch_queue.h"
#include "services/expert-cache/policies/id_lists.h"

struct lru {
	struct prefetch_queue queue; /* hints of experts that are not resident */
	struct id_lists order; /* one list, the oldest first */
};

int lru_init(struct lru *lru, const struct cache_policy_shape *shape, struct error *err);
void lru_exit(struct lru *lru);
/* Call when a slot that holds something was used, or will be. Other numbers, SLOT_NONE too, are
 * ignored. */
void lru_touch(struct lru *lru, uint32_t slot);

/* As in struct cache_policy_ops; policy: a struct lru. */
void lru_load(void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why);
void lru_evict(void *policy, uint32_t slot);
void lru_demand(void *policy, const struct cache_use *use);
void lru_use(void *policy, const struct cache_use *use);
void lru_hint(void *policy, const struct cache_hint *hint, uint32_t slot);
bool lru_next(void *policy, uint64_t now_ns, struct cache_prefetch *out);
void lru_put_back(void *policy, const struct cache_prefetch *prefetch);
uint32_t lru_queued(const void *policy);
uint32_t lru_victim(void *policy, const struct cache_prefetch *want, enum load_reason why,
	bool (*may)(void *arg, uint32_t slot), void *arg);
