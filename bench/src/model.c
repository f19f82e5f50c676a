#include "bench/src/model.h"

#include "bench/src/histogram.h"
#include "bench/src/median.h"
#include "bench/src/peaks.h"
#include "client/model/engine.h"
#include "shared/base/clock.h"
#include "shared/model/gguf.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum {
	BATCHES = 32,
	ROUNDS = 99,
	READ_BYTES = 256 << 20,
	DECODE_LEAST = 4, /* tokens of one round of decoding */
};

struct options {
	struct engine_options engine;
	const char *batch;
	uint32_t depth, prefill, tokens, rounds;
	uint64_t seed;
	bool help, mapped;
};

/* A pass over n tokens, uncommitted, at the depth of the prompt. */
struct batch_row {
	uint32_t n;
	double seconds[ROUNDS], experts;
};

struct bench {
	struct options options;
	struct engine engine;
	struct peaks_memory memory;
	struct peaks peaks[ROUNDS];
	double prefill_seconds[ROUNDS], decode_seconds[ROUNDS]; /* per token */
	struct batch_row rows[BATCHES];
	uint32_t n_rows;
	char *prompt; /* ids as text */
	uint64_t random;
};

static uint32_t random_token(struct bench *b)
{
	b->random = b->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((b->random >> 33) % b->engine.model->config.n_vocab);
}

/* Weights that a pass over one token reads whatever its experts: all but the experts and, where the output is a
 * matrix of its own, the embedding. */
static double dense_bytes(const struct model *model)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < gguf_n_tensors(model->gguf); i++)
		bytes += gguf_tensor_at(model->gguf, i)->bytes;
	bytes -= model->expert_bytes_total;
	if (model->output.data != model->embedding.data)
		bytes -= (uint64_t)model->embedding.row_bytes * model->embedding.rows;
	return (double)bytes;
}

static double bytes_of(const struct bench *b, double experts)
{
	const struct engine *e = &b->engine;
	uint64_t all = 0;

	for (uint32_t i = 0; i < e->model->config.n_layers; i++)
		all += e->model->layers[i].moe;
	double expert = all ? (double)e->model->expert_bytes_total / (double)all /
					(double)e->model->config.n_experts
			    : 0;
	double kv = (double)kv_bytes(&e->kv.layout) /
		    ((double)e->kv.layout.n_pages * KV_PAGE_CELLS) * (double)e->seq.n;
	return dense_bytes(e->model) + experts * expert + kv;
}

/* One pass of n random tokens after the committed ones, whose cells go back. */
static int run_batch(struct bench *b, struct batch_row *row, uint32_t round, struct error *err)
{
	struct engine *e = &b->engine;
	int rc = kv_take(&e->kv, &e->seq, row->n, e->cells);
	uint64_t start;

	if (rc < 0)
		return error_set(err, -rc, "the KV cache is full with a batch of %u", row->n);
	for (uint32_t i = 0; i < row->n; i++)
		e->batch[i] = (struct batch_token){
			.seq = &e->seq,
			.token = (int32_t)random_token(b),
			.position = e->seq.n + i,
			.parent = (int32_t)i - 1,
			.logits = true,
			.cell = e->cells[i],
		};
	start = clock_ns();
	rc = forward_run(e->forward, e->batch, row->n);
	row->seconds[round] = (double)(clock_ns() - start) / 1e9;
	row->experts += (double)forward_stats(e->forward)->unique_experts;
	kv_commit(&e->kv, &e->seq, NULL, 0, e->cells, row->n);
	return rc < 0 ? error_set(err, -rc, "the forward pass failed") : 0;
}

static int run_prefill(struct bench *b, uint32_t round, struct error *err)
{
	uint64_t start = clock_ns();
	int rc = engine_prefill(&b->engine, false, NULL, NULL, err);

	b->prefill_seconds[round] = (double)(clock_ns() - start) / 1e9 / (double)b->engine.n_prompt;
	return rc;
}

static int run_decode(struct bench *b, uint32_t round, struct error *err)
{
	struct batch_row one = {.n = 1};
	double sum = 0;

	for (uint32_t i = 0; i < b->options.tokens; i++) {
		int rc = run_batch(b, &one, 0, err);

		if (rc < 0)
			return rc;
		sum += one.seconds[0];
	}
	b->decode_seconds[round] = sum / b->options.tokens;
	return 0;
}

static int run_round(struct bench *b, uint32_t round, struct error *err)
{
	int rc;

	peaks_measure(&b->memory, b->engine.pool, &b->peaks[round]);
	kv_truncate(&b->engine.kv, &b->engine.seq, 0);
	rc = run_prefill(b, round, err);
	if (rc == 0)
		rc = run_decode(b, round, err);
	for (uint32_t i = 0; rc == 0 && i < b->n_rows; i++)
		rc = run_batch(b, &b->rows[i], round, err);
	return rc;
}

