#include "services/expert-cache/policies/policy.h"
#include "services/knobs/cache.h"

#include <string.h>

const struct cache_policy_ops *const cache_policies[] = {&policy_static_set, &policy_lru,
	&policy_lfu_trace, &policy_gate_next, &policy_sp_moe, &policy_spac, &policy_outrider, NULL};

const struct cache_policy_ops *cache_policy_find(const char *name)
{
	for (size_t i = 0; cache_policies[i]; i++)
		if (strcmp(cache_policies[i]->name, name) == 0)
			return cache_policies[i];
	return NULL;
}

const char *cache_policy_list(void)
{
	return CACHE_POLICY_NAMES;
}

uint32_t cache_policy_wants(const struct cache_policy_ops *ops, const void *policy)
{
	uint32_t can_use = ops->hint_sources ? ops->hint_sources : (1u << HINT_SOURCES) - 1;
	return ops->wants ? can_use & ops->wants(policy) : can_use;
}

void cache_policy_ignore_hint(void *policy, const struct cache_hint *hint, uint32_t slot)
{
	(void)policy;
	(void)hint;
	(void)slot;
}
