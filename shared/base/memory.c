#include "shared/base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The same number on every architecture. Older headers lack it. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

/* *failed: the errno when the file could not be opened; otherwise unchanged. */
static uint64_t read_info(const char *meminfo, const char *name, int *failed)
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
	else
		*failed = errno;
	return value;
}

uint64_t memory_info(const char *meminfo, const char *name)
{
	int ignored;

	return read_info(meminfo, name, &ignored);
}

static uint64_t read_info_bytes(const char *meminfo, const char *name, int *failed)
{
	uint64_t kib = read_info(meminfo, name, failed);

	return kib > UINT64_MAX >> 10 ? UINT64_MAX : kib << 10;
}

void memory_limit_read(
	const struct cgroup_files *files, const char *meminfo, struct memory_limit *out)
{
	int failed = 0;
	uint64_t machine = read_info_bytes(meminfo, "MemTotal", &failed);
	struct cgroup_memory group;

	cgroup_memory(files, &group);
	out->available = read_info_bytes(meminfo, "MemAvailable", &failed);
	out->bytes = group.bytes;
	/* For example, because no descriptor is left for it. */
	out->unread = group.unread || (failed != 0 && cgroup_may_pass(failed));
	memcpy(out->where, group.where, sizeof(out->where));
	if (out->bytes >= machine) {
		out->bytes = machine;
		snprintf(out->where, sizeof(out->where), "this machine");
	}
	if (out->available > group.available)
		out->available = group.available;
	if (out->available > out->bytes)
		out->available = out->bytes;
}

void memory_limit_now(struct memory_limit *out)
{
	memory_limit_read(&cgroup_files, "/proc/meminfo", out);
}

const char *memory_advice(char out[static MEMORY_ADVICE_BYTES])
{
	struct rlimit limit;

	out[0] = '\0';
	if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		snprintf(out, MEMORY_ADVICE_BYTES,
			"; this process may address %llu MiB: raise or lift that (RLIMIT_AS: "
			"ulimit -v, LimitAS=)",
			(unsigned long long)limit.rlim_cur >> 20);
	return out;
}

_Static_assert(
	sizeof(((struct memory_limit *)0)->where) == sizeof(((struct cgroup_memory *)0)->where),
	"one takes the other's");

int64_t memory_file_cached(int fd)
{
	const struct {
		uint64_t offset, bytes;
	} all = {0, 0}; /* length 0: to the end */
	struct {
		uint64_t cached, dirty, writeback, evicted, recently_evicted;
	} pages;

	if (syscall(SYS_cachestat, fd, &all, &pages, 0) != 0)
		return -1;
	return (int64_t)(pages.cached * (uint64_t)sysconf(_SC_PAGESIZE));
}

void memory_clear(void *memory, size_t bytes)
{
	enum { STEP = 4096 };
	static const char zeros[STEP];

	for (size_t at = 0; at < bytes; at += STEP) {
		size_t n = bytes - at < STEP ? bytes - at : STEP;

		if (memcmp((char *)memory + at, zeros, n) != 0)
			memset((char *)memory + at, 0, n);
	}
}
