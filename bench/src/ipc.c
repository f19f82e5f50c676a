#include "bench/src/ipc.h"

#include "bench/src/gpu.h"
#include "bench/src/histogram.h"
#include "bench/src/ipc_gpu.h"
#include "bench/src/ipc_side.h"
#include "bench/src/options.h"
#include "client/model/args.h"
#include "shared/base/clock.h"
#include "shared/base/cpu_name.h"
#include "shared/ipc/bus.h"

#include <errno.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static const struct {
	const char *name, *text;
	int hops; /* the round trip is divided by it */
} measurements[MODES] = {
	[MODE_SPIN] = {"ring_hop", "ring, both sides spinning: one hop", 2},
	[MODE_SLEEP] = {"doorbell_hop", "ring and doorbell, both sides asleep: one hop", 2},
	[MODE_EXPERT] = {"expert_lookup", "expert demand -> state word flips: round trip", 1},
	[MODE_ZMQ] = {"zeromq_round_trip", "ZeroMQ ipc:// DEALER-ROUTER: round trip", 1},
};

struct options {
	float seconds, spin_us;
	const char *backend, *format;
	bool json, help;
};

/* The first two cores we may run on. */
static int usable_cpus(int cpus[2])
{
	cpu_set_t set;
	int n = 0;

	if (sched_getaffinity(0, sizeof set, &set) < 0)
		return 1;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET((size_t)cpu, &set)) {
			if (n < 2)
				cpus[n] = cpu;
			n++;
		}
	return n;
}

static double us(const struct histogram *h, int mode, double q)
{
	double ns = q < 1 ? histogram_quantile_ns(h, q) : (double)h->max_ns;

	return ns / measurements[mode].hops / 1000;
}

static void print_table(
	const struct histogram *h, const char *cpu, int n_cpus, const int cpus[2], bool sleeping)
{
	printf("%s, %d %s; ", cpu, n_cpus, n_cpus == 1 ? "core" : "cores");
	if (sleeping)
		printf("one core only: where it says spinning, both sides sleep\n");
	else
		printf("asking on core %d, answering on core %d\n", cpus[0], cpus[1]);
	printf("64-byte messages; microseconds\n\n");
	printf("%-48s %10s %8s %8s %8s %9s\n", "", "samples", "p50", "p90", "p99", "max");
	for (int m = 0; m < MODES; m++)
		printf("%-48s %10llu %8.3f %8.3f %8.3f %9.1f\n", measurements[m].text,
			(unsigned long long)h[m].n, us(&h[m], m, 0.5), us(&h[m], m, 0.9),
			us(&h[m], m, 0.99), us(&h[m], m, 1));
}

static void print_json(const struct histogram *h, const char *cpu, int n_cpus,
	const struct options *options, const struct ipc_side *side)
{
	json_t *results = json_array();
	json_t *all;

	for (int m = 0; m < MODES; m++)
		json_array_append_new(
			results, json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f}", "name",
					 measurements[m].name, "what", measurements[m].text,
					 "samples", (json_int_t)h[m].n, "p50_us", us(&h[m], m, 0.5),
					 "p90_us", us(&h[m], m, 0.9), "p99_us", us(&h[m], m, 0.99),
					 "max_us", us(&h[m], m, 1)));
	all = json_pack("{s:s, s:i, s:b, s:f, s:I, s:o}", "cpu", cpu, "cores", n_cpus, "spinning",
		!side->sleeping, "seconds", (double)options->seconds, "doorbell_spin_ns",
		(json_int_t)side->spin_ns, "results", results);
	if (all) {
		json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
		putchar('\n');
	}
	json_decref(all);
}

static int measure(struct ipc_side *side, const struct options *options, struct histogram *h,
	struct error *err)
{
	uint64_t start_ns = clock_ns(), number = 0;
	bool terminal = isatty(STDERR_FILENO);
	double elapsed = 0;

	while (elapsed < (double)options->seconds) {
		for (int m = 0; m < MODES; m++)
			if (!ipc_side_measure(side, (enum mode)m, &number, &h[m]))
				return error_set(err, EPIPE,
					"%s: the answering process gave no answer",
					measurements[m].text);
		elapsed = (double)(clock_ns() - start_ns) / 1e9;
		if (terminal)
			fprintf(stderr, "\rmeasuring: %.0f of %.0f s ", elapsed,
				(double)options->seconds);
	}
	if (terminal)
		fputs("\r\033[K", stderr);
	return 0;
}

static int parse(struct options *options, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"seconds", ARG_FLOAT, &options->seconds, 0, 0, "S",
			"how long to measure in all, default 4"},
		{"spin", ARG_FLOAT, &options->spin_us, 0, 0, "US",
			"how long the doorbell's waiters spin before they sleep, default 0"},
		{"backend", ARG_STRING, &options->backend, 0, 0, "cpu|simt|cuda",
			"default cpu; simt, cuda: what crosses processes on a GPU, emulated or "
			"real"},
		{"format", ARG_FORMAT, &options->format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &options->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int code = args_parse(argc, argv, args, err);

	if (code == 0 && options->help) {
		puts("usage: outrider-bench ipc [OPTIONS]\n");
		args_help(args, stdout);
		return 0;
	}
	if (code == 0 && !(options->seconds >= 0.1f && options->seconds <= 600))
		code = error_set(err, EINVAL, "--seconds takes 0.1 to 600");
	if (code == 0 && !(options->spin_us >= 0 && options->spin_us <= 1e6f))
		code = error_set(err, EINVAL, "--spin takes 0 to 1000000 (microseconds)");
	if (code == 0)
		code = gpu_check(options->backend, true, err);
	return code ? code : option_format(options->format, &options->json, err);
}

static int on_gpu(const struct options *options, struct error *err)
{
	const struct ipc_gpu_options gpu = {.backend = options->backend,
		.seconds = (double)options->seconds,
		.json = options->json};

	return ipc_gpu(&gpu, err);
}

/* Between the two sides, which are then gone. */
static int run(const struct options *options, struct histogram *h, struct error *err)
{
	struct ipc_side side = {.region.fd = -1};
	char endpoint[64], cpu[CPU_NAME_BYTES];
	int cpus[2] = {0, 0}, n_cpus = usable_cpus(cpus), code;

	snprintf(endpoint, sizeof endpoint, "ipc:///tmp/outrider-bench-%ld", (long)getpid());
	cpu_name(cpu);
	side.spin_ns = (uint64_t)((double)options->spin_us * 1000);
	side.sleeping = n_cpus < 2;
	code = ipc_side_start(&side, endpoint, cpus, err);
	if (code == 0)
		code = measure(&side, options, h, err);
	ipc_side_stop(&side);
	unlink(bus_ipc_path(endpoint));
	if (code < 0)
		return code;
	if (options->json)
		print_json(h, cpu, n_cpus, options, &side);
	else
		print_table(h, cpu, n_cpus, cpus, side.sleeping);
	return 0;
}

int bench_ipc(int argc, char **argv)
{
	struct options options = {.seconds = 4, .backend = "cpu", .format = "text"};
	struct histogram *h = calloc(MODES, sizeof *h);
	struct error err = {""};

	if (!h)
		return EX_OSERR;
	int code = parse(&options, argc, argv, &err);
	bool usage = code < 0;
	if (code == 0 && !options.help)
		code = strcmp(options.backend, "cpu") == 0 ? run(&options, h, &err)
							   : on_gpu(&options, &err);
	if (code < 0)
		fprintf(stderr, "outrider-bench ipc: %s\n", err.text);
	free(h);
	return code == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(code);
}
