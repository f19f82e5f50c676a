/*
 * The limits that control groups set for this process: version 2, and version 1 where a controller still lives there.
 * Every group up to the root counts, so the lowest limit is taken. Files that cannot be read set no limit. At start-up.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where to look; tests look elsewhere. */
struct cgroup_files {
	const char *membership; /* /proc/self/cgroup */
	const char *mount; /* /sys/fs/cgroup */
};
extern const struct cgroup_files cgroup_files;

struct cgroup_memory {
	uint64_t
		bytes; /* beyond it the kernel ends processes (memory.max) or holds them up (memory.high) */
	uint64_t
		available; /* what the groups, with everybody in them, leave of their limits now; file caches count as free */
	char where[256]; /* the file that says bytes, if any does */
	bool unread; /* a file that is there could not be read: the limits may be lower */
};

/* Both UINT64_MAX where there is no limit. */
void cgroup_memory(const struct cgroup_files *files, struct cgroup_memory *out);
/* Whether a file that could not be opened with this errno is there, and may be read another time: what is not there sets no
 * limit, and what is forbidden stays so. */
bool cgroup_may_pass(int error);
/* How many processes of this process's group the kernel has ended for lack of memory, whichever group's limit it was, since the
 * group was made; false where no group tells, or its file could not be read just now. */
bool cgroup_oom_kills(const struct cgroup_files *files, uint64_t *kills);
/* CPU time per time, 0 when there is no limit. */
double cgroup_cpus(const struct cgroup_files *files);
