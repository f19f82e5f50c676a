#include "client/cli/doctor/machine.h"

#include "kernels/cpu/simd.h"
#include "kernels/gpu/backend.h"
#include "kernels/kernels.h"
#include "shared/base/units.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The name of a file below the root. */
struct path {
	char text[PATH_MAX];
};

static struct path below(const char *root, const char *name)
{
	struct path path;

	snprintf(path.text, sizeof(path.text), "%s%s", root, name);
	return path;
}

/* The first line of a file without its end; false when there is none. */
static bool read_line(const char *root, const char *name, char *out, size_t bytes)
{
	FILE *file = fopen(below(root, name).text, "re");
	bool good = file && fgets(out, (int)bytes, file);

	if (file)
		fclose(file);
	out[good ? strcspn(out, "\n") : 0] = '\0';
	return good;
}

/* The word in brackets: "always [madvise] never". */
static void read_choice(const char *root, const char *name, char *out, size_t bytes)
{
	char line[128];

	out[0] = '\0';
	if (!read_line(root, name, line, sizeof(line)))
		return;
	const char *from = strchr(line, '[');
	size_t n = from ? strcspn(from + 1, "]") : 0;
	if (n > 0 && n < bytes && from[1 + n] == ']')
		snprintf(out, bytes, "%.*s", (int)n, from + 1);
}

static bool has_flag(const char *flags, const char *flag)
{
	size_t n = strlen(flag);

	for (const char *p = flags; (p = strstr(p, flag)) != NULL; p += n)
		if (p > flags && p[-1] == ' ' && (p[n] == ' ' || p[n] == '\n' || p[n] == '\0'))
			return true;
	return false;
}

static void read_flags(const char *root, struct machine *out)
{
	FILE *file = fopen(below(root, "/proc/cpuinfo").text, "re");
	char *line = NULL;
	size_t room = 0;

	while (file && getline(&line, &room, file) > 0) {
		if (strncmp(line, "flags", 5) != 0)
			continue;
		out->has_avx2 = has_flag(line, "avx2");
		out->has_avx512f = has_flag(line, "avx512f");
		out->has_vnni = has_flag(line, "avx512_vnni");
		break;
	}
	free(line);
	if (file)
		fclose(file);
}

/* A value of /proc/meminfo, which is in KiB, in bytes. */
static uint64_t info_bytes(const char *meminfo, const char *name)
{
	uint64_t kib = memory_info(meminfo, name);

	return kib > UINT64_MAX >> 10 ? UINT64_MAX : kib << 10;
}

static void read_memory(const char *root, struct machine *out)
{
	struct path meminfo = below(root, "/proc/meminfo");
	struct path membership = below(root, "/proc/self/cgroup"),
		    mount = below(root, "/sys/fs/cgroup");
	const struct cgroup_files files = {membership.text, mount.text};

	memory_limit_read(&files, meminfo.text, &out->memory);
	out->memory_total = info_bytes(meminfo.text, "MemTotal");
	out->swap_total = info_bytes(meminfo.text, "SwapTotal");
	out->swap_free = info_bytes(meminfo.text, "SwapFree");
	out->huge_total = memory_info(meminfo.text, "HugePages_Total");
	out->huge_free = memory_info(meminfo.text, "HugePages_Free");
	out->huge_page_bytes = info_bytes(meminfo.text, "Hugepagesize");
	read_choice(
		root, "/sys/kernel/mm/transparent_hugepage/enabled", out->thp, sizeof(out->thp));
	read_choice(root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", out->thp_shared,
		sizeof(out->thp_shared));
}

/* How many entries of a directory begin with these letters and continue with a digit; without
 * letters: all entries. */
static uint32_t count_entries(const char *root, const char *name, const char *letters)
{
	DIR *directory = opendir(below(root, name).text);
	size_t n = strlen(letters);
	uint32_t count = 0;

	for (struct dirent *e; directory && (e = readdir(directory)) != NULL;)
		count += n == 0 ? e->d_name[0] != '.'
				: strncmp(e->d_name, letters, n) == 0 &&
					  isdigit((unsigned char)e->d_name[n]);
	if (directory)
		closedir(directory);
	return count;
}

static void read_cpus(const char *root, const cpu_set_t *mask, struct machine *out)
{
	struct path system = below(root, "/sys/devices/system");
	struct path membership = below(root, "/proc/self/cgroup"),
		    mount = below(root, "/sys/fs/cgroup");
	const struct cgroup_files cgroup = {membership.text, mount.text};
	const struct cpus_files files = {system.text, &cgroup};
	char line[128], *end;

	cpu_name_read(below(root, "/proc/cpuinfo").text, out->cpu);
	read_flags(root, out);
	cpus_read(&files, mask, &out->cpus);
	out->nodes = count_entries(root, "/sys/devices/system/node", "node");
	if (out->nodes == 0)
		out->nodes = 1;
	out->load = -1;
	if (read_line(root, "/proc/loadavg", line, sizeof(line))) {
		double load = strtod(line, &end);

		out->load = end != line && load >= 0 ? load : -1;
	}
}

