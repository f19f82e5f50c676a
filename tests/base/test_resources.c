/* shared/base: what the machine and the control groups leave this process of CPUs and memory, and huge pages. */
#include "shared/base/cgroup.h"
#include "shared/base/cpus.h"
#include "shared/base/huge_pages.h"
#include "shared/base/memory.h"
#include "shared/base/nodes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[64];
static char membership[128], mount[128], meminfo[128];
static const struct cgroup_files files = {membership, mount};

static void write_file(const char *name, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	for (char *p = path + strlen(directory) + 1; (p = strchr(p, '/')) != NULL; p++) {
		*p = '\0';
		mkdir(path, 0755);
		*p = '/';
	}
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int make_directory(void **state)
{
	(void)state;
	snprintf(directory, sizeof(directory), "/tmp/outrider-resources-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	snprintf(membership, sizeof(membership), "%s/membership", directory);
	snprintf(mount, sizeof(mount), "%s/mount", directory);
	snprintf(meminfo, sizeof(meminfo), "%s/meminfo", directory);
	return 0;
}

static int remove_directory(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", directory);
	return system(command);
}

static void without_files_there_is_no_limit(void **state)
{
	struct memory_limit limit;

	(void)state;
	assert_true(cgroup_memory(&files, NULL, 0) == UINT64_MAX);
	assert_true(cgroup_cpus(&files) == 0);
	memory_limit_read(&files, meminfo, &limit);
	assert_true(limit.bytes == UINT64_MAX && limit.available == UINT64_MAX);
}

static void the_lowest_limit_up_to_the_root_counts(void **state)
{
	char where[256] = "";

	(void)state;
	write_file("membership", "0::/slice/service/inner\n");
	write_file("mount/slice/service/inner/memory.max", "max\n");
	write_file("mount/slice/service/memory.max", "3000000\n");
	write_file("mount/slice/memory.max", "2000000\n");
	write_file("mount/memory.max", "9000000\n");
	assert_int_equal(cgroup_memory(&files, where, sizeof(where)), 2000000);
	assert_non_null(strstr(where, "/mount/slice/memory.max"));
	write_file("mount/slice/service/cpu.max", "max 100000\n");
	assert_true(cgroup_cpus(&files) == 0);
	write_file("mount/slice/cpu.max", "150000 100000\n");
	assert_true(cgroup_cpus(&files) == 1.5);
	write_file("mount/slice/service/inner/cpu.max", "50000 100000\n");
	assert_true(cgroup_cpus(&files) == 0.5);
}

static void version_1_is_read_where_a_controller_is_there(void **state)
{
	char where[256] = "";

	(void)state;
	write_file("membership", "9:name=systemd:/\n4:memory:/a/b\n2:cpuacct,cpu:/c\n0::/slice\n");
	write_file("mount/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	write_file("mount/memory/a/memory.limit_in_bytes", "1000000\n");
	write_file("mount/cpu/c/cpu.cfs_quota_us", "250000\n");
	write_file("mount/cpu/c/cpu.cfs_period_us", "100000\n");
	write_file("mount/cpu/cpu.cfs_quota_us", "-1\n");
	write_file("mount/cpu/cpu.cfs_period_us", "100000\n");
	assert_int_equal(cgroup_memory(&files, where, sizeof(where)), 1000000);
	assert_non_null(strstr(where, "memory/a/memory.limit_in_bytes"));
	assert_true(cgroup_cpus(&files) == 2.5);
}

static void rubbish_sets_no_limit(void **state)
{
	(void)state;
	write_file("membership", "rubbish\n0:\n0::\n::::\n0::/rubbish/\n");
	write_file("mount/rubbish/memory.max", "lots\n");
	write_file("mount/rubbish/cpu.max", "-7 0\n");
	write_file("mount/memory.max", "");
	assert_true(cgroup_memory(&files, NULL, 0) == UINT64_MAX);
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
	cpus_read(&cpus);
	assert_int_equal(cpus.n, CPU_COUNT(&mask));
	assert_in_range(cpus.cores, 1, cpus.n);
	assert_in_range(cpus.threads, 1, cpus.cores);
	for (uint32_t n = 1; n <= cpus.n + 3; n++) {
		uint32_t got = cpus_places(&mask, places, n), cores = 0;

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
		assert_non_null(strstr(text, "vm.nr_hugepages"));
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
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_files_there_is_no_limit),
		cmocka_unit_test(the_lowest_limit_up_to_the_root_counts),
		cmocka_unit_test(version_1_is_read_where_a_controller_is_there),
		cmocka_unit_test(rubbish_sets_no_limit),
		cmocka_unit_test(memory_is_what_machine_and_group_leave),
		cmocka_unit_test(places_are_different_cpus_of_the_mask_with_cores_first),
		cmocka_unit_test(too_many_threads_are_noticed_and_no_others),
		cmocka_unit_test(memory_is_had_whether_the_pool_has_pages_or_not),
		cmocka_unit_test(more_memory_than_there_can_be_is_refused),
	};

	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
