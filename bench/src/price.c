#include "bench/src/price.h"

#include "bench/src/gpu_copy.h"
#include "bench/src/gpu.h"
#include "bench/src/options.h"
#include "bench/src/price_side.h"
#include "client/model/args.h"
#include "client/model/engine.h"
#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/kernels.h"
#include "shared/base/cpu_name.h"
#include "shared/base/cpus.h"
#include "shared/base/median.h"
#include "shared/base/plural.h"
#include "shared/measure/peaks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { COUNTS = 16, ROUNDS = PEAKS_ROUNDS };

/* More than caches hold; and what the emulation computes in a fraction of a second. */
#define ARENA_BYTES (1ull << 30)
#define EMULATED_BYTES (2ull << 20)
#define READ_BYTES (256u << 20)

struct bench {
	struct {
		const char *model, *backend, *tokens, *format;
		uint32_t layer, rounds, threads;
		bool json, help;
	} options;
	uint32_t counts[COUNTS], n_counts;
	struct price_side device, cpu; /* device without a back end: --backend cpu */
	struct expert_arena arena;
	struct gpu_copy copy, link;
	struct peaks_memory memory;
	uint32_t threads;
	double copy_gb_s[ROUNDS], to_gb_s[ROUNDS], from_gb_s[ROUNDS], read_gb_s[ROUNDS];
	struct price {
		double resident[ROUNDS], copied[ROUNDS], cpu[ROUNDS]; /* ns of an expert */
	} * prices; /* [n_counts] */
};

static bool has_device(const struct bench *b)
{
	return b->device.backend != NULL;
}

static int open_cpu(struct bench *b, struct error *err)
{
	struct cpus cpus;

	cpus_now(&cpus);
	b->threads = b->options.threads ? b->options.threads : cpus.threads;
	const struct kernels *kernels = kernels_select("auto", err);
	if (kernels == NULL)
		return -EINVAL;
	engine_say_if_slow("outrider-bench", kernels, "auto", b->threads);
	const struct backend_cpu_options options = {.kernels = kernels,
		.threads = b->threads,
		.pin = b->threads >= cpus.cores,
		.spin_ns = 1000000};
	return backend_cpu_create(&options, &b->cpu.backend, err);
}

static int start(void *arg, struct error *err)
{
	struct bench *b = arg;
	bool device = strcmp(b->options.backend, "cpu") != 0;
	uint32_t most = 1;
	int rc = device ? gpu_open(b->options.backend, &b->device.backend, err) : 0;

	for (uint32_t i = 0; i < b->n_counts; i++)
		most = b->counts[i] > most ? b->counts[i] : most;
	b->prices = calloc(b->n_counts, sizeof(*b->prices));
	if (rc == 0 && b->prices == NULL)
		rc = error_set(err, ENOMEM, "no memory for the results");
	if (rc == 0)
		rc = open_cpu(b, err);
	if (rc == 0)
		rc = expert_arena_open(device ? b->device.backend : b->cpu.backend,
			b->options.model, b->options.layer,
			device && gpu_emulated(b->device.backend) ? EMULATED_BYTES : ARENA_BYTES,
			&b->arena, err);
	if (rc == 0)
		rc = price_side_open(&b->cpu, &b->arena, most, err);
	if (rc == 0)
		rc = peaks_memory_get(&b->memory, READ_BYTES, err);
	if (rc < 0 || !device)
		return rc;
	rc = price_side_open(&b->device, &b->arena, most, err);
	if (rc == 0)
		rc = gpu_copy_open_own(b->device.backend, &b->copy, err);
	return rc == 0 ? gpu_copy_open_link(b->device.backend, &b->link, err) : rc;
}

static void stop(void *arg)
{
	struct bench *b = arg;

	peaks_memory_put(&b->memory);
	gpu_copy_close(&b->copy);
	gpu_copy_close(&b->link);
	/* The back ends go last: the arena's memory is one's, and the other has wrapped it. */
	struct backend *device = b->device.backend, *cpu = b->cpu.backend;
	price_side_close(&b->device);
	price_side_close(&b->cpu);
	expert_arena_close(&b->arena);
	if (device != NULL)
		device->ops->destroy(device);
	if (cpu != NULL)
		cpu->ops->destroy(cpu);
	free(b->prices);
}

