#include "bench/src/kernels.h"

#include "bench/src/gpu.h"
#include "bench/src/kernels_gpu.h"
#include "bench/src/machine.h"
#include "kernels/cpu/simd.h"
#include "kernels/kernels.h"
#include "shared/base/median.h"
#include "bench/src/options.h"
#include "shared/measure/peaks.h"
#include "client/model/engine.h"
#include "shared/base/clock.h"
#include "shared/base/cpu_name.h"
#include "shared/base/limits.h"
#include "shared/base/plural.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum {
	COLS = 2048,
	ROWS = 2048, /* rows of one matrix, as in experts and projections of the models in use */
	MEMORY = 256 << 20, /* bytes of weights in all */
	ITEM_ROWS = 64, /* rows of one item of the pool */
	COUNTS = 16,
	TYPES = 32,
	ROUNDS = PEAKS_ROUNDS,
};

struct options {
	const char *backend, *kernels, *type_names, *tokens, *layout, *format;
	uint32_t threads, rounds;
	uint32_t counts[COUNTS], n_counts;
	uint32_t types[TYPES], n_types;
	bool json, help;
	bool tiles; /* else LAYOUT_ROWS, the layout of the file */
};

/* One type and token count: what each round took, and the bytes and operations of one. */
struct row {
	const struct tensor_type_info *type;
	uint32_t n;
	double seconds[ROUNDS], bytes, ops;
};

struct bench {
	struct options options;
	const struct kernels *kernels;
	struct pool *pool;
	struct peaks_memory memory;
	struct peaks peaks[ROUNDS];
	struct row rows[TYPES * COUNTS];
	uint32_t n_rows;
	float *x; /* [most tokens][COLS] */
	struct q8_block *q8;
	struct activation *in;
	float *y, **out;
};

/* What one pool run multiplies. */
struct job {
	const struct bench *bench;
	struct matrix w; /* data: the first matrix */
	size_t matrix_bytes;
	uint32_t n;
};

static void multiply(void *arg, uint32_t item, uint32_t thread)
{
	struct job *job = arg;
	const struct bench *b = job->bench;
	uint32_t per_matrix = ROWS / ITEM_ROWS, first = item % per_matrix * ITEM_ROWS;
	struct matrix w = job->w;

	(void)thread;
	w.data = (const unsigned char *)job->w.data + item / per_matrix * job->matrix_bytes;
	b->kernels->matmul(&w, first, first + ITEM_ROWS, b->in, job->n, b->out);
}

static void run_row(struct bench *b, struct row *row, uint32_t round)
{
	size_t row_bytes = (size_t)COLS / row->type->block_weights * row->type->block_bytes;
	struct job job = {
		.bench = b,
		.w = {.type = row->type->type,
			.rows = ROWS,
			.cols = COLS,
			.row_bytes = row_bytes,
			.data = b->memory.data,
			.layout = b->options.tiles ? LAYOUT_TILES : LAYOUT_ROWS},
		.matrix_bytes = row_bytes * ROWS,
		.n = row->n,
	};
	uint32_t matrices = (uint32_t)(b->memory.bytes / job.matrix_bytes);
	/* many tokens do not need all the memory, because they compute */
	uint32_t most = 1 + 64 / row->n;
	uint64_t start;

	if (matrices > most * 8)
		matrices = most * 8;
	start = clock_ns();
	pool_run(b->pool, multiply, &job, matrices * (ROWS / ITEM_ROWS));
	row->seconds[round] = (double)(clock_ns() - start) / 1e9;
	row->bytes = (double)job.matrix_bytes * matrices;
	row->ops = 2.0 * ROWS * COLS * row->n * matrices;
}

static int start(struct bench *b, struct error *err)
{
	uint32_t most = 1;
	int rc;

	for (uint32_t i = 0; i < b->options.n_counts; i++)
		if (b->options.counts[i] > most)
			most = b->options.counts[i];
	b->kernels = kernels_select(b->options.kernels, err);
	if (!b->kernels)
		return -EINVAL;
	machine_begin(b->kernels, b->options.kernels, &b->options.threads);
	b->x = malloc((size_t)most * COLS * sizeof(*b->x));
	b->q8 = malloc((size_t)most * (COLS / Q8_BLOCK) * sizeof(*b->q8));
	b->y = malloc((size_t)most * ROWS * sizeof(*b->y));
	b->in = malloc(most * sizeof(*b->in));
	b->out = malloc(most * sizeof(*b->out));
	if (!b->x || !b->q8 || !b->y || !b->in || !b->out)
		return error_set(err, ENOMEM, "no memory for %u activation rows", most);
	for (size_t i = 0; i < (size_t)most * COLS; i++)
		b->x[i] = (float)(int32_t)(i * 2654435761u) * 0x1p-31f;
	for (uint32_t t = 0; t < most; t++) {
		b->in[t] = (struct activation){
			b->x + (size_t)t * COLS, b->q8 + (size_t)t * (COLS / Q8_BLOCK)};
		b->out[t] = b->y + (size_t)t * ROWS;
		b->kernels->quantise_q8(b->in[t].f32, COLS, (struct q8_block *)b->in[t].q8);
	}
	rc = peaks_memory_get(&b->memory, MEMORY, err);
	return rc ? rc : pool_create(b->options.threads, 1, 1000000, &b->pool, err);
}

