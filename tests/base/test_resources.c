/* shared/base: what the machine and the control groups leave this process of CPUs and memory, and huge pages. */
#include "shared/base/cgroup.h"
#include "shared/base/cpu_name.h"
#include "shared/base/cpus.h"
#include "shared/base/huge_pages.h"
#include "shared/base/limits.h"
#include "shared/base/memory.h"
#include "shared/base/memory_fits.h"
#include "shared/base/nodes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/made_up_machine.h"

static char system_path[128];
static const struct cpus_files machine = {system_path, &files};

static int make_machine(void **state)
{
	if (make_directory(state) != 0)
		return -1;
	snprintf(system_path, sizeof(system_path), "%s/system", directory);
	return 0;
}

/* Each test has a tree of its own. */
static int empty_directory(void **state)
{
	return remove_directory(state) != 0 || mkdir(directory, 0755) != 0 ? -1 : 0;
}

static uint64_t memory_limit(void)
{
	struct cgroup_memory memory;

	cgroup_memory(&files, &memory);
	return memory.bytes;
}

static void without_files_there_is_no_limit(void **state)
{
	struct memory_limit limit;

	(void)state;
	assert_true(memory_limit() == UINT64_MAX);
	assert_true(cgroup_cpus(&files) == 0);
	memory_limit_read(&files, meminfo, &limit);
	assert_true(limit.bytes == UINT64_MAX && limit.available == UINT64_MAX);
}

