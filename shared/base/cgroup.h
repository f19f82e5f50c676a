/*
 * The limits that control groups set for this process: version 2, and version 1 where a controller
 * still lives there. Every group up to the root counts, so the lowest limit is taken. A file that
 * cannot be read sets no limit. Used at start-up.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where to look. Tests look elsewhere. */
struct cgroup_files {
	const char *membership; /* /proc/self/cgroup */
	const char *mount; /* /sys/fs/cgroup */
};
extern const struct cgroup_files cgroup_files;

struct cgroup_memory {
	/* above it the kernel ends processes (memory.max) or delays them (memory.high) */
	uint64_t bytes;
	/* what all processes of the groups leave of these limits now; file caches count as free */
	uint64_t available;
	char where[256]; /* the file that sets `bytes`, if any */
	bool unread; /* a file exists but could not be read: the limits may be lower */
};

/* bytes and available are UINT64_MAX when there is no limit. */
void cgroup_memory(const struct cgroup_files *files, struct cgroup_memory *out);
/* True when a file that failed to open with this errno exists and may be readable at another time.
 * A missing file sets no limit, and a forbidden one stays forbidden. */
bool cgroup_may_pass(int error);
/* How many processes of this process's group the kernel has ended for lack of memory since the
 * group was made, whichever group's limit it was. False: no group tells, or its file could not be
 * read just now. */
bool cgroup_oom_kills(const struct cgroup_files *files, uint64_t *kills);
/* CPUs' worth of time that the group may use; 0: no limit. */
double cgroup_cpus(const struct cgroup_files *files);
