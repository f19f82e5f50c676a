/*
 * Evicts the least recently used expert of all layers together: the policy of Mixtral-Offloading
 * (Eliseev and Mazur, arXiv 2312.17238, section 3.1). A use is an activation. Takes every hint,
 * except hints of gates for layers beyond the next.
 */
#include "services/expert-cache/policies/published/lru.h"

#include <stdlib.h>

static int lru_create(const struct cache_policy_shape *shape, void **out, struct error *err)
{
	struct lru *lru = malloc(sizeof(*lru));
	if (lru == NULL)
		return error_set(err, ENOMEM, "no memory for a cache policy");
	int status = lru_init(lru, shape, err);
	if (status != 0) {
		free(lru);
		return status;
	}
	*out = lru;
	return 0;
}

static void lru_destroy(void *policy)
{
	lru_exit(policy);
	free(policy);
}

const struct cache_policy_ops policy_lru = {
	.name = "lru",
	.help = "least recently used (Mixtral-Offloading); prefetches every hint",
	.hint_sources = 1u << HINT_DRAFT | 1u << HINT_GATE | 1u << HINT_HISTORY,
	.create = lru_create,
	.destroy = lru_destroy,
	.on_load = lru_load,
	.on_evict = lru_evict,
	.on_demand = lru_demand,
	.on_activation = lru_use,
	.on_hint = lru_hint,
	.next = lru_next,
	.put_back = lru_put_back,
	.queued = lru_queued,
	.victim = lru_victim,
};
