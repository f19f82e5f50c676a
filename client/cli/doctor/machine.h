/*
 * The state of a machine that `outrider doctor` reads: from /proc, /sys and the directories of
 * units below a root directory, for which tests have one of their own (machine_read), and from the
 * kernel for this process (machine_probe). machine_judge draws the conclusions, without side
 * effects. One thread.
 */
#pragma once

#include "client/cli/doctor/finding.h"
#include "shared/base/cpu_name.h"
#include "shared/base/cpus.h"
#include "shared/base/memory.h"

#include <stdbool.h>

struct machine {
	/* Set by machine_read. */
	char cpu[CPU_NAME_BYTES];
	bool has_avx2, has_avx512f, has_vnni; /* the flags of the first processor */
	struct cpus cpus;
	uint32_t nodes; /* with memory; at least 1 */
	double load; /* of the last minute; -1: not known */
	struct memory_limit memory;
	uint64_t memory_total; /* UINT64_MAX: not known, here and below */
	uint64_t swap_total, swap_free;
	uint64_t huge_total, huge_free, huge_page_bytes; /* of the kernel's pool */
	char thp[16], thp_shared[16]; /* "madvise"; "": no such switch */
	int io_uring_disabled; /* kernel.io_uring_disabled; -1: no such setting */
	bool may_lock; /* CAP_IPC_LOCK */
	char driver[96]; /* NVIDIA's version; "": none */
	uint32_t n_gpus;
	char gpu[96]; /* of the first */
	bool systemd; /* systemd runs this machine */
	char units[64]; /* the directory with our units; "": not installed */
	/* Set by machine_probe. */
	const char *kernels; /* of kernels_select */
	const char *kernels_notice; /* or NULL */
	int io_uring; /* 0: it works; -errno */
	uint64_t memlock, files_now, files_most; /* limits; UINT64_MAX: none */
	char nvidia_smi[256]; /* its path; "": not found in PATH */
	bool gpu_usable; /* by the back end for GPUs */
	char gpu_use[400]; /* the device, its memory and driver, or why there is none */
};

/* root: "" for the machine itself. mask: the CPUs that may be used. */
void machine_read(const char *root, const cpu_set_t *mask, struct machine *out);
void machine_probe(struct machine *out);

/* What the model needs from the machine; all 0 without a model. */
struct machine_wants {
	uint64_t slots_bytes; /* memory of experts into which io_uring reads */
	uint64_t files; /* descriptors of a process beyond the least */
};

void machine_judge(const struct machine *machine, const struct machine_wants *wants,
	struct findings *findings);
