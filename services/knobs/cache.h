/* The table of the expert cache's settings, and the structure that it fills. */
#pragma once

#include "shared/base/config.h"
#include "shared/base/limits.h"

/* The names of its policies: A(name) for the first, then B(name) for each of the others. */
#define CACHE_POLICY_EACH(A, B) \
	A("static") B("lru") B("lfu-trace") B("gate-next") B("sp-moe") B("spac") B("outrider")
#define CACHE_POLICY_FIRST(name) name
#define CACHE_POLICY_NEXT(name) ", " name
/* For messages and help. */
#define CACHE_POLICY_NAMES CACHE_POLICY_EACH(CACHE_POLICY_FIRST, CACHE_POLICY_NEXT)

/* Bounds of how many reads may be in the kernel at once, and of the length of one. */
#define READER_DEPTH_MIN 1
#define READER_DEPTH_MAX 1024
#define READER_BYTES_MIN 65536
#define READER_BYTES_MAX (16u << 20)

enum auto_choice { CHOICE_AUTO, CHOICE_YES, CHOICE_NO };
enum io_choice { IO_AUTO, IO_URING, IO_PREAD };

struct cache_config {
	char model[1024];
	char budget[32];
	char device[64]; /* kernels/gpu/choice.h */
	bool device_shared;
	char device_budget[32];
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
