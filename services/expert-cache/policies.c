#include "services/expert-cache/policy.h"

#include <string.h>

static const struct cache_policy_ops *const policies[] = {&policy_lru};

const struct cache_policy_ops *cache_policy_find(const char *name)
{
	for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
		if (strcmp(policies[i]->name, name) == 0)
			return policies[i];
	return NULL;
}

const char *cache_policy_list(void)
{
	return "lru";
}
