#include "shared/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t memory_info(const char *meminfo, const char *name)
{
	FILE *file = fopen(meminfo, "re");
	uint64_t value = UINT64_MAX;
	size_t n = strlen(name);
	char line[128];

	while (file && fgets(line, sizeof(line), file)) {
		char *end;

		if (strncmp(line, name, n) != 0 || line[n] != ':')
			continue;
		value = strtoull(line + n + 1, &end, 10);
		if (end == line + n + 1)
			value = UINT64_MAX;
		break;
	}
	if (file)
		fclose(file);
	return value;
}

static uint64_t memory_info_bytes(const char *meminfo, const char *name)
{
	uint64_t kib = memory_info(meminfo, name);

	return kib > UINT64_MAX >> 10 ? UINT64_MAX : kib << 10;
}

void memory_limit_read(
	const struct cgroup_files *files, const char *meminfo, struct memory_limit *out)
{
	uint64_t machine = memory_info_bytes(meminfo, "MemTotal");

	out->available = memory_info_bytes(meminfo, "MemAvailable");
	out->bytes = cgroup_memory(files, out->where, sizeof(out->where));
	if (out->bytes >= machine) {
		out->bytes = machine;
		snprintf(out->where, sizeof(out->where), "this machine");
	}
	if (out->available > out->bytes)
		out->available = out->bytes;
}
