#include "shared/base/cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct cgroup_files cgroup_files = {"/proc/self/cgroup", "/sys/fs/cgroup"};

bool cgroup_may_pass(int error)
{
	return error != ENOENT && error != ENOTDIR && error != EACCES && error != EPERM;
}

/* True when the comma-separated list contains the word. */
static bool has_word(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0'))
			return true;
	return false;
}

/* This process's group for a controller. "0::/path" is the line of version 2, "4:cpu,cpuacct:/path"
 * one of version 1. */
struct group {
	char path[PATH_MAX];
	bool version_1;
};

static bool leads_out(const char *path)
{
	for (const char *p = strstr(path, "/.."); p; p = strstr(p + 3, "/.."))
		if (p[3] == '/' || p[3] == '\0')
			return true;
	return false;
}

static bool find_group(
	const char *membership, const char *controller, struct group *out, bool *unread)
{
	FILE *file = fopen(membership, "re");
	char line[PATH_MAX + 256];
	bool found = false;

	if (!file) {
		*unread |= cgroup_may_pass(errno);
		return false;
	}
	/* A controller is in one hierarchy only: where version 1 has it, the files of version 2 do
	 * not exist. */
	while (!(found && out->version_1) && fgets(line, sizeof(line), file)) {
		char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

		line[strcspn(line, "\n")] = '\0';
		if (!path)
			continue;
		*path++ = '\0';
		list++;
		if (*list != '\0' && !has_word(list, controller))
			continue;
		found = true;
		out->version_1 = *list != '\0';
		/* The root group, "/", is the mounted directory itself. "/../x" lies outside the
		 * namespace, which shows nothing above its root. */
		bool root = strcmp(path, "/") == 0 || leads_out(path);
		snprintf(out->path, sizeof(out->path), "%s", root ? "" : path);
	}
	*unread |= ferror(file) != 0;
	fclose(file);
	return found;
}

/* Reads the first words of a small file. */
static bool read_text(const char *path, char *out, size_t bytes, bool *unread)
{
	FILE *file = fopen(path, "re");
	bool good = file && fgets(out, (int)bytes, file);

	*unread |= file ? ferror(file) != 0 : cgroup_may_pass(errno);
	if (file)
		fclose(file);
	return good;
}

/* Calls `look` for the group's directory and all directories above it. */
static void climb(const struct cgroup_files *files, const char *controller,
	void (*look)(const char *directory, bool version_1, void *arg), void *arg, bool *unread)
{
	struct group group = {.path = ""};
	char directory[2 * PATH_MAX];

	if (!find_group(files->membership, controller, &group, unread))
		return;
	for (;;) {
		if (group.version_1) {
			snprintf(directory, sizeof(directory), "%s/%s%s", files->mount, controller,
				group.path);
			look(directory, true, arg);
		} else {
			/* Beside version 1, version 2 is mounted in "unified". */
			snprintf(directory, sizeof(directory), "%s%s", files->mount, group.path);
			look(directory, false, arg);
			snprintf(directory, sizeof(directory), "%s/unified%s", files->mount,
				group.path);
			look(directory, false, arg);
		}
		char *slash = strrchr(group.path, '/');
		if (!slash)
			return;
		*slash = '\0';
	}
}

/* Reads the number in a small file; false when there is none, as in "max". */
static bool read_number(const char *directory, const char *name, uint64_t *out, bool *unread)
{
	char path[2 * PATH_MAX + 32], text[64], *end;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	if (!read_text(path, text, sizeof(text), unread))
		return false;
	*out = strtoull(text, &end, 10);
	return end != text;
}

/* Memory of file pages, which the kernel reclaims before anything else. Shared memory does not
 * count. */
static uint64_t file_caches(const char *directory, bool version_1)
{
	char path[2 * PATH_MAX + 32], line[128], name[64];
	uint64_t sum = 0, bytes;

	snprintf(path, sizeof(path), "%s/memory.stat", directory);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		/* In version 1 these names count the group alone; with "total_" before them they
		 * include the groups below. */
		if (sscanf(line, version_1 ? "total_%63s %" SCNu64 : "%63s %" SCNu64, name,
			    &bytes) == 2 &&
			(strcmp(name, "inactive_file") == 0 || strcmp(name, "active_file") == 0))
			sum += bytes;
	}
	if (file)
		fclose(file);
	return sum;
}

