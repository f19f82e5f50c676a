/* client/cli/doctor: what is read of a made-up machine and its disks, what is thought of it, and the arithmetic of the prediction. */
#include "client/cli/doctor/machine.h"
#include "client/cli/doctor/predict.h"
#include "client/cli/doctor/storage.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/made_up_machine.h"

static int fresh_directory(void **state)
{
	return remove_directory(state) != 0 || mkdir(directory, 0755) != 0 ? -1 : 0;
}

static struct machine read_with(size_t n_cpus)
{
	struct machine machine = {0};
	cpu_set_t mask;

	CPU_ZERO(&mask);
	for (size_t i = 0; i < n_cpus; i++)
		CPU_SET(i, &mask);
	machine_read(directory, &mask, &machine);
	/* What machine_probe would say of a good one. */
	machine.kernels = "avx2";
	machine.memlock = machine.files_now = machine.files_most = UINT64_MAX;
	return machine;
}

static const struct finding *found(const struct findings *findings, const char *name)
{
	for (size_t i = 0; i < findings->n; i++)
		if (strcmp(findings->all[i].name, name) == 0)
			return &findings->all[i];
	fail_msg("nothing was found of %s", name);
	return NULL;
}

static struct finding judged(
	const struct machine *machine, const struct machine_wants *wants, const char *name)
{
	struct findings *findings = calloc(1, sizeof(*findings));
	struct finding out;

	assert_non_null(findings);
	machine_judge(machine, wants, findings);
	out = *found(findings, name);
	free(findings);
	return out;
}

