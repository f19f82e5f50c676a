/*
 * The CPUs this process may use: its affinity mask (which a cpuset narrows), cores and hardware threads, nodes, and the
 * quota of its control group. Any thread.
 */
#pragma once

#include "shared/base/cgroup.h"

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_place {
	uint16_t cpu, node;
	uint16_t sibling; /* CPUs of the mask before it on the same core: 0 for the first */
};

/* The mask of the calling thread; when it cannot be read, CPU 0 alone. */
void cpus_mask(cpu_set_t *mask);

/* Where to look; tests look elsewhere. */
struct cpus_files {
	const char *system; /* /sys/devices/system: cpu/cpuN with its siblings and its node */
	const struct cgroup_files *cgroup;
};
extern const struct cpus_files cpus_files;

/* The first n places to run threads on, at most the CPUs of the mask: first one per core, in turn from each node; then
 * the cores' other hardware threads. In the order of nodes, so that neighbours share one. Returns how many. */
uint32_t cpus_places(
	const struct cpus_files *files, const cpu_set_t *mask, struct cpu_place *out, uint32_t n);

struct cpus {
	uint32_t n; /* CPUs of the mask */
	uint32_t cores; /* with at least one CPU in the mask */
	double quota; /* CPUs' worth of time that the control group allows; 0 without a limit */
	uint32_t
		threads; /* what computes best: one thread per core, within the quota; at least 1 */
};
void cpus_read(const struct cpus_files *files, const cpu_set_t *mask, struct cpus *out);
/* Of the calling thread, on this machine. */
void cpus_now(struct cpus *out);

/* A sentence for the log on so many threads where there are fewer CPUs, or less CPU time; empty when it fits. */
void cpus_notice(const struct cpus *cpus, uint32_t threads, char *out, size_t out_bytes);
