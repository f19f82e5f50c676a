/* The expert-cache's settings: the keys of config/expert-cache.conf and the flags that set them. */
#pragma once

#include "shared/base/config.h"
#include "shared/base/limits.h"

enum auto_choice { CHOICE_AUTO, CHOICE_YES, CHOICE_NO };
enum io_choice { IO_AUTO, IO_URING, IO_PREAD };

struct cache_config {
	char model[1024];
	char budget[32];
	char policy[LIMIT_NAME];
	char profile[1024];
	int io; /* enum io_choice */
	int direct; /* enum auto_choice */
	int64_t queue_depth, read_bytes; /* 0: measured */
	int preload; /* enum auto_choice */
	int pack; /* enum auto_choice */
	int64_t hint_queue_max;
	int64_t spin_ns;
};

extern const struct config_key cache_config_keys[];

/* What the key table cannot say: a model is named, the policy exists. */
int cache_config_check(const struct cache_config *config, struct error *err);