static void look_memory_file(
	const char *directory, const char *name, bool version_1, struct cgroup_memory *m)
{
	uint64_t bytes, used = 0, caches;

	/* Version 1 writes "no limit" as a number larger than any machine. */
	if (!read_number(directory, name, &bytes, &m->unread) || bytes >= (uint64_t)1 << 62)
		return;
	if (bytes < m->bytes) {
		m->bytes = bytes;
		snprintf(m->where, sizeof(m->where), "%s/%s", directory, name);
	}
	(void)read_number(directory, version_1 ? "memory.usage_in_bytes" : "memory.current", &used,
		&m->unread);
	caches = file_caches(directory, version_1);
	used = used > caches ? used - caches : 0;
	uint64_t left = bytes > used ? bytes - used : 0;
	if (left < m->available)
		m->available = left;
}

static void look_memory(const char *directory, bool version_1, void *arg)
{
	if (version_1) {
		look_memory_file(directory, "memory.limit_in_bytes", true, arg);
		return;
	}
	look_memory_file(directory, "memory.max", false, arg);
	look_memory_file(directory, "memory.high", false, arg);
}

void cgroup_memory(const struct cgroup_files *files, struct cgroup_memory *out)
{
	*out = (struct cgroup_memory){.bytes = UINT64_MAX, .available = UINT64_MAX};
	climb(files, "memory", look_memory, out, &out->unread);
}

struct oom_kills {
	uint64_t kills;
	bool found, unread;
};

/* The group's own count covers its processes and the groups below it; the counts above cover
 * others, too. */
static void look_oom_kills(const char *directory, bool version_1, void *arg)
{
	static const char name[] = "oom_kill ";
	struct oom_kills *out = arg;
	char path[2 * PATH_MAX + 32], line[128], *end;

	if (out->found || out->unread)
		return;
	snprintf(path, sizeof(path), "%s/%s", directory,
		version_1 ? "memory.oom_control" : "memory.events");
	FILE *file = fopen(path, "re");
	out->unread = file == NULL && cgroup_may_pass(errno);
	while (file && !out->found && fgets(line, sizeof(line), file)) {
		if (strncmp(line, name, sizeof(name) - 1) != 0)
			continue;
		out->kills = strtoull(line + sizeof(name) - 1, &end, 10);
		out->found = end != line + sizeof(name) - 1;
	}
	if (file) {
		out->unread = ferror(file) != 0;
		fclose(file);
	}
}

bool cgroup_oom_kills(const struct cgroup_files *files, uint64_t *kills)
{
	struct oom_kills found = {0};
	bool unread = false;

	climb(files, "memory", look_oom_kills, &found, &unread);
	*kills = found.kills;
	return found.found && !found.unread && !unread;
}

static void look_cpus(const char *directory, bool version_1, void *arg)
{
	double *lowest = arg, cpus;
	bool unread = false; /* read at start-up, when the threads are created */
	char path[2 * PATH_MAX + 32], text[64], more[64] = "";
	long long quota, period;

	snprintf(
		path, sizeof(path), "%s/%s", directory, version_1 ? "cpu.cfs_quota_us" : "cpu.max");
	if (!read_text(path, text, sizeof(text) / 2, &unread))
		return;
	if (version_1) {
		snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", directory);
		if (!read_text(path, more, sizeof(more) / 2, &unread))
			return;
	}
	char *end = NULL;
	quota = strtoll(text, &end, 10);
	period = strtoll(version_1 ? more : end, NULL, 10);
	if (end == text || quota <= 0 || period <= 0)
		return;
	cpus = (double)quota / (double)period;
	if (*lowest <= 0 || cpus < *lowest)
		*lowest = cpus;
}

double cgroup_cpus(const struct cgroup_files *files)
{
	double cpus = 0;
	bool unread = false;

	climb(files, "cpu", look_cpus, &cpus, &unread);
	return cpus;
}
