#include "bench/src/model.h"

#include "bench/src/options.h"
#include "shared/base/cpu_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static int run_round(struct model_bench *b, uint32_t round, struct error *err)
{
	struct passes *p = &b->passes;
	struct peaks *peaks = &b->peaks[round];
	int rc;

	passes_peaks(p, peaks);
	rc = passes_depth(p, 0, err);
	if (rc == 0)
		rc = passes_run(p, &b->prefill, round, 1, peaks, err);
	for (uint32_t i = 0; rc == 0 && i < b->n_depths; i++) {
		rc = passes_depth(p, b->decode[i].depth, err);
		if (rc == 0)
			rc = passes_run(p, &b->decode[i], round, b->options.tokens, peaks, err);
		for (uint32_t j = 0; rc == 0 && i == 0 && j < b->n_batch; j++)
			rc = passes_run(p, &b->batch[j], round, b->options.passes, peaks, err);
	}
	return rc;
}

static int measure(struct model_bench *b, struct error *err)
{
	uint32_t most = b->prefill.n;

	for (uint32_t i = 0; i < b->n_batch; i++)
		most = b->batch[i].n > most ? b->batch[i].n : most;
	uint32_t in_a_row =
		b->options.tokens > b->options.passes ? b->options.tokens : b->options.passes;
	int rc = passes_open(&b->passes, &b->options.engine, most, b->decode[b->n_depths - 1].depth,
		in_a_row, b->options.seed, err);
	for (uint32_t round = 0; rc == 0 && round < b->options.rounds; round++) {
		if (isatty(STDERR_FILENO))
			fprintf(stderr, "\rround %u of %u", round + 1, b->options.rounds);
		rc = run_round(b, round, err);
	}
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	return rc;
}

static int parse_lists(struct model_bench *b, struct error *err)
{
	uint32_t batch[MODEL_BATCHES], depth[MODEL_DEPTHS];
	int rc = option_numbers(
		"batch", b->options.batch, 1, 1024, MODEL_BATCHES, batch, &b->n_batch, err);

	if (rc == 0)
		rc = option_numbers("depth", b->options.depth, 0, LIMIT_CONTEXT, MODEL_DEPTHS,
			depth, &b->n_depths, err);
	if (rc != 0)
		return rc;
	b->prefill.n = b->options.prefill;
	for (uint32_t i = 0; i < b->n_batch; i++) {
		b->batch[i].n = batch[i];
		b->batch[i].all_logits = true;
	}
	for (uint32_t i = 0; i < b->n_depths; i++) {
		if (i > 0 && depth[i] <= depth[i - 1])
			return error_set(
				err, EINVAL, "--depth: \"%s\" does not ascend", b->options.depth);
		b->decode[i].depth = depth[i];
		b->decode[i].n = 1;
	}
	return 0;
}

static int parse(struct model_bench *b, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"model", ARG_STRING, &b->options.engine.model, 0, 0, "FILE",
			"the GGUF model (needed)"},
		{"batch", ARG_STRING, &b->options.batch, 0, 0, "N,N,...", "tokens of a pass"},
		{"depth", ARG_STRING, &b->options.depth, 0, 0, "N,N,...",
			"tokens before them, default 64; with more than one, decoding is measured "
			"at each, batches at the first"},
		{"prefill", ARG_U32, &b->options.prefill, 1, 1024, "N",
			"tokens of a prompt's pass, default 512"},
		{"tokens", ARG_U32, &b->options.tokens, 1, 4096, "N",
			"passes of one token in a round, default 16"},
		{"passes", ARG_U32, &b->options.passes, 1, 4096, "N",
			"passes of every batch in a round, default 3"},
		{"rounds", ARG_U32, &b->options.rounds, 1, MODEL_ROUNDS, "N",
			"default 5; medians are printed"},
		BENCH_CPU_ARGS(&b->options.engine){"backend", ARG_STRING,
			&b->options.engine.backend, 0, 0, "cpu|simt|cuda",
			"what computes, default cpu; simt: a GPU's kernels, emulated"},
		{"mapped", ARG_FLAG, &b->options.mapped, 0, 0, NULL,
			"compute from the file's mapping instead of packed weights"},
		BENCH_CACHE_ARGS(&b->options.engine){"format", ARG_FORMAT,
			&b->options.engine.format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &b->options.help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);

	if (rc == 0 && b->options.help) {
		puts("usage: outrider-bench model --model FILE [OPTIONS]\n");
		args_help(args, stdout);
		return 0;
	}
	if (rc == 0)
		rc = engine_check_options(&b->options.engine, err);
	b->options.engine.pack = !b->options.mapped;
	b->options.json = strcmp(b->options.engine.format, "json") == 0;
	return rc ? rc : parse_lists(b, err);
}

static void print(const struct model_bench *b)
{
	char cpu[CPU_NAME_BYTES];

	cpu_name(cpu);
	json_t *report = model_report(b, cpu);
	if (b->options.json) {
		json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
		putchar('\n');
	} else {
		model_report_text(b, report);
	}
	json_decref(report);
}

int bench_model(int argc, char **argv)
{
	struct model_bench *b = calloc(1, sizeof(*b));
	struct error err = {""};

	if (!b)
		return EX_OSERR;
	b->options.batch = "1,2,3,4,5,6,8,10,12,16,24,32,48,64";
	b->options.depth = "64";
	b->options.prefill = 512;
	b->options.tokens = 16;
	b->options.passes = 3;
	b->options.rounds = 5;
	b->options.seed = 1;
	b->options.engine = (struct engine_options){.format = "text",
		.no_prompt = true,
		.program = "outrider-bench",
		.instead_of_pack = "compute from the file with --mapped"};
	int rc = parse(b, argc, argv, &err);
	bool usage = rc < 0;
	if (rc == 0 && !b->options.help)
		rc = measure(b, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench model: %s\n", err.text);
	else if (!b->options.help)
		print(b);
	passes_close(&b->passes);
	free(b);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
