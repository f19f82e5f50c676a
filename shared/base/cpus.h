/*
 * The CPUs that this process may use: its affinity mask (which a cpuset narrows), cores and
 * hardware threads, memory nodes, and the quota of its control group. Any thread.
 */
#pragma once

#include "shared/base/cgroup.h"

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_place {
	uint16_t cpu, node;
	uint16_t sibling; /* number of earlier CPUs of the mask on the same core; 0 for the first */
};

/* The affinity mask of the calling thread; CPU 0 alone when it cannot be read. */
void cpus_mask(cpu_set_t *mask);

/* Where to look. Tests look elsewhere. */
struct cpus_files {
	const char *system; /* /sys/devices/system: cpu/cpuN with its siblings and its node */
	const struct cgroup_files *cgroup;
};
extern const struct cpus_files cpus_files;

/* The first n places to run threads on; at most as many as the mask has CPUs. First one per core,
 * taking the nodes in turn; then the other hardware threads of the cores. Returned in the order of
 * nodes, so that neighbours share one. Returns their number. */
uint32_t cpus_places(
	const struct cpus_files *files, const cpu_set_t *mask, struct cpu_place *out, uint32_t n);

struct cpus {
	uint32_t n; /* CPUs of the mask */
	uint32_t cores; /* that have at least one CPU in the mask */
	double quota; /* CPUs' worth of time that the control group allows; 0: no limit */
	/* best number of computing threads: one per core, within the quota; at least 1 */
	uint32_t threads;
};
void cpus_read(const struct cpus_files *files, const cpu_set_t *mask, struct cpus *out);
/* For the calling thread, on this machine. */
void cpus_now(struct cpus *out);

/* A sentence for the log when there are fewer CPUs, or less CPU time, than `threads` threads need;
 * otherwise empty. */
void cpus_notice(const struct cpus *cpus, uint32_t threads, char *out, size_t out_bytes);
