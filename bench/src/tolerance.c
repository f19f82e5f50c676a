#include "bench/src/tolerance.h"

#include "bench/src/machine.h"
#include "bench/src/options.h"
#include "bench/src/picture.h"
#include "shared/base/clock.h"
#include "shared/base/cpu_name.h"
#include "shared/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum {
	NAMES = 4, /* of types of KV, and of kernels */
	LEFT_MIB = 1024, /* for buffers, and for who else is there */
};

/* Splits "a,b" in place. */
static int names(
	const char *option, char *text, const char *out[NAMES], uint32_t *n, struct error *err)
{
	char *rest = text, *name;

	*n = 0;
	while ((name = strsep(&rest, ",")) != NULL) {
		if (*n == NAMES || !*name)
			return error_set(err, EINVAL, "--%s takes up to %d names", option, NAMES);
		out[(*n)++] = name;
	}
	return 0;
}

static int ascending(const char *option, const uint32_t *values, uint32_t n, struct error *err)
{
	for (uint32_t i = 1; i < n; i++)
		if (values[i] <= values[i - 1])
			return error_set(err, EINVAL, "--%s: %u after %u does not ascend", option,
				values[i], values[i - 1]);
	return 0;
}

static int parse_grid(struct tolerance_bench *b, struct error *err)
{
	const struct tolerance_options *o = &b->options;
	int rc = option_numbers(
		"batch", o->batch, 1, LIMIT_RUNNING, GRID_BATCHES, b->batch, &b->n_batches, err);

	if (rc == 0)
		rc = option_numbers("gamma", o->gamma, 1, GRID_GAMMA_MOST, GRID_GAMMAS - 1,
			b->gamma + 1, &b->n_gammas, err);
	if (rc == 0)
		rc = option_numbers("context", o->context, 1, LIMIT_CONTEXT / 2, GRID_CONTEXTS,
			b->context, &b->n_contexts, err);
	if (rc == 0)
		rc = option_numbers("acceptance", o->acceptance, 0, 100, GRID_GAMMA_MOST,
			b->accepted, &b->n_accepted, err);
	b->n_gammas++;
	if (rc == 0)
		rc = ascending("batch", b->batch, b->n_batches, err);
	if (rc == 0)
		rc = ascending("gamma", b->gamma, b->n_gammas, err);
	return rc ? rc : ascending("context", b->context, b->n_contexts, err);
}

/* kv, kernels: copies of the options' values, which are split. */
static int parse_series(struct tolerance_bench *b, char *kv, char *kernels, struct error *err)
{
	const char *kvs[NAMES], *isas[NAMES];
	uint32_t n_kvs, n_isas;
	int rc = names("kv", kv, kvs, &n_kvs, err);

	if (rc == 0)
		rc = names("kernels", kernels, isas, &n_isas, err);
	for (uint32_t k = 0; rc == 0 && k < n_isas; k++)
		for (uint32_t i = 0; rc == 0 && i < n_kvs; i++) {
			struct engine_options one = b->options.engine;

			one.kv = kvs[i];
			one.kernels = isas[k];
			rc = engine_check_options(&one, err);
			b->series[b->n_series].kv = kvs[i];
			b->series[b->n_series++].kernels = isas[k];
		}
	return rc;
}

