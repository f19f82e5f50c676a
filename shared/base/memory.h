/* How much memory this process may use: what the machine has, and what control groups leave of it.
 * Any thread. */
#pragma once

#include "shared/base/cgroup.h"
#include "shared/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct memory_limit {
	uint64_t bytes; /* above this the kernel ends processes, or nothing else can run */
	uint64_t available; /* of these now, if caches give theirs up */
	char where
		[256]; /* what sets the limit: "/sys/fs/cgroup/.../memory.max", or "this machine" */
	/* a file exists but could not be read just now: the real bytes and available may be lower
	 */
	bool unread;
};

/* files: as in cgroup.h; meminfo: "/proc/meminfo". A file that cannot be read sets no limit: bytes
 * may be UINT64_MAX. */
void memory_limit_read(
	const struct cgroup_files *files, const char *meminfo, struct memory_limit *out);

/* The limit of this process. */
void memory_limit_now(struct memory_limit *out);

/* Advice for when memory could not be mapped: "; this process may address 200 MiB: raise ...", or
 * "" when its address space is not limited. */
enum { MEMORY_ADVICE_BYTES = 128 };
const char *memory_advice(char out[static MEMORY_ADVICE_BYTES]);

/* Bytes of a file that the page cache holds; -1 when the kernel does not tell (before 6.5, or
 * forbidden). */
int64_t memory_file_cached(int fd);

/* The number after "name:" in a file like /proc/meminfo, unconverted; UINT64_MAX when there is
 * none. */
uint64_t memory_info(const char *meminfo, const char *name);

/* Sets memory to zero, but writes only where it is not: pages that were never written stay
 * unallocated. */
void memory_clear(void *memory, size_t bytes);