static int make_prompt(struct bench *b, struct error *err)
{
	size_t n = b->options.depth > b->options.prefill ? b->options.depth : b->options.prefill;
	char *at = b->prompt = malloc(n * 11 + 1);

	if (!at)
		return error_set(err, ENOMEM, "no memory for a prompt of %zu tokens", n);
	/* Ids that every vocabulary has; which ones decides only which experts are read. */
	b->random = b->options.seed;
	for (size_t i = 0; i < n; i++) {
		b->random = b->random * 6364136223846793005u + 1442695040888963407u;
		at += sprintf(at, "%s%u", i ? "," : "", (uint32_t)(b->random >> 33) % 256);
	}
	b->options.engine.tokens = b->prompt;
	return 0;
}

static int start(struct bench *b, struct error *err)
{
	uint32_t most = 1;
	int rc = make_prompt(b, err);

	for (uint32_t i = 0; i < b->n_rows; i++)
		most = b->rows[i].n > most ? b->rows[i].n : most;
	b->options.engine.quiet = true;
	b->options.engine.pack = !b->options.mapped;
	b->options.engine.prefill_chunk = b->options.prefill > most ? b->options.prefill : most;
	b->engine.options = b->options.engine;
	if (rc == 0)
		rc = engine_check_options(&b->options.engine, err);
	if (rc == 0)
		rc = engine_open(&b->engine, false, err);
	if (rc == 0 && b->engine.n_prompt < b->options.engine.prefill_chunk)
		rc = error_set(err, EINVAL, "batches of more tokens (%u) than --depth or --prefill",
			b->options.engine.prefill_chunk);
	if (rc == 0)
		rc = engine_start(&b->engine, most + KV_PAGE_CELLS, true, err);
	return rc ? rc : peaks_memory_get(&b->memory, READ_BYTES, err);
}

struct figures {
	double tokens_per_s, floor_share, experts, seconds;
};

static struct figures figures_of(
	const struct bench *b, const double *seconds, double tokens, double experts)
{
	uint32_t rounds = b->options.rounds;
	double copy[ROUNDS], read[ROUNDS];
	struct figures f = {.experts = experts};

	memcpy(copy, seconds, rounds * sizeof(*copy));
	f.seconds = median(copy, rounds);
	for (uint32_t i = 0; i < rounds; i++)
		read[i] = b->peaks[i].read_gb_s;
	f.tokens_per_s = tokens / f.seconds;
	f.floor_share = bytes_of(b, experts) / 1e9 / median(read, rounds) / f.seconds;
	return f;
}

static double experts_of(const struct bench *b, const struct batch_row *row)
{
	return row->experts / b->options.rounds;
}

/* Of one token: what the router takes in every layer with experts. */
static double experts_of_one(const struct bench *b)
{
	const struct model *model = b->engine.model;
	double n = 0;

	for (uint32_t i = 0; i < model->config.n_layers; i++)
		n += model->layers[i].moe ? model->config.n_experts_used : 0;
	return n;
}

static json_t *report(const struct bench *b, const char *cpu)
{
	const struct engine *e = &b->engine;
	double read[ROUNDS];
	json_t *batch = json_array();
	struct figures decode = figures_of(b, b->decode_seconds, 1, experts_of_one(b));
	struct figures prefill = figures_of(b, b->prefill_seconds, 1, 0);

	for (uint32_t i = 0; i < b->options.rounds; i++)
		read[i] = b->peaks[i].read_gb_s;
	for (uint32_t i = 0; i < b->n_rows; i++) {
		const struct batch_row *row = &b->rows[i];
		struct figures f = figures_of(b, row->seconds, row->n, experts_of(b, row));

		json_array_append_new(batch,
			json_pack("{s:i, s:f, s:f, s:f, s:f}", "n", (int)row->n, "tokens_per_s",
				f.tokens_per_s, "distinct_experts", f.experts, "floor_share",
				f.floor_share, "cost", f.seconds / decode.seconds));
	}
	return json_pack("{s:s, s:s, s:i, s:s, s:i, s:i, s:f, s:{s:i, s:f}, s:{s:f, s:f}, s:o}",
		"cpu", cpu, "model", b->options.engine.model, "threads", (int)pool_threads(e->pool),
		"kernels", e->kernels->name, "depth", (int)e->seq.n, "rounds",
		(int)b->options.rounds, "read_gb_s", median(read, b->options.rounds), "prefill",
		"n", (int)e->n_prompt, "tokens_per_s", prefill.tokens_per_s, "decode",
		"tokens_per_s", decode.tokens_per_s, "bandwidth_share", decode.floor_share, "batch",
		batch);
}

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