static void stop(struct bench *b)
{
	pool_destroy(&b->pool);
	peaks_memory_put(&b->memory);
	free(b->x);
	free(b->q8);
	free(b->y);
	free(b->in);
	free(b->out);
}

static void measure(struct bench *b)
{
	for (uint32_t i = 0; i < b->options.n_types; i++)
		for (uint32_t j = 0; j < b->options.n_counts; j++)
			b->rows[b->n_rows++] = (struct row){
				.type = tensor_type_info(b->options.types[i]),
				.n = b->options.counts[j],
			};
	for (uint32_t round = 0; round < b->options.rounds; round++) {
		peaks_measure(&b->memory, b->pool, &b->peaks[round]);
		for (uint32_t i = 0; i < b->n_rows; i++)
			run_row(b, &b->rows[i], round);
	}
}

/* The figures of a row. floor_share: the time that its bytes or its operations need at the peak,
 * whichever is longer, divided by the measured time. */
struct figures {
	double gb_s, gop_s, read_share, op_share, floor_share;
};

static struct figures figures_of(const struct row *row, const struct peaks *peaks, uint32_t rounds)
{
	double copy[ROUNDS], seconds;
	struct figures f;

	memcpy(copy, row->seconds, rounds * sizeof(*copy));
	seconds = median(copy, rounds);
	f.gb_s = row->bytes / 1e9 / seconds;
	f.gop_s = row->ops / 1e9 / seconds;
	f.read_share = f.gb_s / peaks->read_gb_s;
	f.op_share = f.gop_s / peaks_gop_s(peaks, row->type);
	f.floor_share = f.read_share > f.op_share ? f.read_share : f.op_share;
	return f;
}

static void print_text(const struct bench *b, const char *cpu)
{
	struct peaks p = peaks_median(b->peaks, b->options.rounds);
	char threads[MACHINE_THREADS_BYTES];

	printf("%s, %s, %s kernels; median of %u round%s\n", cpu, machine_threads(b->pool, threads),
		b->kernels->name, b->options.rounds, plural(b->options.rounds));
	printf("peaks of this machine: read %.1f GB/s, int8 %.0f GOP/s, float32 %.0f GOP/s",
		p.read_gb_s, p.int8_gop_s, p.f32_gop_s);
	if (p.bf16_gop_s > 0)
		printf(", bfloat16 %.0f GOP/s (unused: BF16 is compared with float32)",
			p.bf16_gop_s);
	fputs("\n\n", stdout);
	printf("matrices %d x %d   tokens     GB/s  of read    GOP/s  of peak   of floor\n", ROWS,
		COLS);
	for (uint32_t i = 0; i < b->n_rows; i++) {
		const struct row *row = &b->rows[i];
		struct figures f = figures_of(row, &p, b->options.rounds);

		printf("%-20s %6u %8.1f %7.0f%% %8.0f %7.0f%% %9.0f%%\n", row->type->name, row->n,
			f.gb_s, 100 * f.read_share, f.gop_s, 100 * f.op_share, 100 * f.floor_share);
	}
}

static void print_json(const struct bench *b, const char *cpu)
{
	struct peaks p = peaks_median(b->peaks, b->options.rounds);
	json_t *rows = json_array();
	json_t *all = json_pack("{s:s, s:i, s:i, s:s, s:i, s:{s:f, s:f, s:f, s:f}}", "cpu", cpu,
		"threads", (int)b->options.threads, "active_threads", (int)pool_active(b->pool),
		"kernels", b->kernels->name, "rounds", (int)b->options.rounds, "peaks", "read_gb_s",
		p.read_gb_s, "int8_gop_s", p.int8_gop_s, "f32_gop_s", p.f32_gop_s, "bf16_gop_s",
		p.bf16_gop_s);

	for (uint32_t i = 0; i < b->n_rows; i++) {
		const struct row *row = &b->rows[i];
		struct figures f = figures_of(row, &p, b->options.rounds);

		json_array_append_new(
			rows, json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f}", "type",
				      row->type->name, "tokens", (int)row->n, "gb_s", f.gb_s,
				      "gop_s", f.gop_s, "read_share", f.read_share, "op_share",
				      f.op_share, "floor_share", f.floor_share));
	}
	json_object_set_new(all, "rows", rows);
	json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(all);
}

