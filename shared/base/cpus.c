#include "shared/base/cpus.h"

#include "shared/base/limits.h"
#include "shared/base/plural.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct cpus_files cpus_files = {"/sys/devices/system", &cgroup_files};

void cpus_mask(cpu_set_t *mask)
{
	if (sched_getaffinity(0, sizeof(*mask), mask) == 0 && CPU_COUNT(mask) > 0)
		return;
	CPU_ZERO(mask);
	CPU_SET(0, mask);
}

/* How many CPUs of the mask are on the same core and have lower numbers, according to a list like
 * "0,32" or "0-1". */
static uint16_t sibling_rank(const struct cpus_files *files, uint32_t cpu, const cpu_set_t *mask)
{
	char path[PATH_MAX], text[256], *at = text;
	uint16_t rank = 0;

	snprintf(path, sizeof(path), "%s/cpu/cpu%u/topology/thread_siblings_list", files->system,
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

/* The memory node of a CPU: its directory has a link with the node's name. 0 when there is none. */
static uint16_t node_of(const struct cpus_files *files, uint32_t cpu)
{
	char path[PATH_MAX], *end;
	uint16_t node = 0;

	snprintf(path, sizeof(path), "%s/cpu/cpu%u", files->system, cpu);
	DIR *directory = opendir(path);
	for (struct dirent *e; directory && (e = readdir(directory)) != NULL;) {
		if (strncmp(e->d_name, "node", 4) != 0)
			continue;
		unsigned long n = strtoul(e->d_name + 4, &end, 10);
		if (end != e->d_name + 4 && *end == '\0' && n <= UINT16_MAX)
			node = (uint16_t)n;
	}
	if (directory)
		closedir(directory);
	return node;
}

struct candidate {
	struct cpu_place place;
	uint32_t rank; /* among the places of its node with the same sibling */
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

static uint32_t list(const struct cpus_files *files, const cpu_set_t *mask, struct candidate *out)
{
	uint32_t n = 0;

	for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, mask))
			continue;
		struct candidate c = {
			{(uint16_t)cpu, node_of(files, cpu), sibling_rank(files, cpu, mask)}, 0};
		for (uint32_t i = 0; i < n; i++)
			if (out[i].place.node == c.place.node &&
				out[i].place.sibling == c.place.sibling)
				c.rank = out[i].rank + 1;
		out[n++] = c;
	}
	return n;
}

uint32_t cpus_places(
	const struct cpus_files *files, const cpu_set_t *mask, struct cpu_place *out, uint32_t n)
{
	struct candidate all[CPU_SETSIZE];
	uint32_t found = list(files, mask, all);

	qsort(all, found, sizeof(all[0]), by_choice);
	if (n > found)
		n = found;
	for (uint32_t i = 0; i < n; i++)
		out[i] = all[i].place;
	qsort(out, n, sizeof(out[0]), by_node);
	return n;
}

void cpus_read(const struct cpus_files *files, const cpu_set_t *mask, struct cpus *out)
{
	struct candidate all[CPU_SETSIZE];

	*out = (struct cpus){.n = list(files, mask, all), .quota = cgroup_cpus(files->cgroup)};
	for (uint32_t i = 0; i < out->n; i++)
		out->cores += all[i].place.sibling == 0;
	out->threads = out->cores;
	/* When the quota is used up, the kernel stops all threads for the rest of a period,
	 * whatever they hold. */
	if (out->quota > 0 && out->quota < out->threads)
		out->threads = out->quota < 1 ? 1 : (uint32_t)out->quota;
	if (out->threads > LIMIT_THREADS)
		out->threads = LIMIT_THREADS;
}

void cpus_now(struct cpus *out)
{
	cpu_set_t mask;

	cpus_mask(&mask);
	cpus_read(&cpus_files, &mask, out);
}

void cpus_notice(const struct cpus *cpus, uint32_t threads, char *out, size_t out_bytes)
{
	out[0] = '\0';
	if (threads > cpus->n)
		snprintf(out, out_bytes,
			"threads = %u, but this process has %u CPU%s: only as many threads take "
			"part",
			threads, cpus->n, plural(cpus->n));
	else if (cpus->quota > 0 && threads > 1 && threads > cpus->quota)
		snprintf(out, out_bytes,
			"threads = %u, but the control group (cpu.max) allows the time of %.2f "
			"CPUs: all threads are stopped for a part of each period; threads = %u is "
			"faster",
			threads, cpus->quota, cpus->threads);
}