/* The limit seems to be lifted; whoever knew it must not believe that. */
static void a_limit_that_cannot_be_read_now_is_told_from_none(void **state)
{
	struct memory_limit limit;
	char path[200];

	(void)state;
	write_file("membership", "0::/a/b\n");
	write_file("meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
	memory_limit_read(&files, meminfo, &limit);
	assert_false(limit.unread);
	/* A directory opens, and reading it fails. */
	write_file("mount/a/memory.max/file", "");
	memory_limit_read(&files, meminfo, &limit);
	assert_true(limit.unread && limit.bytes == 1000 << 10);
	snprintf(path, sizeof(path), "%s/mount/a/memory.max/file", directory);
	assert_int_equal(unlink(path), 0);
	*strrchr(path, '/') = '\0';
	assert_int_equal(rmdir(path), 0);
	memory_limit_read(&files, meminfo, &limit);
	assert_false(limit.unread);
}

static void the_lowest_limit_up_to_the_root_counts(void **state)
{
	struct cgroup_memory memory;

	(void)state;
	write_file("membership", "0::/slice/service/inner\n");
	write_file("mount/slice/service/inner/memory.max", "max\n");
	write_file("mount/slice/service/memory.max", "3000000\n");
	write_file("mount/slice/memory.max", "2000000\n");
	write_file("mount/memory.max", "9000000\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.bytes, 2000000);
	assert_int_equal(memory.available, 2000000);
	assert_non_null(strstr(memory.where, "/mount/slice/memory.max"));
	write_file("mount/slice/service/cpu.max", "max 100000\n");
	assert_true(cgroup_cpus(&files) == 0);
	write_file("mount/slice/cpu.max", "150000 100000\n");
	assert_true(cgroup_cpus(&files) == 1.5);
	write_file("mount/slice/service/inner/cpu.max", "50000 100000\n");
	assert_true(cgroup_cpus(&files) == 0.5);
}

static void version_1_is_read_where_a_controller_is_there(void **state)
{
	struct cgroup_memory memory;

	(void)state;
	write_file("membership", "9:name=systemd:/\n4:memory:/a/b\n2:cpuacct,cpu:/c\n0::/slice\n");
	write_file("mount/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	write_file("mount/memory/a/memory.limit_in_bytes", "1000000\n");
	write_file("mount/cpu/c/cpu.cfs_quota_us", "250000\n");
	write_file("mount/cpu/c/cpu.cfs_period_us", "100000\n");
	write_file("mount/cpu/cpu.cfs_quota_us", "-1\n");
	write_file("mount/cpu/cpu.cfs_period_us", "100000\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.bytes, 1000000);
	assert_non_null(strstr(memory.where, "memory/a/memory.limit_in_bytes"));
	assert_true(cgroup_cpus(&files) == 2.5);
}

static void what_is_held_up_from_on_is_a_limit_too(void **state)
{
	struct cgroup_memory memory;

	(void)state;
	write_file("membership", "0::/slice/inner\n");
	write_file("mount/slice/inner/memory.max", "5000000\n");
	write_file("mount/slice/inner/memory.high", "4000000\n");
	write_file("mount/slice/memory.high", "max\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.bytes, 4000000);
	assert_non_null(strstr(memory.where, "/mount/slice/inner/memory.high"));
	write_file("mount/slice/memory.high", "3000000\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.bytes, 3000000);
	assert_non_null(strstr(memory.where, "/mount/slice/memory.high"));
}

static void whom_the_kernel_ended_is_counted_in_ones_own_group(void **state)
{
	uint64_t kills = 7;
	char path[256];

	(void)state;
	write_file("membership", "0::/slice/service\n");
	assert_false(cgroup_oom_kills(&files, &kills));
	write_file("mount/slice/memory.events", "low 0\noom 9\noom_kill 8\n");
	write_file("mount/slice/service/memory.events",
		"low 0\nhigh 4\nmax 90\noom 3\noom_kill 2\noom_group_kill 1\n");
	assert_true(cgroup_oom_kills(&files, &kills));
	assert_int_equal(kills, 2);
	write_file("membership", "4:memory:/a\n0::/slice/service\n");
	write_file("mount/memory/a/memory.oom_control",
		"oom_kill_disable 0\nunder_oom 1\noom_kill 31\n");
	assert_true(cgroup_oom_kills(&files, &kills));
	assert_int_equal(kills, 31);
	/* One that cannot be read just now is not that of the group above. */
	write_file("mount/memory/memory.oom_control", "oom_kill 99\n");
	snprintf(path, sizeof(path), "%s/mount/memory/a/memory.oom_control", directory);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("memory.oom_control", path), 0);
	assert_false(cgroup_oom_kills(&files, &kills));
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof(path), "%s/mount/memory/memory.oom_control", directory);
	assert_int_equal(unlink(path), 0);
	/* Kernels before 4.13 do not tell. */
	write_file("mount/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n");
	assert_false(cgroup_oom_kills(&files, &kills));
}

/* A group that is narrow but empty, in one that is wide but full. */
static void what_others_in_the_groups_use_is_not_available(void **state)
{
	struct cgroup_memory memory;

	(void)state;
	write_file("membership", "0::/slice/inner\n");
	write_file("mount/slice/inner/memory.max", "1000000\n");
	write_file("mount/slice/inner/memory.current", "100000\n");
	write_file("mount/slice/memory.max", "8000000\n");
	write_file("mount/slice/memory.current", "7900000\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.bytes, 1000000);
	assert_int_equal(memory.available, 100000);
	/* Caches of files go when the room is wanted, shared memory does not. */
	write_file("mount/slice/memory.stat",
		"anon 5000000\nfile 2900000\nshmem 2300000\ninactive_anon 7300000\n"
		"inactive_file 400000\nactive_file 200000\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.available, 700000);
	write_file("mount/slice/memory.current", "9900000\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.available, 0);
	/* Version 1, which has a line for the group and one for all below it. */
	write_file("membership", "4:memory:/a\n0::/\n");
	write_file("mount/memory/a/memory.limit_in_bytes", "1000000\n");
	write_file("mount/memory/a/memory.usage_in_bytes", "600000\n");
	write_file("mount/memory/a/memory.stat",
		"inactive_file 1\ntotal_inactive_file 100000\ntotal_active_file 50000\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.available, 550000);
}

/* Memory in version 2, beside the controllers that version 1 has kept. */
static void both_versions_at_once_are_read_each_for_its_controllers(void **state)
{
	struct cgroup_memory memory;

	(void)state;
	write_file("membership", "5:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/s/unit\n");
	write_file("mount/unified/cgroup.controllers", "memory pids\n");
	write_file("mount/unified/s/unit/memory.max", "2000000\n");
	write_file("mount/unified/s/memory.max", "max\n");
	write_file("mount/unified/s/unit/cpu.max", "10000 100000\n");
	write_file("mount/cpu/c/cpu.cfs_quota_us", "300000\n");
	write_file("mount/cpu/c/cpu.cfs_period_us", "100000\n");
	cgroup_memory(&files, &memory);
	assert_int_equal(memory.bytes, 2000000);
	assert_non_null(strstr(memory.where, "/unified/s/unit/memory.max"));
	assert_true(cgroup_cpus(&files) == 3);
}

/* A controller that the parent does not hand down has no files in the group. */
static void a_group_without_its_own_files_has_its_parents_limits(void **state)
{
	(void)state;
	write_file("membership", "0::/slice/unit\n");
	write_file("mount/cgroup.controllers", "cpu memory\n");
	write_file("mount/slice/cgroup.controllers", "cpu memory\n");
	write_file("mount/slice/memory.max", "700000\n");
	write_file("mount/slice/cpu.max", "250000 100000\n");
	write_file("mount/slice/unit/cgroup.controllers", "\n");
	assert_int_equal(memory_limit(), 700000);
	assert_true(cgroup_cpus(&files) == 2.5);
}

/* In a container the group's own files are at the root, whatever its path is outside. */
static void in_a_namespace_the_root_is_what_can_be_seen(void **state)
{
	(void)state;
	write_file("mount/memory.max", "800000\n");
	write_file("mount/cpu.max", "50000 100000\n");
	write_file("outside/memory.max", "5\n");
	write_file("outside/cpu.max", "1 100000\n");
	write_file("mount/memory/memory.limit_in_bytes", "700000\n");
	static const char *const paths[] = {"/", "/../outside", "/docker/0123", "/.."};
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		struct cgroup_memory memory;
		char line[64], wanted[200];

		snprintf(line, sizeof(line), "0::%s\n", paths[i]);
		write_file("membership", line);
		cgroup_memory(&files, &memory);
		assert_int_equal(memory.bytes, 800000);
		snprintf(wanted, sizeof(wanted), "%s/mount/memory.max", directory);
		assert_string_equal(memory.where, wanted);
		assert_true(cgroup_cpus(&files) == 0.5);
		snprintf(line, sizeof(line), "4:memory:%s\n", paths[i]);
		write_file("membership", line);
		cgroup_memory(&files, &memory);
		assert_int_equal(memory.bytes, 700000);
		snprintf(
			wanted, sizeof(wanted), "%s/mount/memory/memory.limit_in_bytes", directory);
		assert_string_equal(memory.where, wanted);
	}
	/* Names with dots are names. */
	write_file("membership", "0::/..a/b\n");
	write_file("mount/..a/b/memory.max", "600000\n");
	assert_int_equal(memory_limit(), 600000);
}

static void rubbish_sets_no_limit(void **state)
{
	(void)state;
	write_file("membership", "rubbish\n0:\n0::\n::::\n0::/rubbish/\n");
	write_file("mount/rubbish/memory.max", "lots\n");
	write_file("mount/rubbish/cpu.max", "-7 0\n");
	write_file("mount/memory.max", "");
	assert_true(memory_limit() == UINT64_MAX);
	assert_true(cgroup_cpus(&files) == 0);
}

static void memory_is_what_machine_and_group_leave(void **state)
{
	struct memory_limit limit;

	(void)state;
	write_file("meminfo", "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\n");
	write_file("membership", "0::/group\n");
	write_file("mount/group/memory.max", "9999999\n");
	memory_limit_read(&files, meminfo, &limit);
	assert_int_equal(limit.bytes, 2048 << 10);
	assert_int_equal(limit.available, 1024 << 10);
	assert_string_equal(limit.where, "this machine");
	write_file("mount/group/memory.max", "1000\n");
	memory_limit_read(&files, meminfo, &limit);
	assert_int_equal(limit.bytes, 1000);
	assert_int_equal(limit.available, 1000);
	assert_non_null(strstr(limit.where, "group/memory.max"));
}

static void places_are_different_cpus_of_the_mask_with_cores_first(void **state)
{
	struct cpu_place places[CPU_SETSIZE];
	struct cpus cpus;
	cpu_set_t mask, seen;

	(void)state;
	cpus_mask(&mask);
	cpus_read(&cpus_files, &mask, &cpus);
	assert_int_equal(cpus.n, CPU_COUNT(&mask));
	assert_in_range(cpus.cores, 1, cpus.n);
	assert_in_range(cpus.threads, 1, cpus.cores);
	for (uint32_t n = 1; n <= cpus.n + 3; n++) {
		uint32_t got = cpus_places(&cpus_files, &mask, places, n), cores = 0;

		assert_int_equal(got, n < cpus.n ? n : cpus.n);
		CPU_ZERO(&seen);
		for (uint32_t i = 0; i < got; i++) {
			assert_true(CPU_ISSET(places[i].cpu, &mask));
			assert_false(CPU_ISSET(places[i].cpu, &seen));
			CPU_SET(places[i].cpu, &seen);
			cores += places[i].sibling == 0;
			assert_true(i == 0 || places[i].node >= places[i - 1].node);
		}
		assert_int_equal(cores, got < cpus.cores ? got : cpus.cores);
	}
}

/* A CPU of a made-up machine: its node (-1: none is said) and those of its core. */
static void write_cpu(uint32_t cpu, int node, const char *siblings)
{
	char name[128];

	snprintf(name, sizeof(name), "system/cpu/cpu%u/topology/thread_siblings_list", cpu);
	write_file(name, siblings);
	snprintf(name, sizeof(name), "system/cpu/cpu%u/node%d/cpulist", cpu, node);
	if (node >= 0)
		write_file(name, "");
}

static void check_places(const cpu_set_t *mask, uint32_t n, const char *wanted)
{
	struct cpu_place places[CPU_SETSIZE];
	char text[256] = "";

	n = cpus_places(&machine, mask, places, n);
	for (uint32_t i = 0; i < n; i++) {
		size_t used = strlen(text);
		snprintf(text + used, sizeof(text) - used, "%s%u@%u", i > 0 ? " " : "",
			places[i].cpu, places[i].node);
	}
	assert_string_equal(text, wanted);
}

static void mask_of(cpu_set_t *mask, uint32_t first, uint32_t last)
{
	CPU_ZERO(mask);
	for (uint32_t i = first; i <= last; i++)
		CPU_SET(i, mask);
}

/* Two nodes of two cores of two threads; CPU 4 + n is the second thread of n's core. */
static void threads_go_to_cores_of_every_node_before_they_share_one(void **state)
{
	static const char *const siblings[] = {"0,4\n", "1,5\n", "2,6\n", "3,7\n"};
	struct cpus cpus;
	cpu_set_t mask;

	(void)state;
	for (uint32_t i = 0; i < 8; i++)
		write_cpu(i, i % 4 / 2, siblings[i % 4]);
	mask_of(&mask, 0, 7);
	check_places(&mask, 1, "0@0");
	check_places(&mask, 2, "0@0 2@1");
	check_places(&mask, 3, "0@0 1@0 2@1");
	check_places(&mask, 4, "0@0 1@0 2@1 3@1");
	check_places(&mask, 5, "0@0 1@0 4@0 2@1 3@1");
	check_places(&mask, 8, "0@0 1@0 4@0 5@0 2@1 3@1 6@1 7@1");
	check_places(&mask, 100, "0@0 1@0 4@0 5@0 2@1 3@1 6@1 7@1");
	cpus_read(&machine, &mask, &cpus);
	assert_int_equal(cpus.n, 8);
	assert_int_equal(cpus.cores, 4);
	assert_int_equal(cpus.threads, 4);
	/* The mask decides who is first on a core. */
	mask_of(&mask, 3, 6);
	check_places(&mask, 2, "4@0 3@1");
	check_places(&mask, 4, "4@0 5@0 3@1 6@1");
	write_file("membership", "0::/group\n");
	write_file("mount/group/cpu.max", "250000 100000\n");
	cpus_read(&machine, &mask, &cpus);
	assert_int_equal(cpus.cores, 4);
	assert_int_equal(cpus.threads, 2);
	write_file("mount/group/cpu.max", "50000 100000\n");
	cpus_read(&machine, &mask, &cpus);
	assert_int_equal(cpus.threads, 1);
}

/* Nodes whose numbers have gaps and of different sizes; siblings as a range; one CPU about which nothing is said. */
static void machines_of_odd_shapes_are_placed_on(void **state)
{
	cpu_set_t mask;

	(void)state;
	write_cpu(0, 0, "0-1\n");
	write_cpu(1, 0, "0-1\n");
	write_cpu(2, 8, "2-3\n");
	write_cpu(3, 8, "2-3\n");
	write_cpu(4, 8, "4-5\n");
	write_cpu(5, 8, "4-5\n");
	write_cpu(1000, 8, "rubbish\n");
	mask_of(&mask, 0, 5);
	check_places(&mask, 2, "0@0 2@8");
	check_places(&mask, 3, "0@0 2@8 4@8");
	check_places(&mask, 4, "0@0 1@0 2@8 4@8");
	CPU_SET(7, &mask);
	CPU_SET(1000, &mask);
	check_places(&mask, 5, "0@0 7@0 2@8 4@8 1000@8");
	/* Files beside it that only begin like a node's. */
	write_file("system/cpu/cpu7/node", "");
	write_file("system/cpu/cpu7/node1x", "");
	write_file("system/cpu/cpu7/node99999", "");
	check_places(&mask, 5, "0@0 7@0 2@8 4@8 1000@8");
}

static void too_many_threads_are_noticed_and_no_others(void **state)
{
	struct cpus cpus = {.n = 4, .cores = 4, .quota = 0, .threads = 4};
	char text[256];

	(void)state;
	cpus_notice(&cpus, 4, text, sizeof(text));
	assert_string_equal(text, "");
	cpus_notice(&cpus, 5, text, sizeof(text));
	assert_non_null(strstr(text, "threads = 5, but this process has 4 CPUs"));
	cpus = (struct cpus){.n = 4, .cores = 4, .quota = 2.5, .threads = 2};
	cpus_notice(&cpus, 2, text, sizeof(text));
	assert_string_equal(text, "");
	cpus_notice(&cpus, 3, text, sizeof(text));
	assert_non_null(strstr(text, "2.50"));
	assert_non_null(strstr(text, "threads = 2"));
}

/* The fields of the first processor that the name is made of, with others between them as the kernel has them; the second is
 * another, which nobody asks for. */
static void check_name(
	const char *vendor, int family, int model, const char *name, const char *wanted)
{
	char text[512], path[256], out[CPU_NAME_BYTES];

	snprintf(text, sizeof(text),
		"processor\t: 0\nvendor_id\t: %s\ncpu family\t: %d\nmodel\t\t: %d\nmodel name\t: "
		"%s\n"
		"stepping\t: 1\n\nprocessor\t: 1\nvendor_id\t: x\ncpu family\t: 1\nmodel\t\t: 2\n"
		"model name\t: other\n",
		vendor, family, model, name);
	write_file("cpuinfo", text);
	snprintf(path, sizeof(path), "%s/cpuinfo", directory);
	cpu_name_read(path, out);
	assert_string_equal(out, wanted);
}

static void cpus_of_one_name_are_told_apart(void **state)
{
	char out[CPU_NAME_BYTES], path[256];

	(void)state;
	check_name("AuthenticAMD", 25, 17, "AMD EPYC", "AMD EPYC (Zen 4, family 25 model 17)");
	check_name("AuthenticAMD", 26, 2, "AMD EPYC", "AMD EPYC (Zen 5, family 26 model 2)");
	check_name("AuthenticAMD", 25, 1, "AMD EPYC", "AMD EPYC (Zen 3, family 25 model 1)");
	check_name("AuthenticAMD", 25, 0xa0, "AMD EPYC", "AMD EPYC (Zen 4, family 25 model 160)");
	check_name("AuthenticAMD", 23, 49, "AMD EPYC 7742",
		"AMD EPYC 7742 (Zen 2, family 23 model 49)");
	check_name("GenuineIntel", 6, 0xcf, "Intel Xeon",
		"Intel Xeon (Emerald Rapids, family 6 model 207)");
	check_name("GenuineIntel", 6, 0x8f, "Intel Xeon",
		"Intel Xeon (Sapphire Rapids, family 6 model 143)");
	/* What is not known, or known of the other vendor only, is numbers alone. */
	check_name("AuthenticAMD", 26, 0x50, "AMD", "AMD (family 26 model 80)");
	check_name("GenuineIntel", 25, 17, "Intel", "Intel (family 25 model 17)");
	check_name("HygonGenuine", 24, 0, "Hygon", "Hygon (family 24 model 0)");
	write_file("cpuinfo", "processor\t: 0\nBogoMIPS\t: 50.00\nmodel name\t: Neoverse\n");
	snprintf(path, sizeof(path), "%s/cpuinfo", directory);
	cpu_name_read(path, out);
	assert_string_equal(out, "Neoverse");
	cpu_name_read("/nowhere", out);
	assert_string_equal(out, "unknown CPU");
	cpu_name(out);
	assert_string_not_equal(out, "");
}

static void what_does_not_fit_is_said_with_what_is_missing(void **state)
{
	const struct memory_limit limit = {
		.bytes = 200 << 20, .available = 150 << 20, .where = "/group/memory.max"};
	struct error err = {""};

	(void)state;
	assert_int_equal(memory_fits(&limit, 150 << 20, "weights take", "pack none", &err), 0);
	assert_string_equal(err.text, "");
	assert_int_equal(
		memory_fits(&limit, 160 << 20, "weights take", "pack none", &err), -ENOMEM);
	assert_string_equal(err.text,
		"weights take 160.0 MiB, but /group/memory.max has 200.0 MiB, of which "
		"150.0 MiB are free: pack none, or make room for 10.0 MiB more");
	assert_int_equal(memory_fits(&limit, 160 << 20, "it takes", NULL, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "are free: make room for 10.0 MiB more"));
}

/* Whatever kind it is: it can be written, and what is said fits the kind. */
static void check_pages(const struct huge_pages *pages, size_t asked, unsigned char *address)
{
	char text[384];

	assert_true(pages->bytes >= asked);
	for (size_t i = 0; i < pages->bytes; i += 4096) {
		assert_int_equal(address[i], 0);
		address[i] = 1;
	}
	huge_pages_notice(pages, text, sizeof(text));
	assert_int_equal(text[0] == '\0', pages->kind == HUGE_POOL);
	if (pages->kind != HUGE_POOL && pages->page_bytes > 0)
		assert_non_null(
			strstr(text, pages->refused != 0 ? "did not give" : "vm.nr_hugepages"));
	if (pages->page_bytes > 0 && pages->needed > pages->free)
		assert_int_not_equal(pages->kind, HUGE_POOL);
}

static void memory_is_had_whether_the_pool_has_pages_or_not(void **state)
{
	const size_t sizes[] = {1, 5000, (4 << 20) + 1};
	struct huge_pages pages;
	struct error err;
	void *address, *again;
	int fd;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(huge_pages_map(sizes[i], &pages, &address, &err), 0);
		check_pages(&pages, sizes[i], address);
		munmap(address, pages.bytes);
		assert_int_equal(
			huge_pages_memfd("test", sizes[i], &pages, &fd, &address, &err), 0);
		nodes_interleave(address, pages.bytes);
		check_pages(&pages, sizes[i], address);
		again = mmap(NULL, pages.bytes, PROT_READ, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(again, MAP_FAILED);
		assert_int_equal(*(unsigned char *)again, 1);
		munmap(again, pages.bytes);
		munmap(address, pages.bytes);
		close(fd);
	}
}

static void what_the_pool_lacked_or_refused_is_said(void **state)
{
	struct huge_pages pages = {.kind = HUGE_NONE, .page_bytes = 2 << 20, .needed = 7};
	char text[384];

	(void)state;
	huge_pages_notice(&pages, text, sizeof(text));
	assert_non_null(strstr(text, "the huge-page pool has 0 free pages of 2048 KiB, 7 are "
				     "needed (vm.nr_hugepages): small pages"));
	pages.free = 9;
	pages.kind = HUGE_TRANSPARENT;
	pages.refused = ENOMEM;
	huge_pages_notice(&pages, text, sizeof(text));
	assert_non_null(strstr(text, "had 9 free pages of 2048 KiB, but the kernel did not give 7 "
				     "of them (Cannot allocate memory): transparent"));
	pages = (struct huge_pages){.kind = HUGE_NONE};
	huge_pages_notice(&pages, text, sizeof(text));
	assert_non_null(strstr(text, "no huge-page pool"));
}

static void a_limit_of_the_address_space_is_named(void **state)
{
	struct rlimit before, low;
	char advice[MEMORY_ADVICE_BYTES];

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
	low = before;
	low.rlim_cur = RLIM_INFINITY;
	if (before.rlim_max == RLIM_INFINITY && setrlimit(RLIMIT_AS, &low) == 0)
		assert_string_equal(memory_advice(advice), "");
	/* More than any process here has, so that nothing fails. */
	low.rlim_cur = (rlim_t)1 << 50;
	if (low.rlim_cur > before.rlim_max || setrlimit(RLIMIT_AS, &low) != 0)
		skip();
	assert_non_null(strstr(memory_advice(advice), "may address 1073741824 MiB"));
	assert_non_null(strstr(advice, "ulimit -v"));
	assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
}

static void memory_of_any_size_begins_a_cache_line(void **state)
{
	const size_t sizes[] = {1, CACHE_LINE + 1, (2 << 20) - 1, 2 << 20, (4 << 20) + 1};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		unsigned char *memory = huge_pages_alloc(sizes[i]);

		assert_non_null(memory);
		assert_int_equal((uintptr_t)memory % CACHE_LINE, 0);
		memset(memory, 1, sizes[i]);
		free(memory);
	}
}

static void more_memory_than_there_can_be_is_refused(void **state)
{
	struct huge_pages pages;
	struct error err;
	void *address;
	int fd;

	(void)state;
	assert_int_equal(huge_pages_map((size_t)1 << 60, &pages, &address, &err), -ENOMEM);
	assert_null(address);
	assert_true(huge_pages_memfd("test", (size_t)1 << 60, &pages, &fd, &address, &err) < 0);
	assert_null(address);
	assert_int_equal(fd, -1);
	assert_int_equal(huge_pages_map(0, &pages, &address, &err), -EINVAL);
	assert_null(huge_pages_alloc(SIZE_MAX));
	assert_null(huge_pages_alloc((size_t)1 << 60));
}

static void what_is_zero_already_is_cleared_without_taking_memory(void **state)
{
	enum { BYTES = 64 << 20 };
	unsigned char *memory =
		mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(memory, MAP_FAILED);
	memory[0] = memory[5000] = memory[BYTES - 1] = 1;
	uint64_t kib = memory_info("/proc/self/status", "RssAnon");
	/* Not a whole number of pages. */
	memory_clear(memory, BYTES - 1);
	assert_true(memory_info("/proc/self/status", "RssAnon") < kib + 4096);
	for (size_t i = 0; i < BYTES - 1; i += 100)
		assert_int_equal(memory[i], 0);
	assert_int_equal(memory[BYTES - 1], 1);
	memory_clear(memory, BYTES);
	assert_int_equal(memory[BYTES - 1], 0);
	munmap(memory, BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(without_files_there_is_no_limit, empty_directory),
		cmocka_unit_test_setup(
			a_limit_that_cannot_be_read_now_is_told_from_none, empty_directory),
		cmocka_unit_test_setup(the_lowest_limit_up_to_the_root_counts, empty_directory),
		cmocka_unit_test_setup(
			version_1_is_read_where_a_controller_is_there, empty_directory),
		cmocka_unit_test_setup(what_is_held_up_from_on_is_a_limit_too, empty_directory),
		cmocka_unit_test_setup(
			whom_the_kernel_ended_is_counted_in_ones_own_group, empty_directory),
		cmocka_unit_test_setup(
			what_others_in_the_groups_use_is_not_available, empty_directory),
		cmocka_unit_test_setup(
			both_versions_at_once_are_read_each_for_its_controllers, empty_directory),
		cmocka_unit_test_setup(
			a_group_without_its_own_files_has_its_parents_limits, empty_directory),
		cmocka_unit_test_setup(
			in_a_namespace_the_root_is_what_can_be_seen, empty_directory),
		cmocka_unit_test_setup(rubbish_sets_no_limit, empty_directory),
		cmocka_unit_test_setup(memory_is_what_machine_and_group_leave, empty_directory),
		cmocka_unit_test_setup(
			places_are_different_cpus_of_the_mask_with_cores_first, empty_directory),
		cmocka_unit_test_setup(
			threads_go_to_cores_of_every_node_before_they_share_one, empty_directory),
		cmocka_unit_test_setup(machines_of_odd_shapes_are_placed_on, empty_directory),
		cmocka_unit_test_setup(too_many_threads_are_noticed_and_no_others, empty_directory),
		cmocka_unit_test_setup(cpus_of_one_name_are_told_apart, empty_directory),
		cmocka_unit_test(what_does_not_fit_is_said_with_what_is_missing),
		cmocka_unit_test_setup(
			memory_is_had_whether_the_pool_has_pages_or_not, empty_directory),
		cmocka_unit_test(what_the_pool_lacked_or_refused_is_said),
		cmocka_unit_test(a_limit_of_the_address_space_is_named),
		cmocka_unit_test(memory_of_any_size_begins_a_cache_line),
		cmocka_unit_test(what_is_zero_already_is_cleared_without_taking_memory),
		cmocka_unit_test_setup(more_memory_than_there_can_be_is_refused, empty_directory),
	};

	return cmocka_run_group_tests(tests, make_machine, remove_directory);
}