static int parse(struct tolerance_bench *b, int argc, char **argv, struct error *err)
{
	struct tolerance_options *o = &b->options;
	const struct arg args[] = {
		{"model", ARG_STRING, &o->engine.model, 0, 0, "FILE", "the GGUF model (needed)"},
		{"draft", ARG_STRING, &o->draft, 0, 0, "FILE",
			"a draft model, whose steps are measured too; default: drafts cost "
			"nothing"},
		{"batch", ARG_STRING, &o->batch, 0, 0, "N,N,...",
			"sessions of a pass, default 1,4,16,64,256"},
		{"gamma", ARG_STRING, &o->gamma, 0, 0, "N,N,...",
			"drafted tokens of each, default 1,3,7,15; 0 is always measured"},
		{"context", ARG_STRING, &o->context, 0, 0, "N,N,...",
			"tokens of each session before a pass, default 256,4096,16384"},
		{"kv", ARG_STRING, &o->kv, 0, 0, "TYPE,...",
			"types of the KV cache, as in outrider-model; default auto"},
		{"kernels", ARG_STRING, &o->kernels, 0, 0, "NAME,...",
			"kernels of the CPU, default: the best"},
		{"acceptance", ARG_STRING, &o->acceptance, 0, 0, "PERCENT,...",
			"chance of each drafted token if those before it are accepted; the last "
			"holds for all further ones; default 70"},
		{"layers", ARG_U32, &o->layers, 1, LIMIT_LAYERS, "N",
			"scale to a model with N layers of the file's kind"},
		{"rounds", ARG_U32, &o->rounds, 3, 99, "N", "rounds, default 3"},
		{"slice-ms", ARG_U32, &o->slice_ms, 1, 60000, "MS",
			"how long passes of one kind go on in a round, default 200"},
		{"seconds", ARG_U32, &o->seconds, 1, 86400, "S",
			"begin no further kind of pass after S seconds"},
		{"memory", ARG_U32, &o->memory_mib, 1, UINT32_MAX, "MIB",
			"what weights and KV may take; default: what is available, less 1024"},
		{"threads", ARG_U32, &o->engine.threads, 1, LIMIT_THREADS, "N",
			ENGINE_THREADS_HELP},
		{"plot", ARG_STRING, &o->plot, 0, 0, "FILE.svg|FILE.png",
			"draw the curves, with gnuplot"},
		{"format", ARG_FORMAT, &o->engine.format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &o->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);

	if (rc == 0 && o->help) {
		puts("usage: outrider-bench tolerance --model FILE [OPTIONS]\n\n"
		     "Measures how much slower passes become when each of many sessions verifies\n"
		     "a draft, and says whether drafts can pay.\n");
		args_help(args, stdout);
		return 0;
	}
	if (rc == 0)
		rc = engine_check_options(&o->engine, err);
	if (rc == 0 && o->plot)
		rc = picture_check(o->plot, err);
	o->json = rc == 0 && strcmp(o->engine.format, "json") == 0;
	return rc ? rc : parse_grid(b, err);
}

static void set_memory(struct tolerance_bench *b)
{
	struct memory_limit limit;
	uint64_t left = (uint64_t)LEFT_MIB << 20;

	memory_limit_now(&limit);
	if (b->options.memory_mib)
		b->memory = (uint64_t)b->options.memory_mib << 20;
	else
		b->memory = limit.available > left ? limit.available - left : 0;
}

static int measure(struct tolerance_bench *b, struct error *err)
{
	int rc = 0;

	machine_begin(NULL, NULL, &b->options.engine.threads);
	set_memory(b);
	b->start_ns = clock_ns();
	for (uint32_t i = 0; rc == 0 && i < b->n_series; i++) {
		rc = grid_measure(b, &b->series[i], err);
		if (rc == 0)
			rc = grid_fit(b, &b->series[i], err);
	}
	return rc;
}

static int print(const struct tolerance_bench *b, struct error *err)
{
	char cpu[CPU_NAME_BYTES];

	cpu_name(cpu);
	if (b->options.json) {
		json_t *all = grid_json(b, cpu);

		json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
		putchar('\n');
		json_decref(all);
	} else {
		grid_print(b, cpu);
	}
	return b->options.plot ? grid_plot(b, err) : 0;
}

int bench_tolerance(int argc, char **argv)
{
	struct tolerance_bench *b = calloc(1, sizeof(*b));
	char *kv = NULL, *kernels = NULL;
	struct error err = {""};

	if (!b)
		return EX_OSERR;
	b->options = (struct tolerance_options){.batch = "1,4,16,64,256",
		.gamma = "1,3,7,15",
		.context = "256,4096,16384",
		.kv = "auto",
		.kernels = "auto",
		.acceptance = "70",
		.rounds = 3,
		.slice_ms = 200,
		.seed = 1,
		.engine = {.format = "text",
			.no_prompt = true,
			.pack = true,
			.program = "outrider-bench",
			.instead_of_pack = "give less with --memory"}};
	int rc = parse(b, argc, argv, &err);
	if (rc == 0 && !b->options.help) {
		kv = strdup(b->options.kv);
		kernels = strdup(b->options.kernels);
		rc = kv && kernels ? parse_series(b, kv, kernels, &err)
				   : error_set(&err, ENOMEM, "no memory for the options");
	}
	bool usage = rc < 0;
	if (rc == 0 && !b->options.help)
		rc = measure(b, &err);
	if (rc == 0 && !b->options.help)
		rc = print(b, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench tolerance: %s\n", err.text);
	for (uint32_t i = 0; i < b->n_series; i++)
		free(b->series[i].samples);
	free(b);
	free(kv);
	free(kernels);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
