#include "client/cli/doctor/machine.h"

#include "shared/base/limits.h"
#include "shared/base/plural.h"
#include "shared/base/units.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define THP "/sys/kernel/mm/transparent_hugepage/"

static void judge_cpu(const struct machine *m, struct findings *findings)
{
	const char *widest = m->has_vnni      ? "AVX-512 VNNI"
			     : m->has_avx512f ? "AVX-512 without VNNI"
			     : m->has_avx2    ? "AVX2"
					      : "no AVX2";

	if (!m->kernels_notice) {
		finding_add(findings, "cpu", FINDING_OK, "%s with %s: the %s kernels compute",
			m->cpu, widest, m->kernels);
		return;
	}
	finding_todo(finding_add(findings, "cpu", FINDING_ADVICE, "%s with %s: %s", m->cpu, widest,
			     m->kernels_notice),
		"use a machine with AVX2, or let the virtual machine pass it on (CPU model host)");
}

static void judge_cpus(const struct machine *m, struct findings *findings)
{
	const struct cpus *c = &m->cpus;
	char quota[64] = "no limit of CPU time";
	bool low = c->quota > 0 && c->quota < 1;

	if (c->quota > 0)
		snprintf(quota, sizeof(quota), "a limit of the time of %.2f CPUs", c->quota);
	struct finding *finding = finding_add(findings, "cpus", low ? FINDING_ADVICE : FINDING_OK,
		"%u CPU%s on %u core%s, %u memory node%s, %s: %u thread%s compute", c->n,
		plural(c->n), c->cores, plural(c->cores), m->nodes, plural(m->nodes), quota,
		c->threads, plural(c->threads));
	if (low)
		finding_todo(finding,
			"give the control group the time of a whole CPU at least (cpu.max, "
			"CPUQuota=)");
}

static void judge_load(const struct machine *m, struct findings *findings)
{
	if (m->load < 0)
		return;
	bool busy = m->load > 0.5 * m->cpus.cores;
	struct finding *finding = finding_add(findings, "load", busy ? FINDING_ADVICE : FINDING_OK,
		"%.2f programs on average wanted a CPU in the last minute", m->load);
	if (busy)
		finding_todo(finding,
			"what is measured below is a busy machine's: ask again when it is quiet. "
			"A service that shares its cores is slower than the cores lost");
}

static void judge_memory(const struct machine *m, struct findings *findings)
{
	const struct memory_limit *limit = &m->memory;

	if (limit->bytes == UINT64_MAX) {
		finding_todo(finding_add(findings, "memory", FINDING_ADVICE,
				     "how much memory there is cannot be read"),
			"mount /proc");
		return;
	}
	finding_add(findings, "memory", FINDING_OK, "%s, of which %s are free; %s sets the limit",
		UNITS_SIZE(limit->bytes), UNITS_SIZE(limit->available), limit->where);
}

static void judge_swap(const struct machine *m, struct findings *findings)
{
	if (m->swap_total == UINT64_MAX || m->swap_total == 0) {
		finding_add(findings, "swap", FINDING_OK, "none");
		return;
	}
	uint64_t used = m->swap_free < m->swap_total ? m->swap_total - m->swap_free : 0;
	/* Some pages that are never used again are always in swap. */
	bool much = used > m->swap_total / 16;
	struct finding *finding = finding_add(findings, "swap", much ? FINDING_ADVICE : FINDING_OK,
		"%s, of which %s are used", UNITS_SIZE(m->swap_total), UNITS_SIZE(used));
	if (much)
		finding_todo(finding,
			"find out what needs the memory: parts of a service that are swapped out "
			"are read back in the middle of an answer");
}

static void judge_huge_pages(const struct machine *m, struct findings *findings)
{
	bool pool = m->huge_total != UINT64_MAX && m->huge_total > 0;
	bool private_off = m->thp[0] == '\0' || strcmp(m->thp, "never") == 0;
	bool shared_off = m->thp_shared[0] == '\0' || strcmp(m->thp_shared, "never") == 0 ||
			  strcmp(m->thp_shared, "deny") == 0;

	if (pool)
		finding_add(findings, "huge-pages", FINDING_OK,
			"a pool of %llu pages of %s, %llu of them free",
			(unsigned long long)m->huge_total, UNITS_SIZE(m->huge_page_bytes),
			(unsigned long long)m->huge_free);
	else
		finding_add(findings, "huge-pages", FINDING_OK,
			"no pool (vm.nr_hugepages): transparent huge pages are used where they "
			"are switched on");
	struct finding *finding = finding_add(findings, "transparent-huge-pages",
		private_off || shared_off ? FINDING_ADVICE : FINDING_OK,
		"%s for a process's own memory, %s for shared memory",
		m->thp[0] ? m->thp : "not in this kernel",
		m->thp_shared[0] ? m->thp_shared : "not in this kernel");
	if (private_off && m->thp[0])
		finding_todo(finding,
			"echo madvise > " THP "enabled; echo advise > " THP "shmem_enabled: "
			"weights and experts in small pages are read slower");
	else if (shared_off && m->thp_shared[0])
		finding_todo(finding,
			"echo advise > " THP "shmem_enabled: experts and packed weights lie in "
			"shared memory, and are read slower in small pages");
	else if (private_off || shared_off)
		finding_todo(finding, "use a kernel that has them, or a pool "
				      "(vm.nr_hugepages)");
}