/* From "NVRM version: NVIDIA UNIX x86_64 Kernel Module 535.104.05 Sat Aug ...": the version. */
static void read_driver(const char *root, char *out, size_t bytes)
{
	char line[256];

	out[0] = '\0';
	if (!read_line(root, "/proc/driver/nvidia/version", line, sizeof(line)))
		return;
	/* The version is the first word that begins with a digit and contains a point. */
	for (char *word = strtok(line, " \t"); word; word = strtok(NULL, " \t"))
		if (isdigit((unsigned char)word[0]) && strchr(word, '.')) {
			snprintf(out, bytes, "%s", word);
			return;
		}
	snprintf(out, bytes, "of an unknown version");
}

static void read_gpus(const char *root, struct machine *out)
{
	static const char directory[] = "/proc/driver/nvidia/gpus";
	DIR *gpus = opendir(below(root, directory).text);
	char name[PATH_MAX], line[256];

	out->n_gpus = count_entries(root, directory, "");
	out->gpu[0] = '\0';
	for (struct dirent *e; gpus && out->gpu[0] == '\0' && (e = readdir(gpus)) != NULL;) {
		snprintf(name, sizeof(name), "%s/%s/information", directory, e->d_name);
		if (e->d_name[0] == '.' || !read_line(root, name, line, sizeof(line)) ||
			strncmp(line, "Model:", 6) != 0)
			continue;
		snprintf(out->gpu, sizeof(out->gpu), "%.95s", line + 6 + strspn(line + 6, " \t"));
	}
	if (gpus)
		closedir(gpus);
}

static void read_units(const char *root, struct machine *out)
{
	static const char *const directories[] = {"/etc/systemd/system",
		"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"};
	char name[128];

	out->systemd = access(below(root, "/run/systemd/system").text, F_OK) == 0;
	out->units[0] = '\0';
	for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++) {
		snprintf(name, sizeof(name), "%s/outrider-verifier.service", directories[i]);
		if (access(below(root, name).text, F_OK) != 0)
			continue;
		snprintf(out->units, sizeof(out->units), "%s", directories[i]);
		return;
	}
}

/* CAP_IPC_LOCK among the effective capabilities. */
static bool read_may_lock(const char *root)
{
	enum { IPC_LOCK = 14 };
	FILE *file = fopen(below(root, "/proc/self/status").text, "re");
	unsigned long long set = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, "CapEff:", 7) == 0)
			set = strtoull(line + 7, NULL, 16);
	if (file)
		fclose(file);
	return (set >> IPC_LOCK & 1) != 0;
}

void machine_read(const char *root, const cpu_set_t *mask, struct machine *out)
{
	char line[64], *end;

	read_cpus(root, mask, out);
	read_memory(root, out);
	out->io_uring_disabled = -1;
	if (read_line(root, "/proc/sys/kernel/io_uring_disabled", line, sizeof(line))) {
		long value = strtol(line, &end, 10);

		out->io_uring_disabled = end != line && value >= 0 && value <= 2 ? (int)value : -1;
	}
	out->may_lock = read_may_lock(root);
	read_driver(root, out->driver, sizeof(out->driver));
	read_gpus(root, out);
	read_units(root, out);
}

static uint64_t of_limit(rlim_t limit)
{
	return limit == RLIM_INFINITY ? UINT64_MAX : (uint64_t)limit;
}

/* The path of a program in PATH; "": there is none. */
static void find_program(const char *name, char *out, size_t bytes)
{
	const char *path = getenv("PATH");

	while (path && *path) {
		size_t n = strcspn(path, ":");

		snprintf(out, bytes, "%.*s/%s", (int)n, path, name);
		if (n > 0 && access(out, X_OK) == 0)
			return;
		path += n + (path[n] == ':');
	}
	out[0] = '\0';
}

/* Whether the back end for GPUs, and the driver, can be used. */
static void probe_gpu(struct machine *out)
{
	const struct backend_gpu_options options = {.device = ""};
	struct error err = {.text = ""};
	struct backend_memory memory;
	struct backend *backend;

	out->gpu_usable = backend_cuda_create(&options, &backend, &err) == 0;
	if (!out->gpu_usable) {
		snprintf(out->gpu_use, sizeof(out->gpu_use), "%.390s", err.text);
		return;
	}
	backend->ops->memory(backend, &memory);
	snprintf(out->gpu_use, sizeof(out->gpu_use), "%s, %s of %s free, driver for CUDA %s",
		backend->device->name, UNITS_SIZE(memory.free), UNITS_SIZE(memory.bytes),
		backend->device->driver);
	backend->ops->destroy(backend);
}

void machine_probe(struct machine *out)
{
	const struct kernels *kernels = kernels_select("auto", NULL);
	struct io_uring ring;
	struct rlimit limit;

	out->kernels = kernels->name;
	out->kernels_notice = kernels_notice(kernels, "auto");
	out->io_uring = io_uring_queue_init(1, &ring, 0);
	if (out->io_uring == 0)
		io_uring_queue_exit(&ring);
	out->memlock = out->files_now = out->files_most = UINT64_MAX;
	if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
		out->memlock = of_limit(limit.rlim_cur);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		out->files_now = of_limit(limit.rlim_cur);
		out->files_most = of_limit(limit.rlim_max);
	}
	find_program("nvidia-smi", out->nvidia_smi, sizeof(out->nvidia_smi));
	probe_gpu(out);
}