/* Lists the known types, separated by commas. */
static void list_types(char *out, size_t bytes)
{
	size_t used = 0;

	for (uint32_t id = 0; id < 256 && used < bytes; id++)
		if (tensor_type_info(id))
			used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "",
				tensor_type_info(id)->name);
}

/* NULL: all types. */
static int parse_types(const char *text, struct options *o, struct error *err)
{
	char copy[256], *rest = copy, *word = NULL;

	if (snprintf(copy, sizeof(copy), "%s", text ? text : "") >= (int)sizeof(copy))
		return error_set(err, EINVAL, "--types is too long");
	for (uint32_t id = 0; !text && id < 256 && o->n_types < TYPES; id++)
		if (tensor_type_info(id))
			o->types[o->n_types++] = id;
	while (text && (word = strsep(&rest, ",")) != NULL) {
		uint32_t id = 0;

		while (id < 256 && (!tensor_type_info(id) ||
					   strcasecmp(tensor_type_info(id)->name, word) != 0))
			id++;
		if (id == 256 || o->n_types == TYPES) {
			char names[256];

			list_types(names, sizeof(names));
			return error_set(err, EINVAL, "--types takes up to %d of %s, not \"%s\"",
				TYPES, names, word);
		}
		o->types[o->n_types++] = id;
	}
	return 0;
}

static int parse(struct options *o, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"types", ARG_STRING, &o->type_names, 0, 0, "Q4_0,Q8_0,...", "default: all"},
		{"tokens", ARG_STRING, &o->tokens, 0, 0, "N,...", "default 1,2,4,16,64"},
		{"layout", ARG_STRING, &o->layout, 0, 0, "tiles|rows",
			"layout of the weights: packed (default), or as in the file"},
		{"rounds", ARG_U32, &o->rounds, 1, ROUNDS, "N", "default 5; medians are printed"},
		{"threads", ARG_U32, &o->threads, 1, LIMIT_THREADS, "N", ENGINE_THREADS_HELP},
		{"kernels", ARG_STRING, &o->kernels, 0, 0, "NAME", "default: the best"},
		{"backend", ARG_STRING, &o->backend, 0, 0, "cpu|simt|cuda",
			"what computes, default cpu; simt: a GPU's kernels, emulated"},
		{"format", ARG_FORMAT, &o->format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &o->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);

	if (rc == 0 && o->help) {
		puts("usage: outrider-bench kernels [OPTIONS]\n\n"
		     "Multiplies matrices of every type, together larger than a cache, with\n"
		     "activations of n tokens. Prints bytes and operations per second, each with\n"
		     "the machine's own peak, measured in the same rounds.\n");
		args_help(args, stdout);
		return 0;
	}
	if (rc == 0)
		rc = parse_types(o->type_names, o, err);
	if (rc == 0)
		rc = option_numbers(
			"tokens", o->tokens, 1, LIMIT_BATCH, COUNTS, o->counts, &o->n_counts, err);
	if (rc == 0)
		rc = option_either("layout", o->layout, "tiles", "rows", &o->tiles, err);
	if (rc == 0)
		rc = engine_check_kernels(o->kernels, err);
	if (rc == 0)
		rc = gpu_check(o->backend, true, err);
	return rc ? rc : option_format(o->format, &o->json, err);
}

static int on_gpu(const struct options *o, struct error *err)
{
	const struct kernels_gpu_options options = {
		.backend = o->backend,
		.types = o->types,
		.n_types = o->n_types,
		.counts = o->counts,
		.n_counts = o->n_counts,
		.rounds = o->rounds,
		.tiles = o->tiles,
		.json = o->json,
	};

	return kernels_gpu(&options, err);
}

int bench_kernels(int argc, char **argv)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct error err = {""};
	char cpu[CPU_NAME_BYTES];

	if (!b)
		return EX_OSERR;
	b->options = (struct options){.backend = "cpu",
		.rounds = 5,
		.tokens = "1,2,4,16,64",
		.layout = "tiles",
		.format = "text"};
	int rc = parse(&b->options, argc, argv, &err);
	bool usage = rc < 0, wanted = rc == 0 && !b->options.help;
	if (wanted && strcmp(b->options.backend, "cpu") != 0) {
		rc = on_gpu(&b->options, &err);
		wanted = false;
	}
	if (wanted)
		rc = start(b, &err);
	if (wanted && rc == 0) {
		cpu_name(cpu);
		measure(b);
		if (b->options.json)
			print_json(b, cpu);
		else
			print_text(b, cpu);
	}
	if (rc < 0)
		fprintf(stderr, "outrider-bench kernels: %s\n", err.text);
	stop(b);
	free(b);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
