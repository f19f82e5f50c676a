/* The expert-cache's settings: the keys of config/expert-cache.conf and the flags that set them. */
#pragma once

#include "services/knobs/cache.h"

/* What the key table cannot say: a model is named, the policy exists. */
int cache_config_check(const struct cache_config *config, struct error *err);