static void judge_memlock(
	const struct machine *m, const struct machine_wants *wants, struct findings *findings)
{
	bool enough = m->may_lock || m->memlock == UINT64_MAX || m->memlock >= wants->slots_bytes;
	char limit[UNITS_BYTES] = "none";

	if (m->memlock != UINT64_MAX)
		units_size(m->memlock, limit);
	struct finding *finding = finding_add(findings, "memlock",
		enough ? FINDING_OK : FINDING_ADVICE, "limit of locked memory: %s%s", limit,
		m->may_lock ? ", which does not hold for this user (CAP_IPC_LOCK)" : "");
	if (!enough)
		finding_todo(finding,
			"ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit: with "
			"%s of experts io_uring can register only a part of them, and "
			"reads take a little more CPU time",
			UNITS_SIZE(wants->slots_bytes));
}

static void judge_io_uring(const struct machine *m, struct findings *findings)
{
	if (m->io_uring == 0) {
		finding_add(findings, "io_uring", FINDING_OK, "works");
		return;
	}
	struct finding *finding = finding_add(findings, "io_uring", FINDING_ADVICE,
		"%s: experts are read by threads (pread), which takes more CPU time",
		strerror(-m->io_uring));
	if (m->io_uring_disabled > 0)
		finding_todo(finding, "sysctl kernel.io_uring_disabled=0: it is %d, which %s",
			m->io_uring_disabled,
			m->io_uring_disabled == 1
				? "leaves io_uring to the group in kernel.io_uring_group"
				: "forbids it to everybody");
	else if (m->io_uring == -ENOSYS)
		finding_todo(finding, "use a kernel with io_uring, or a sandbox that lets it "
				      "through");
	else if (m->io_uring == -ENOMEM)
		finding_todo(finding, "raise the limit of locked memory (ulimit -l)");
	else
		finding_todo(finding, "allow io_uring in the sandbox or container (its seccomp "
				      "profile)");
}

static void judge_descriptors(
	const struct machine *m, const struct machine_wants *wants, struct findings *findings)
{
	uint64_t needed = LIMIT_DESCRIPTORS + wants->files;
	char now[24] = "no limit", most[24] = "none";

	if (m->files_now != UINT64_MAX)
		snprintf(now, sizeof(now), "%llu", (unsigned long long)m->files_now);
	if (m->files_most != UINT64_MAX)
		snprintf(most, sizeof(most), "%llu", (unsigned long long)m->files_most);
	bool few = m->files_most < needed;
	struct finding *finding = finding_add(findings, "descriptors",
		few ? FINDING_PROBLEM : FINDING_OK,
		"limit of open files: %s, which a process may raise to: %s; %llu are needed", now,
		most, (unsigned long long)needed);
	if (few)
		finding_todo(finding,
			"ulimit -n %llu or more, or LimitNOFILE=", (unsigned long long)needed);
}

static void judge_gpu(const struct machine *m, struct findings *findings)
{
	char there[512];

	if (m->n_gpus > 0)
		snprintf(there, sizeof(there), "%u GPU%s (%s), NVIDIA driver %s, %s", m->n_gpus,
			plural(m->n_gpus), m->gpu[0] ? m->gpu : "unknown model",
			m->driver[0] ? m->driver : "of an unknown version",
			m->nvidia_smi[0] ? m->nvidia_smi : "no nvidia-smi");
	else if (m->driver[0])
		snprintf(there, sizeof(there), "NVIDIA driver %s without a GPU", m->driver);
	else
		snprintf(there, sizeof(there), "no NVIDIA driver");
	if (m->gpu_usable)
		finding_add(findings, "gpu", FINDING_OK,
			"%s: --device auto computes on it (%s); this has not been tried yet", there,
			m->gpu_use);
	else
		/* Where there is no GPU, what else is missing is not the reason. */
		finding_add(findings, "gpu", FINDING_OK, "%s; the service computes on the CPU%s%s",
			there,
			!m->gpu_use[0]	? ""
			: m->n_gpus > 0 ? ": "
					: ". ",
			m->gpu_use);
}

static void judge_units(const struct machine *m, struct findings *findings)
{
	if (m->units[0])
		finding_add(findings, "systemd", FINDING_OK, "units are installed in %s%s",
			m->units, m->systemd ? "" : ", but systemd does not run this machine");
	else
		finding_add(findings, "systemd", FINDING_OK,
			"no units are installed%s: `outrider up` starts the service, `make "
			"install` installs units",
			m->systemd ? "" : ", and systemd does not run this machine");
}

void machine_judge(
	const struct machine *machine, const struct machine_wants *wants, struct findings *findings)
{
	judge_cpu(machine, findings);
	judge_cpus(machine, findings);
	judge_load(machine, findings);
	judge_memory(machine, findings);
	judge_swap(machine, findings);
	judge_huge_pages(machine, findings);
	judge_memlock(machine, wants, findings);
	judge_io_uring(machine, findings);
	judge_descriptors(machine, wants, findings);
	judge_gpu(machine, findings);
	judge_units(machine, findings);
}