static void write_good_machine(void)
{
	write_file("proc/cpuinfo",
		"vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\ncpu family\t: "
		"25\nmodel\t\t: 17\nflags\t\t: fpu avx avx2 avx512f avx512_vnni "
		"rdpid\n\n");
	write_file("proc/meminfo",
		"MemTotal:  16777216 kB\nMemAvailable: 8388608 kB\n"
		"SwapTotal: 2097152 kB\nSwapFree: 2097152 kB\n"
		"HugePages_Total: 12\nHugePages_Free: 5\nHugepagesize: 2048 kB\n");
	write_file("proc/loadavg", "0.25 0.10 0.05 1/100 4242\n");
	write_file("proc/self/cgroup", "0::/box\n");
	write_file("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
	write_file("proc/sys/kernel/io_uring_disabled", "0\n");
	write_file("sys/fs/cgroup/box/memory.max", "4294967296\n");
	write_file("sys/fs/cgroup/box/cpu.max", "150000 100000\n");
	write_file("sys/devices/system/node/node0/x", "");
	write_file("sys/devices/system/node/node1/x", "");
	write_file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
	write_file("sys/kernel/mm/transparent_hugepage/shmem_enabled",
		"always within_size [advise] never deny force\n");
}

static void a_machine_is_read_from_its_files(void **state)
{
	(void)state;
	write_good_machine();
	struct machine m = read_with(3);

	assert_string_equal(m.cpu, "AMD EPYC (Zen 4, family 25 model 17)");
	assert_true(m.has_avx2 && m.has_avx512f && m.has_vnni);
	assert_int_equal(m.cpus.n, 3);
	assert_true(m.cpus.quota == 1.5);
	assert_int_equal(m.cpus.threads, 1);
	assert_int_equal(m.nodes, 2);
	assert_true(m.load == 0.25);
	assert_true(m.memory_total == 16ull << 30 && m.memory.bytes == 4ull << 30);
	assert_non_null(strstr(m.memory.where, "/box/memory.max"));
	assert_true(m.swap_total == 2ull << 30 && m.swap_free == m.swap_total);
	assert_true(m.huge_total == 12 && m.huge_free == 5 && m.huge_page_bytes == 2 << 20);
	assert_string_equal(m.thp, "madvise");
	assert_string_equal(m.thp_shared, "advise");
	assert_int_equal(m.io_uring_disabled, 0);
	assert_true(m.may_lock);
	assert_true(m.driver[0] == '\0' && m.n_gpus == 0 && m.units[0] == '\0' && !m.systemd);
}

static void a_good_machine_gets_no_advice(void **state)
{
	const struct machine_wants wants = {.slots_bytes = 1ull << 40, .files = 100};
	struct findings *findings = calloc(1, sizeof(*findings));

	(void)state;
	write_good_machine();
	struct machine m = read_with(3);
	assert_non_null(findings);
	machine_judge(&m, &wants, findings);
	for (size_t i = 0; i < findings->n; i++)
		if (findings->all[i].level != FINDING_OK || findings->all[i].todo[0])
			fail_msg("%s: %s", findings->all[i].name, findings->all[i].text);
	assert_true(findings->n >= 10);
	free(findings);
}

static void a_machine_without_files_is_no_crash_and_memory_is_asked_for(void **state)
{
	const struct machine_wants wants = {0};

	(void)state;
	struct machine m = read_with(1);
	assert_true(m.load == -1 && m.io_uring_disabled == -1 && m.nodes == 1);
	assert_true(m.memory_total == UINT64_MAX && m.memory.bytes == UINT64_MAX);
	assert_int_equal(judged(&m, &wants, "memory").level, FINDING_ADVICE);
	assert_int_equal(judged(&m, &wants, "transparent-huge-pages").level, FINDING_ADVICE);
	assert_int_equal(judged(&m, &wants, "swap").level, FINDING_OK);
}

static void files_of_nonsense_say_nothing(void **state)
{
	(void)state;
	write_file("proc/meminfo", "MemTotal: lots\nHugePages_Total:\nSwapTotal: -\n");
	write_file("proc/loadavg", "busy\n");
	write_file("proc/sys/kernel/io_uring_disabled", "7\n");
	write_file("proc/cpuinfo", "flags : avx2x notavx2 avx512\n");
	write_file("proc/self/status", "CapEff: zzz\n");
	write_file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise never\n");
	write_file("sys/kernel/mm/transparent_hugepage/shmem_enabled", "[]\n");
	write_file("proc/driver/nvidia/version", "NVRM version: none\n");
	struct machine m = read_with(1);

	assert_true(m.memory_total == UINT64_MAX && m.huge_total == UINT64_MAX);
	assert_true(m.load == -1 && m.io_uring_disabled == -1);
	assert_false(m.has_avx2 || m.has_avx512f || m.may_lock);
	assert_true(m.thp[0] == '\0' && m.thp_shared[0] == '\0');
	assert_string_equal(m.driver, "of an unknown version");
}

static void a_gpu_is_named_and_not_used(void **state)
{
	const struct machine_wants wants = {0};

	(void)state;
	write_good_machine();
	write_file("proc/driver/nvidia/version",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n");
	write_file("proc/driver/nvidia/gpus/0000:01:00.0/information",
		"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   16\n");
	write_file("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: x\n");
	struct machine m = read_with(1);
	struct finding gpu = judged(&m, &wants, "gpu");

	assert_int_equal(m.n_gpus, 2);
	assert_string_equal(m.driver, "535.104.05");
	assert_int_equal(gpu.level, FINDING_OK);
	assert_non_null(strstr(gpu.text, "2 GPUs"));
	assert_non_null(strstr(gpu.text, "computes on the CPU"));
	/* What is missing is the reason where there is a GPU. */
	snprintf(m.gpu_use, sizeof(m.gpu_use), "x.so is not there");
	gpu = judged(&m, &wants, "gpu");
	assert_non_null(strstr(gpu.text, "computes on the CPU: x.so is not there"));
	m.n_gpus = 0;
	m.driver[0] = '\0';
	gpu = judged(&m, &wants, "gpu");
	assert_string_equal(
		gpu.text, "no NVIDIA driver; the service computes on the CPU. x.so is not there");
}

static void units_are_looked_for_where_systemd_does(void **state)
{
	const struct machine_wants wants = {0};

	(void)state;
	write_good_machine();
	write_file("usr/lib/systemd/system/outrider-verifier.service", "[Unit]\n");
	write_file("run/systemd/system/x", "");
	struct machine m = read_with(1);

	assert_true(m.systemd);
	assert_string_equal(m.units, "/usr/lib/systemd/system");
	assert_non_null(strstr(judged(&m, &wants, "systemd").text, "installed in /usr/lib"));
}

static void what_is_short_is_advice_with_what_to_do(void **state)
{
	const struct machine_wants wants = {.slots_bytes = 1 << 30, .files = 40};

	(void)state;
	write_good_machine();
	write_file("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [never] deny\n");
	write_file("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"
				   "SwapTotal: 2097152 kB\nSwapFree: 97152 kB\n");
	write_file("proc/loadavg", "9.5 1 1 1/1 1\n");
	write_file("sys/fs/cgroup/box/cpu.max", "50000 100000\n");
	struct machine m = read_with(2);
	m.may_lock = false;
	m.memlock = 8 << 20;
	m.io_uring = -EPERM;
	m.io_uring_disabled = 2;
	static const struct {
		const char *name, *todo;
	} cases[] = {
		{"transparent-huge-pages", "shmem_enabled"},
		{"swap", "swapped out"},
		{"load", "quiet"},
		{"cpus", "cpu.max"},
		{"memlock", "ulimit -l"},
		{"io_uring", "kernel.io_uring_disabled=0"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct finding finding = judged(&m, &wants, cases[i].name);

		assert_int_equal(finding.level, FINDING_ADVICE);
		assert_non_null(strstr(finding.todo, cases[i].todo));
	}
	m.io_uring_disabled = 0;
	assert_non_null(strstr(judged(&m, &wants, "io_uring").todo, "seccomp"));
	m.files_most = 100;
	assert_int_equal(judged(&m, &wants, "descriptors").level, FINDING_PROBLEM);
	assert_non_null(strstr(judged(&m, &wants, "descriptors").todo, "ulimit -n 104"));
	m.files_most = 104;
	assert_int_equal(judged(&m, &wants, "descriptors").level, FINDING_OK);
}

static struct storage storage_of(const char *path)
{
	char mountinfo[200];
	struct storage out = {0};

	snprintf(mountinfo, sizeof(mountinfo), "%s/mountinfo", directory);
	assert_true(storage_find(mountinfo, path, &out));
	return out;
}

static void the_longest_mount_point_above_a_path_is_its_file_system(void **state)
{
	struct storage none = {0};

	(void)state;
	write_file("mountinfo", "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
				"nonsense\n"
				"22 21 0:30 / /srv/models rw - nfs4 box:/export/my\\040files rw\n"
				"23 21 0:31 / /srv/models/fast\\040ones rw shared:2 master:3 - xfs "
				"/dev/nvme0n1 rw\n"
				"24 21 0:32 / /tmp rw - tmpfs tmpfs rw\n");
	assert_string_equal(storage_of("/srv/model.gguf").type, "ext4");
	assert_string_equal(storage_of("/srv/models/a.gguf").type, "nfs4");
	assert_string_equal(storage_of("/srv/models/a.gguf").source, "box:/export/my files");
	assert_true(storage_of("/srv/models/a.gguf").network);
	assert_string_equal(storage_of("/srv/models/fast ones/a.gguf").type, "xfs");
	assert_string_equal(storage_of("/srv/models-old/a.gguf").type, "ext4");
	assert_true(storage_of("/tmp/a.gguf").memory && !storage_of("/tmp/a.gguf").network);
	assert_false(storage_find("/nowhere/mountinfo", "/a", &none));
}

static void a_draft_pays_from_the_acceptance_that_brings_its_cost(void **state)
{
	(void)state;
	/* K = 1 brings 1 + p tokens. */
	assert_true(predict_break_even(1, 1.25) > 0.2499 && predict_break_even(1, 1.25) < 0.2501);
	/* 1 + p + p^2 + p^3 with p = 0.5. */
	assert_true(predict_break_even(3, 1.875) > 0.4999 && predict_break_even(3, 1.875) < 0.5001);
	assert_true(predict_break_even(3, 1) < 1e-6);
	assert_true(predict_break_even(3, 4) > 1);
}

static void speeds_are_written_without_an_exponent(void **state)
{
	char text[PREDICT_SPEED_TEXT];

	(void)state;
	assert_string_equal(predict_speed_text(11748.6, 4, text), "11750");
	assert_string_equal(predict_speed_text(4702, 3, text), "4700");
	assert_string_equal(predict_speed_text(999.96, 4, text), "1000");
	assert_string_equal(predict_speed_text(999.4, 3, text), "999");
	assert_string_equal(predict_speed_text(366.94, 4, text), "366.9");
	assert_string_equal(predict_speed_text(2.718, 3, text), "2.72");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_machine_is_read_from_its_files, fresh_directory),
		cmocka_unit_test_setup(a_good_machine_gets_no_advice, fresh_directory),
		cmocka_unit_test_setup(a_machine_without_files_is_no_crash_and_memory_is_asked_for,
			fresh_directory),
		cmocka_unit_test_setup(files_of_nonsense_say_nothing, fresh_directory),
		cmocka_unit_test_setup(a_gpu_is_named_and_not_used, fresh_directory),
		cmocka_unit_test_setup(units_are_looked_for_where_systemd_does, fresh_directory),
		cmocka_unit_test_setup(what_is_short_is_advice_with_what_to_do, fresh_directory),
		cmocka_unit_test_setup(
			the_longest_mount_point_above_a_path_is_its_file_system, fresh_directory),
		cmocka_unit_test(a_draft_pays_from_the_acceptance_that_brings_its_cost),
		cmocka_unit_test(speeds_are_written_without_an_exponent),
	};

	return cmocka_run_group_tests_name("doctor", tests, make_directory, remove_directory);
}
