/* outrider-bench: a table of subcommands. Each parses its own options; argv[0] is its name. */
#include "bench/src/attention.h"
#include "bench/src/budget.h"
#include "bench/src/cache.h"
#include "bench/src/device.h"
#include "bench/src/gateway.h"
#include "bench/src/grammar.h"
#include "bench/src/ipc.h"
#include "bench/src/kernels.h"
#include "bench/src/load.h"
#include "bench/src/machine.h"
#include "bench/src/model.h"
#include "bench/src/policy.h"
#include "bench/src/pool.h"
#include "bench/src/price.h"
#include "bench/src/skip.h"
#include "bench/src/spec.h"
#include "bench/src/tolerance.h"
#include "bench/src/workload.h"
#include "shared/base/standard.h"
#include "shared/model/gguf/gguf_guard.h"

#include <stdio.h>
#include <string.h>
#include <sysexits.h>

static const struct command {
	const char *name, *help;
	int (*run)(int argc, char **argv);
} commands[] = {
	{"attention", "GB/s of keys and values at depth, and the machine's own peaks",
		bench_attention},
	{"budget", "the error of layers whose trees of drafts may use B experts, over B",
		bench_budget},
	{"cache", "routing traces, and their replay under each policy of the expert-cache",
		bench_cache},
	{"device", "a GPU whose memory holds a share of the experts, simulated", bench_device},
	{"gateway", "tokens/s and the first token through HTTP, beside the SDK", bench_gateway},
	{"grammar", "masks of constrained output with a model's vocabulary, in microseconds",
		bench_grammar},
	{"ipc", "the cost of a hop through the shared regions, and of ZeroMQ ipc://", bench_ipc},
	{"kernels", "GB/s and GOP/s of every product, and the machine's own peaks", bench_kernels},
	{"load", "waits, goodput and failures of many clients of a service", bench_load},
	{"machine", "this machine as results name it: CPU and microarchitecture", bench_machine},
	{"model", "prefill, decode and T(n) of a model file, and the time its bytes need",
		bench_model},
	{"policy", "every way to choose K, simulated on published and recorded sessions",
		bench_policy},
	{"pool", "the cost of handing work to the threads of a pass, and of a busy CPU",
		bench_pool},
	{"price", "what an expert costs: by the CPU, in a device's slot, and copied there",
		bench_price},
	{"skip", "without which of its layers a model drafts best for itself", bench_skip},
	{"spec", "trees of drafts: speed, accepted length, experts and quality, per budget",
		bench_spec},
	{"tolerance",
		"what drafts of many sessions cost, and whether they can pay: the gamma-tolerance",
		bench_tolerance},
	{"workload", "tokens/s, acceptance and experts of a served workload, per K",
		bench_workload},
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void usage(FILE *to)
{
	fputs("usage: outrider-bench COMMAND [OPTIONS]\n\n", to);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
	fputs("\noutrider-bench COMMAND --help lists its options; --version prints the version.\n"
	      "Sizes are in KiB, MiB and GiB. A GB/s is 10^9 bytes a second, a GOP/s 10^9 "
	      "operations.\n",
		to);
}

static int dispatch(int argc, char **argv)
{
	gguf_guard_start("outrider-bench: ");
	if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
				 strcmp(argv[1], "help") == 0)) {
		usage(stdout);
		return EX_OK;
	}
	if (argc >= 2 && strcmp(argv[1], "--version") == 0) {
		puts("outrider-bench " OUTRIDER_VERSION);
		return EX_OK;
	}
	for (size_t i = 0; argc >= 2 && i < N_COMMANDS; i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	if (argc >= 2)
		fprintf(stderr, "outrider-bench: unknown command \"%s\"\n", argv[1]);
	usage(stderr);
	return EX_USAGE;
}

int main(int argc, char **argv)
{
	standard_begin();
	return standard_end("outrider-bench", dispatch(argc, argv));
}
