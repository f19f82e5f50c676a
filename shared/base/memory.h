/* How much memory this process may use: what the machine has, and what control groups leave of it. Any thread. */
#pragma once

#include "shared/base/cgroup.h"
#include "shared/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct memory_limit {
	uint64_t bytes; /* beyond this the kernel ends processes, or nothing else is left running */
	uint64_t available; /* of them now, if caches give theirs up */
	char where
		[256]; /* what sets the limit: "/sys/fs/cgroup/.../memory.max", or "this machine" */
	bool unread; /* a file that is there could not be read just now: bytes and available may be less than they say */
};

/* files as cgroup.h has them, meminfo "/proc/meminfo". What cannot be read does not limit: bytes may be UINT64_MAX. */
void memory_limit_read(
	const struct cgroup_files *files, const char *meminfo, struct memory_limit *out);

/* This process's. */
void memory_limit_now(struct memory_limit *out);

/* What to set where memory could not be mapped: "; this process may address 200 MiB: raise ...", or "" where its address
 * space is not limited. */
enum { MEMORY_ADVICE_BYTES = 128 };
const char *memory_advice(char out[static MEMORY_ADVICE_BYTES]);

/* Bytes of a file that the page cache holds; -1 when the kernel does not tell (before 6.5, or forbidden). */
int64_t memory_file_cached(int fd);

/* The number after "name:" in a file like /proc/meminfo, as it stands there; UINT64_MAX when there is none. */
uint64_t memory_info(const char *meminfo, const char *name);

/* Zeroes in it what is not zero: pages that were never written stay so, and cost no memory. */
void memory_clear(void *memory, size_t bytes);
