#include "shared/base/cpus.h"

#include "shared/base/cgroup.h"
#include "shared/base/limits.h"
#include "shared/base/nodes.h"

#include <stdio.h>
#include <stdlib.h>

void cpus_mask(cpu_set_t *mask)
{
	if (sched_getaffinity(0, sizeof(*mask), mask) == 0 && CPU_COUNT(mask) > 0)
		return;
	CPU_ZERO(mask);
	CPU_SET(0, mask);
}

/* How many CPUs of the mask are on the same core and have lower numbers: a list like "0,32" or "0-1" says. */
static uint16_t sibling_rank(uint32_t cpu, const cpu_set_t *mask)
{
	char path[96], text[256], *at = text;
	uint16_t rank = 0;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list",
		cpu);
	FILE *file = fopen(path, "re");
	if (!file || !fgets(text, sizeof(text), file))
		text[0] = '\0';
	if (file)
		fclose(file);
	while (*at >= '0' && *at <= '9') {
		unsigned long first = strtoul(at, &at, 10);
		unsigned long last = *at == '-' ? strtoul(at + 1, &at, 10) : first;

		for (unsigned long i = first; i <= last && i < cpu && i < CPU_SETSIZE; i++)
			rank = (uint16_t)(rank + (CPU_ISSET(i, mask) ? 1 : 0));
		at += *at == ',';
	}
	return rank;
}

struct candidate {
	struct cpu_place place;
	uint32_t rank; /* among those of its node with the same sibling */
};

static int by_choice(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->place.sibling != y->place.sibling)
		return x->place.sibling < y->place.sibling ? -1 : 1;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	if (x->place.node != y->place.node)
		return x->place.node < y->place.node ? -1 : 1;
	return (x->place.cpu > y->place.cpu) - (x->place.cpu < y->place.cpu);
}

static int by_node(const void *a, const void *b)
{
	const struct cpu_place *x = a, *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	return (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

static uint32_t list(const cpu_set_t *mask, struct candidate *out)
{
	uint32_t n = 0;

	for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, mask))
			continue;
		struct candidate c = {
			{(uint16_t)cpu, (uint16_t)nodes_of_cpu(cpu), sibling_rank(cpu, mask)}, 0};
		for (uint32_t i = 0; i < n; i++)
			if (out[i].place.node == c.place.node &&
				out[i].place.sibling == c.place.sibling)
				c.rank = out[i].rank + 1;
		out[n++] = c;
	}
	return n;
}

uint32_t cpus_places(const cpu_set_t *mask, struct cpu_place *out, uint32_t n)
{
	struct candidate all[CPU_SETSIZE];
	uint32_t found = list(mask, all);

	qsort(all, found, sizeof(all[0]), by_choice);
	if (n > found)
		n = found;
	for (uint32_t i = 0; i < n; i++)
		out[i] = all[i].place;
	qsort(out, n, sizeof(out[0]), by_node);
	return n;
}

uint32_t cpus_count(void)
{
	cpu_set_t mask;

	cpus_mask(&mask);
	int n = CPU_COUNT(&mask);
	return n < 1 ? 1 : n > LIMIT_THREADS ? LIMIT_THREADS : (uint32_t)n;
}

void cpus_read(struct cpus *out)
{
	struct candidate all[CPU_SETSIZE];
	cpu_set_t mask;

	cpus_mask(&mask);
	*out = (struct cpus){.n = list(&mask, all), .quota = cgroup_cpus(&cgroup_files)};
	for (uint32_t i = 0; i < out->n; i++)
		out->cores += all[i].place.sibling == 0;
	out->threads = out->cores;
	/* Beyond the quota the kernel stops all threads for the rest of a period, whoever holds what. */
	if (out->quota > 0 && out->quota < out->threads)
		out->threads = out->quota < 1 ? 1 : (uint32_t)out->quota;
	if (out->threads > LIMIT_THREADS)
		out->threads = LIMIT_THREADS;
}

void cpus_notice(const struct cpus *cpus, uint32_t threads, char *out, size_t out_bytes)
{
	out[0] = '\0';
	if (threads > cpus->n)
		snprintf(out, out_bytes,
			"threads = %u, but this process has %u CPU%s: as many threads take part",
			threads, cpus->n, cpus->n == 1 ? "" : "s");
	else if (cpus->quota > 0 && threads > 1 && threads > cpus->quota)
		snprintf(out, out_bytes,
			"threads = %u, but the control group (cpu.max) allows the time of %.2f "
			"CPUs: all are stopped for parts of each period; threads = %u is faster",
			threads, cpus->quota, cpus->threads);
}