static int measure_count(struct bench *b, uint32_t i, uint32_t round, struct error *err)
{
	struct price *price = &b->prices[i];
	uint32_t n = b->counts[i];
	int rc = price_side_run(&b->cpu, n, false, &price->cpu[round], err);

	if (rc == 0 && has_device(b))
		rc = price_side_run(&b->device, n, false, &price->resident[round], err);
	if (rc == 0 && has_device(b))
		rc = price_side_run(&b->device, n, true, &price->copied[round], err);
	return rc;
}

static int measure(void *arg, struct error *err)
{
	struct bench *b = arg;
	int rc = 0;

	/* Once for nothing: threads start, and memory is touched. */
	for (uint32_t i = 0; rc == 0 && i < b->n_counts; i++)
		rc = measure_count(b, i, 0, err);
	for (uint32_t round = 0; rc == 0 && round < b->options.rounds; round++) {
		b->read_gb_s[round] = peaks_read(&b->memory, backend_cpu_pool(b->cpu.q));
		if (has_device(b)) {
			b->copy_gb_s[round] = gpu_copy_own(&b->copy);
			rc = gpu_copy_link(&b->link, &b->to_gb_s[round], &b->from_gb_s[round], err);
		}
		for (uint32_t i = 0; rc == 0 && i < b->n_counts; i++)
			rc = measure_count(b, i, round, err);
	}
	return rc;
}

/* One way to get an expert computed: how long it takes, its bytes over that, and their share of what
 * they come through. */
static json_t *way(const struct bench *b, double *ns, double peak)
{
	double each = median(ns, b->options.rounds), gb_s = (double)b->arena.expert_bytes / each;

	return json_pack("{s:f, s:f, s:f}", "us", each / 1000, "gb_s", gb_s, "share", gb_s / peak);
}

static json_t *report(void *arg)
{
	struct bench *b = arg;
	uint32_t rounds = b->options.rounds;
	char cpu[CPU_NAME_BYTES];
	json_t *all = has_device(b) ? gpu_json(b->device.backend, rounds)
				    : json_pack("{s:s, s:i, s:b}", "backend", "cpu", "rounds",
					      (int)rounds, "emulated", false);
	json_t *rows = json_array(), *peaks = json_object();
	double read = median(b->read_gb_s, rounds), copy = 0, to = 0;

	cpu_name(cpu);
	json_object_set_new(peaks, "cpu_read_gb_s", json_real(read));
	if (has_device(b)) {
		copy = median(b->copy_gb_s, rounds);
		to = median(b->to_gb_s, rounds);
		json_object_set_new(peaks, "copy_gb_s", json_real(copy));
		json_object_set_new(peaks, "to_device_gb_s", json_real(to));
	}
	for (uint32_t i = 0; i < b->n_counts; i++) {
		json_t *row = json_pack("{s:i}", "tokens", (int)b->counts[i]);

		json_object_set_new(row, "cpu", way(b, b->prices[i].cpu, read));
		if (has_device(b)) {
			json_object_set_new(row, "resident", way(b, b->prices[i].resident, copy));
			json_object_set_new(row, "copied", way(b, b->prices[i].copied, to));
		}
		json_array_append_new(rows, row);
	}
	json_object_set_new(all, "cpu", json_string(cpu));
	json_object_set_new(all, "threads", json_integer(b->threads));
	json_object_set_new(all, "layer", json_integer(b->arena.number));
	json_object_set_new(all, "experts", json_integer(b->arena.n));
	json_object_set_new(all, "expert_bytes", json_integer((json_int_t)b->arena.expert_bytes));
	json_object_set_new(all, "peaks", peaks);
	json_object_set_new(all, "rows", rows);
	return all;
}

static void print_way(const json_t *row, const char *name)
{
	const json_t *of = json_object_get(row, name);

	if (of != NULL)
		printf(" %10.2f %8.3f %6.1f%%", gpu_number(of, "us"), gpu_number(of, "gb_s"),
			100 * gpu_number(of, "share"));
}