static void print_text(const json_t *all)
{
	const json_t *row;
	size_t i;

	printf("%s, %s, %d threads, %s kernels; median of %d rounds\n",
		json_string_value(json_object_get(all, "model")),
		json_string_value(json_object_get(all, "cpu")), (int)number(all, "threads"),
		json_string_value(json_object_get(all, "kernels")), (int)number(all, "rounds"));
	printf("read bandwidth %.1f GB/s\n\n", number(all, "read_gb_s"));
	printf("prefill of %d   %9.1f tokens/s\n",
		(int)number(json_object_get(all, "prefill"), "n"),
		number(json_object_get(all, "prefill"), "tokens_per_s"));
	printf("decode         %9.1f tokens/s, %.0f%% of the time its bytes need at that "
	       "bandwidth\n\n",
		number(json_object_get(all, "decode"), "tokens_per_s"),
		100 * number(json_object_get(all, "decode"), "bandwidth_share"));
	printf("    n  tokens/s  T(n)/T(1)  experts  of floor\n");
	json_array_foreach(json_object_get(all, "batch"), i, row)
		printf("%5d %9.1f %10.2f %8.0f %8.0f%%\n", (int)number(row, "n"),
			number(row, "tokens_per_s"), number(row, "cost"),
			number(row, "distinct_experts"), 100 * number(row, "floor_share"));
}

static int parse_batch(struct bench *b, struct error *err)
{
	char copy[256], *rest = copy, *word;

	if (snprintf(copy, sizeof(copy), "%s", b->options.batch) >= (int)sizeof(copy))
		return error_set(err, EINVAL, "--batch is too long");
	while ((word = strsep(&rest, ",")) != NULL) {
		char *end;
		unsigned long n = strtoul(word, &end, 10);

		if (end == word || *end || n < 1 || n > 1024 || b->n_rows == BATCHES)
			return error_set(err, EINVAL,
				"--batch takes up to %d numbers of 1 to 1024, not \"%s\"", BATCHES,
				b->options.batch);
		b->rows[b->n_rows++].n = (uint32_t)n;
	}
	return 0;
}

static int measure(struct bench *b, struct error *err)
{
	int rc = start(b, err);

	for (uint32_t round = 0; rc == 0 && round < b->options.rounds; round++) {
		if (isatty(STDERR_FILENO))
			fprintf(stderr, "\rround %u of %u", round + 1, b->options.rounds);
		rc = run_round(b, round, err);
	}
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	return rc;
}

int bench_model(int argc, char **argv)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct error err = {""};
	char cpu[128];

	if (!b)
		return EX_OSERR;
	struct options *o = &b->options;
	*o = (struct options){.batch = "1,2,3,4,5,6,8,10,12,16,24,32,48,64",
		.depth = 64,
		.prefill = 512,
		.tokens = 16,
		.rounds = 5,
		.seed = 1,
		.engine.format = "text"};
	const struct arg args[] = {
		{"model", ARG_STRING, &o->engine.model, 0, 0, "FILE", "the GGUF model (needed)"},
		{"batch", ARG_STRING, &o->batch, 0, 0, "N,N,...", "tokens of a pass"},
		{"depth", ARG_U32, &o->depth, 1, LIMIT_CONTEXT, "N", "tokens before them"},
		{"prefill", ARG_U32, &o->prefill, 1, 1024, "N", "tokens of a pass of the prompt"},
		{"tokens", ARG_U32, &o->tokens, DECODE_LEAST, 4096, "N",
			"passes of one token in a round"},
		{"rounds", ARG_U32, &o->rounds, 1, ROUNDS, "N", "default 5; medians are printed"},
		{"threads", ARG_U32, &o->engine.threads, 1, LIMIT_THREADS, "N",
			"default: the CPUs this process may use"},
		{"kernels", ARG_STRING, &o->engine.kernels, 0, 0, "NAME", "default: the best"},
		{"mapped", ARG_FLAG, &o->mapped, 0, 0, NULL,
			"compute from the file's mapping, not from packed weights"},
		{"kv", ARG_STRING, &o->engine.kv, 0, 0, "TYPE", "as outrider-model has it"},
		{"format", ARG_STRING, &o->engine.format, 0, 0, "text|json", "default text"},
		{"help", ARG_FLAG, &o->help, 0, 0, NULL, "this"},
		{0},
	};
	int rc = args_parse(argc, argv, args, &err);

	if (rc == 0 && o->help) {
		puts("usage: outrider-bench model --model FILE [OPTIONS]\n");
		args_help(args, stdout);
		free(b);
		return EX_OK;
	}
	if (rc == 0 && !o->engine.model)
		rc = error_set(&err, EINVAL, "--model is needed");
	if (rc == 0)
		rc = parse_batch(b, &err);
	bool usage = rc < 0;
	if (rc == 0)
		rc = measure(b, &err);
	if (rc == 0) {
		histogram_cpu_model(cpu, sizeof(cpu));
		json_t *all = report(b, cpu);

		if (strcmp(o->engine.format, "json") == 0) {
			json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
			putchar('\n');
		} else {
			print_text(all);
		}
		json_decref(all);
	} else {
		fprintf(stderr, "outrider-bench model: %s\n", err.text);
	}
	engine_close(&b->engine);
	peaks_memory_put(&b->memory);
	free(b->prompt);
	free(b);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
