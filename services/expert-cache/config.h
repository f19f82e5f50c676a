/* The expert-cache's settings: the keys of config/expert-cache.conf and the flags that set them. */
#pragma once

#include "services/knobs/cache.h"

/* Checks what the table of keys cannot express: that a model is named, and that the policy exists.
 */
int cache_config_check(const struct cache_config *config, struct error *err);