static void print_text(const void *arg, const json_t *all)
{
	const struct bench *b = arg;
	const json_t *peaks = json_object_get(all, "peaks"), *row;
	size_t i;

	if (has_device(b))
		gpu_say(b->device.backend, b->options.rounds);
	printf("%s, %u thread%s", json_string_value(json_object_get(all, "cpu")), b->threads,
		plural(b->threads));
	if (!has_device(b))
		printf("; median of %u round%s", b->options.rounds, plural(b->options.rounds));
	printf("\n%u experts of layer %u, %.1f KiB each\npeaks: the CPU reads %.2f GB/s",
		b->arena.n, b->arena.number, (double)b->arena.expert_bytes / 1024,
		gpu_number(peaks, "cpu_read_gb_s"));
	if (has_device(b))
		printf("; copies in the device's memory %.2f GB/s, read and written; to it %.2f "
		       "GB/s",
			gpu_number(peaks, "copy_gb_s"), gpu_number(peaks, "to_device_gb_s"));
	printf("\n\n%-8s %27s", "", "by the CPU");
	if (has_device(b))
		printf(" %27s %27s", "in a slot", "copied, then in a slot");
	printf("\ntokens  ");
	printf(" %10s %8s %7s", "us", "GB/s", "of read");
	if (has_device(b))
		printf(" %10s %8s %7s %10s %8s %7s", "us", "GB/s", "of copy", "us", "GB/s",
			"of link");
	putchar('\n');
	json_array_foreach(json_object_get(all, "rows"), i, row)
	{
		printf("%-8u", b->counts[i]);
		print_way(row, "cpu");
		print_way(row, "resident");
		print_way(row, "copied");
		putchar('\n');
	}
}

static int parse(struct bench *b, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"model", ARG_STRING, &b->options.model, 0, 0, "FILE",
			"a GGUF model with experts (needed)"},
		{"backend", ARG_STRING, &b->options.backend, 0, 0, "cpu|simt|cuda",
			"what computes beside the CPU, default cpu: nothing; simt: a GPU's "
			"kernels, emulated"},
		{"layer", ARG_U32, &b->options.layer, 0, LIMIT_LAYERS - 1, "N",
			"whose experts; default: the first layer that has some"},
		{"tokens", ARG_STRING, &b->options.tokens, 0, 0, "N,...",
			"tokens that chose an expert, default 1,2,4,8,16"},
		{"rounds", ARG_U32, &b->options.rounds, 1, ROUNDS, "N",
			"default 5; medians are printed"},
		{"threads", ARG_U32, &b->options.threads, 1, LIMIT_THREADS, "N",
			ENGINE_THREADS_HELP},
		{"format", ARG_FORMAT, &b->options.format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &b->options.help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);

	if (rc == 0 && b->options.help) {
		puts("usage: outrider-bench price --model FILE [OPTIONS]\n\n"
		     "Measures what an expert costs, by the tokens that chose it: computed by the\n"
		     "CPU, in a device's slot where it is, and there behind its copy over the "
		     "link.\n");
		args_help(args, stdout);
		return 0;
	}
	if (rc == 0 && b->options.model == NULL)
		rc = error_set(err, EINVAL, "--model is needed");
	if (rc == 0)
		rc = gpu_check(b->options.backend, true, err);
	if (rc == 0)
		rc = option_numbers("tokens", b->options.tokens, 1, LIMIT_BATCH, COUNTS, b->counts,
			&b->n_counts, err);
	return rc ? rc : option_format(b->options.format, &b->options.json, err);
}

static const struct gpu_bench steps = {start, measure, report, print_text, stop};

int bench_price(int argc, char **argv)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct error err = {""};

	if (b == NULL)
		return EX_OSERR;
	b->options.backend = "cpu";
	b->options.tokens = "1,2,4,8,16";
	b->options.format = "text";
	b->options.layer = UINT32_MAX;
	b->options.rounds = 5;
	int rc = parse(b, argc, argv, &err);
	bool usage = rc < 0;
	if (rc == 0 && !b->options.help)
		rc = gpu_run(&steps, b, b->options.json, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench price: %s\n", err.text);
	free(b);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
