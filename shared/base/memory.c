#include "shared/base/memory.h"

#include <inttypes.h>
#include <stdio.h>

static void read_machine(const char *path, uint64_t *total, uint64_t *available)
{
	FILE *file = fopen(path, "re");
	char line[128];
	uint64_t kib;

	*total = *available = UINT64_MAX;
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "MemTotal: %" SCNu64 " kB", &kib) == 1 && kib < UINT64_MAX >> 10)
			*total = kib << 10;
		if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1 &&
			kib < UINT64_MAX >> 10)
			*available = kib << 10;
	}
	if (file)
		fclose(file);
}

void memory_limit_read(
	const struct cgroup_files *files, const char *meminfo, struct memory_limit *out)
{
	uint64_t machine;

	read_machine(meminfo, &machine, &out->available);
	out->bytes = cgroup_memory(files, out->where, sizeof(out->where));
	if (out->bytes >= machine) {
		out->bytes = machine;
		snprintf(out->where, sizeof(out->where), "this machine");
	}
	if (out->available > out->bytes)
		out->available = out->bytes;
}
