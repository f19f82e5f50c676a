/*
 * The limits that control groups set for this process: version 2, and version 1 where a controller still lives there.
 * Every group up to the root counts, so the lowest limit is taken. Files that cannot be read set no limit. At start-up.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Where to look; tests look elsewhere. */
struct cgroup_files {
	const char *membership; /* /proc/self/cgroup */
	const char *mount; /* /sys/fs/cgroup */
};
extern const struct cgroup_files cgroup_files;

/* Bytes, UINT64_MAX when there is no limit; where (may be NULL) becomes the path of the file that says so. */
uint64_t cgroup_memory(const struct cgroup_files *files, char *where, size_t where_bytes);
/* CPU time per time, 0 when there is no limit. */
double cgroup_cpus(const struct cgroup_files *files);
