#include "bench/src/machine.h"

#include "bench/src/options.h"
#include "client/model/engine.h"
#include "kernels/cpu/simd.h"
#include "kernels/kernels.h"
#include "shared/base/cpu_name.h"
#include "shared/base/cpus.h"
#include "shared/base/plural.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

const char *machine_threads(const struct pool *pool, char out[static MACHINE_THREADS_BYTES])
{
	uint32_t threads = pool_threads(pool), active = pool_active(pool);
	int n = snprintf(out, MACHINE_THREADS_BYTES, "%u thread%s", threads, plural(threads));

	if (active < threads)
		snprintf(out + n, MACHINE_THREADS_BYTES - (size_t)n, " (%u active)", active);
	return out;
}

void machine_begin(const struct kernels *kernels, const char *asked, uint32_t *threads)
{
	struct cpus cpus;

	cpus_now(&cpus);
	if (*threads == 0)
		*threads = cpus.threads;
	engine_say_if_slow("outrider-bench", kernels, asked, *threads);
}

/* The widest instruction set that the kernels use here. */
static const char *instructions(void)
{
	const char *best = kernels_select("auto", NULL)->name;

	if (strcmp(best, "avx512") == 0)
		return "AVX-512 VNNI";
	return strcmp(best, "avx2") == 0 ? "AVX2" : "no AVX2";
}

static void print(bool json)
{
	char cpu[CPU_NAME_BYTES];
	struct cpus cpus;

	cpu_name(cpu);
	cpus_now(&cpus);
	if (!json) {
		printf("%s, %u CPU%s, %s\n", cpu, cpus.n, plural(cpus.n), instructions());
		return;
	}
	json_t *all = json_pack("{s:s, s:i, s:i, s:f, s:s}", "cpu", cpu, "cpus", (int)cpus.n,
		"cores", (int)cpus.cores, "quota", cpus.quota, "instructions", instructions());
	json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(all);
}

int bench_machine(int argc, char **argv)
{
	const char *format = "text";
	bool help = false, json = false;
	struct error err = {""};
	const struct arg args[] = {
		{"format", ARG_FORMAT, &format, 0, 0, "text|json", "output format, default text"},
		{"help", ARG_FLAG, &help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, &err);

	if (rc == 0 && help) {
		puts("usage: outrider-bench machine [OPTIONS]\n\n"
		     "Prints this machine as results name it: its CPU with the microarchitecture,\n"
		     "family and model, the number of CPUs that this process may use, and the\n"
		     "widest instructions of the kernels.\n");
		args_help(args, stdout);
		return EX_OK;
	}
	if (rc == 0)
		rc = option_format(format, &json, &err);
	if (rc < 0) {
		fprintf(stderr, "outrider-bench machine: %s\n", err.text);
		return EX_USAGE;
	}
	print(json);
	return EX_OK;
}
