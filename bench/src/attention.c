#include "bench/src/attention.h"

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
#include "kernels/cpu/steps/attention_split.h"
#include "shared/model/kv/kv.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum {
	MEMORY = 256 << 20, /* bytes of keys and values, more than fit in a cache */
	LIST = 16, /* items of an option's list */
	ROWS = 512,
	ROUNDS = 99,
};

/* Operations of one measurement: enough for steady figures, without taking minutes. */
#define OPS_MOST 4e10

static const struct shape {
	const char *name;
	uint32_t n_kv_heads, n_heads, k_dim, v_dim; /* n_heads: per KV head */
	bool sinks, v_in_k;
} shapes[] = {
	{"gqa", 4, 8, 128, 128, false, false}, /* Qwen3-30B-A3B */
	{"gqa-64", 8, 8, 64, 64, true, false}, /* gpt-oss */
	{"mha", 16, 1, 128, 128, false, false}, /* OLMoE */
	{"mla-16", 1, 16, 576, 512, false, true}, /* DeepSeek-V2-Lite */
	{"mla-128", 1, 128, 576, 512, false, true}, /* DeepSeek-V3 */
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

struct options {
	const char *kernels, *format, *shapes, *types, *tokens, *depths;
	uint32_t threads, rounds, window;
	bool scattered, json, help;
};

struct row {
	const struct shape *shape;
	enum kv_type type;
	uint32_t depth, n, layers;
	double seconds[ROUNDS], cells, bytes, ops; /* of all layers */
};

struct bench {
	struct options options;
	const struct kernels *kernels;
	struct pool *pool;
	struct peaks_memory memory;
	struct peaks peaks[ROUNDS];
	struct row rows[ROWS];
	uint32_t n_rows;
	const struct shape *shapes[LIST];
	enum kv_type types[LIST];
	uint32_t tokens[LIST], depths[LIST], n_shapes, n_types, n_tokens, n_depths;
	uint32_t *cells; /* by position */
	float *q, *out, *sinks;
	struct attention_token *batch;
};

/* Calls item(b, word) for each word of a list; -EINVAL from it, or for too many. */
static int each_word(struct bench *b, const char *text, int (*item)(struct bench *b, char *word))
{
	char copy[256], *rest = copy, *word;
	int rc = 0;

	if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy))
		return -EINVAL;
	while (rc == 0 && (word = strsep(&rest, ",")) != NULL)
		rc = item(b, word);
	return rc;
}

static int add_shape(struct bench *b, char *word)
{
	for (int i = 0; i < N_SHAPES && b->n_shapes < LIST; i++)
		if (strcmp(word, shapes[i].name) == 0) {
			b->shapes[b->n_shapes++] = &shapes[i];
			return 0;
		}
	return -EINVAL;
}

static int add_type(struct bench *b, char *word)
{
	return b->n_types < LIST ? kv_type_named(word, &b->types[b->n_types++]) : -EINVAL;
}

static int parse_lists(struct bench *b, struct error *err)
{
	const struct options *o = &b->options;

	if (each_word(b, o->shapes, add_shape) < 0)
		return error_set(err, EINVAL,
			"--shapes takes one or more of gqa, gqa-64, mha, mla-16, mla-128, not "
			"\"%s\"",
			o->shapes);
	if (each_word(b, o->types, add_type) < 0)
		return error_set(err, EINVAL,
			"--types takes one or more of f32, f16, q16_0, q8_0, not \"%s\"", o->types);
	int rc = option_numbers(
		"tokens", o->tokens, 1, LIMIT_BATCH, LIST, b->tokens, &b->n_tokens, err);
	if (rc == 0)
		rc = option_numbers(
			"depths", o->depths, 1, 1 << 17, LIST, b->depths, &b->n_depths, err);
	if (rc < 0)
		return rc;
	if (b->n_shapes * b->n_types * b->n_tokens * b->n_depths > ROWS)
		return error_set(err, EINVAL, "more than %d rows to measure", ROWS);
	return 0;
}

/* Bytes of a layer of `cells` cells; its values begin at v_at; 0 when they are part of the keys. */
static size_t layer_bytes(const struct shape *s, enum kv_type type, size_t cells, size_t *v_at)
{
	size_t k = kv_vector_bytes(type, s->k_dim) * cells * s->n_kv_heads;
	size_t v = kv_vector_bytes(type, s->v_dim) * cells * s->n_kv_heads;

	*v_at = s->v_in_k ? 0 : k;
	return s->v_in_k ? k : k + v;
}

/* The number of cells in whole pages, as in a KV cache. */
static uint32_t positions(const struct row *row)
{
	return (row->depth + row->n + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS * KV_PAGE_CELLS;
}

static void plan_row(struct bench *b, struct row *row)
{
	const struct shape *s = row->shape;
	size_t v_at, bytes = layer_bytes(s, row->type, positions(row), &v_at), layers;
	uint32_t window = b->options.window;
	double seen = window && window < row->depth ? window : row->depth;
	double ops = 2.0 * seen * row->n * s->n_kv_heads * s->n_heads * (s->k_dim + s->v_dim);

	layers = b->memory.bytes / bytes;
	if ((double)layers * ops > OPS_MOST)
		layers = (size_t)(OPS_MOST / ops);
	row->layers = layers ? (uint32_t)layers : 1;
	row->ops = ops * row->layers;
	row->cells = seen * row->layers;
	row->bytes = row->cells / positions(row) * (double)bytes;
}

static int start(struct bench *b, struct error *err)
{
	uint32_t most = 1, cells = 0;
	size_t v_at, bytes = MEMORY;

	b->kernels = kernels_select(b->options.kernels, err);
	if (!b->kernels)
		return -EINVAL;
	machine_begin(b->kernels, b->options.kernels, &b->options.threads);
	for (uint32_t i = 0; i < b->n_tokens; i++)
		most = b->tokens[i] > most ? b->tokens[i] : most;
	for (uint32_t i = 0; i < b->n_depths; i++)
		cells = b->depths[i] + most > cells ? b->depths[i] + most : cells;
	cells = (cells + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS * KV_PAGE_CELLS;
	for (uint32_t i = 0; i < b->n_shapes; i++) {
		size_t layer = layer_bytes(b->shapes[i], KV_F32, cells, &v_at);

		bytes = layer > bytes ? layer : bytes;
	}
	b->cells = malloc(cells * sizeof(*b->cells));
	b->q = malloc((size_t)most * 128 * 576 * sizeof(*b->q));
	b->out = malloc((size_t)most * 128 * 512 * sizeof(*b->out));
	b->sinks = calloc(128, sizeof(*b->sinks));
	b->batch = malloc(most * sizeof(*b->batch));
	if (!b->cells || !b->q || !b->out || !b->sinks || !b->batch)
		return error_set(err, ENOMEM, "no memory for %u tokens", most);
	for (size_t i = 0; i < (size_t)most * 128 * 576; i++)
		b->q[i] = (float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-31f;
	int rc = peaks_memory_get(&b->memory, bytes, err);
	return rc ? rc : pool_create(b->options.threads, 1, 1000000, &b->pool, err);
}

static void stop(struct bench *b)
{
	pool_destroy(&b->pool);
	peaks_memory_put(&b->memory);
	free(b->cells);
	free(b->q);
	free(b->out);
	free(b->sinks);
	free(b->batch);
}

/* Positions are in whole pages: one page after the other, as for a single sequence, or scattered,
 * as in a cache of many sequences. */
static void place_cells(struct bench *b, uint32_t n)
{
	/* The even pages, then the odd ones, so that no page is next to the one before it. */
	uint32_t pages = b->options.scattered ? n / KV_PAGE_CELLS : 0, even = (pages + 1) / 2;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t page = i / KV_PAGE_CELLS;

		if (page < pages)
			page = page < even ? 2 * page : 2 * (page - even) + 1;
		b->cells[i] = page * KV_PAGE_CELLS + i % KV_PAGE_CELLS;
	}
}

static int run_row(struct bench *b, struct row *row, uint32_t round, struct error *err)
{
	const struct shape *s = row->shape;
	size_t v_at, bytes = layer_bytes(s, row->type, positions(row), &v_at);
	size_t k_cell = kv_vector_bytes(row->type, s->k_dim);
	size_t v_cell = v_at ? kv_vector_bytes(row->type, s->v_dim) : k_cell;
	uint32_t heads = s->n_kv_heads * s->n_heads;
	struct attention_memory memory;
	struct attention_step step = {
		.kernels = b->kernels,
		.pool = b->pool,
		.tokens = b->batch,
		.n_tokens = row->n,
		.kv_type = row->type,
		.k_head_bytes = k_cell * positions(row),
		.v_head_bytes = v_cell * positions(row),
		.k_cell_bytes = k_cell,
		.v_cell_bytes = v_cell,
		.k_turned = !s->v_in_k,
		.v_paired = !s->v_in_k && kv_in_blocks(row->type),
		.k_dim = s->k_dim,
		.v_dim = s->v_dim,
		.n_kv_heads = s->n_kv_heads,
		.n_heads = s->n_heads,
		.q_stride = s->k_dim,
		.out_stride = s->v_dim,
		.scale = 0.01f,
		.sinks = s->sinks ? b->sinks : NULL,
	};
	const struct attention_limits limits = {b->kernels, b->options.threads, row->n,
		s->n_kv_heads, s->n_heads, s->k_dim, s->v_dim};
	int rc = attention_memory_get(&memory, &limits, err);

	if (rc < 0)
		return rc;
	place_cells(b, positions(row));
	for (uint32_t t = 0; t < row->n; t++) {
		uint32_t last = row->depth + t + 1, window = b->options.window;

		b->batch[t] = (struct attention_token){b->q + (size_t)t * heads * s->k_dim,
			b->out + (size_t)t * heads * s->v_dim,
			window && window < last ? last - window : 0, last, b->cells, last};
	}
	uint64_t begin = clock_ns();
	for (uint32_t i = 0; i < row->layers; i++) {
		step.k = b->memory.data + i * bytes;
		step.v = step.k + v_at;
		attention_run(&step, &memory);
	}
	row->seconds[round] = (double)(clock_ns() - begin) / 1e9;
	attention_memory_put(&memory);
	return 0;
}

static int measure(struct bench *b, struct error *err)
{
	int rc = start(b, err);

	for (uint32_t s = 0; rc == 0 && s < b->n_shapes; s++)
		for (uint32_t i = 0; i < b->n_types; i++)
			for (uint32_t j = 0; j < b->n_depths; j++)
				for (uint32_t k = 0; k < b->n_tokens; k++) {
					struct row *row = &b->rows[b->n_rows++];

					*row = (struct row){.shape = b->shapes[s],
						.type = b->types[i],
						.depth = b->depths[j],
						.n = b->tokens[k]};
					plan_row(b, row);
				}
	for (uint32_t round = 0; rc == 0 && round < b->options.rounds; round++) {
		peaks_measure(&b->memory, b->pool, &b->peaks[round]);
		for (uint32_t i = 0; rc == 0 && i < b->n_rows; i++)
			rc = run_row(b, &b->rows[i], round, err);
	}
	return rc;
}

/* floor_share: the time that the bytes or the operations need at the peak, whichever is longer,
 * divided by the measured time. */
static json_t *figures_of(const struct row *row, const struct peaks *peaks, uint32_t rounds)
{
	double copy[ROUNDS], seconds, gb_s, gop_s, read, op;

	memcpy(copy, row->seconds, rounds * sizeof(*copy));
	seconds = median(copy, rounds);
	gb_s = row->bytes / 1e9 / seconds;
	gop_s = row->ops / 1e9 / seconds;
	read = gb_s / peaks->read_gb_s;
	op = gop_s / peaks_attention_gop_s(peaks, row->type, row->shape->k_dim, row->shape->v_dim);
	return json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "shape",
		row->shape->name, "type", kv_type_name(row->type), "depth", (int)row->depth,
		"tokens", (int)row->n, "cells_per_s", row->cells / seconds, "gb_s", gb_s,
		"read_share", read, "gop_s", gop_s, "op_share", op, "floor_share",
		read > op ? read : op);
}

static json_t *report(const struct bench *b)
{
	struct peaks p = peaks_median(b->peaks, b->options.rounds);
	json_t *rows = json_array();
	char cpu[CPU_NAME_BYTES];

	cpu_name(cpu);
	for (uint32_t i = 0; i < b->n_rows; i++)
		json_array_append_new(rows, figures_of(&b->rows[i], &p, b->options.rounds));
	return json_pack("{s:s, s:i, s:i, s:s, s:i, s:{s:f, s:f, s:f, s:f}, s:o}", "cpu", cpu,
		"threads", (int)b->options.threads, "active_threads", (int)pool_active(b->pool),
		"kernels", b->kernels->name, "rounds", (int)b->options.rounds, "peaks", "read_gb_s",
		p.read_gb_s, "int8_gop_s", p.int8_gop_s, "int16_gop_s", p.int16_gop_s, "f32_gop_s",
		p.f32_gop_s, "rows", rows);
}

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

static const char *string(const json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

static void print_text(const json_t *all, const struct pool *pool)
{
	const json_t *peaks = json_object_get(all, "peaks"), *row;
	size_t i;

	char threads[MACHINE_THREADS_BYTES];
	int rounds = (int)number(all, "rounds");

	printf("%s, %s, %s kernels; median of %d round%s\n", string(all, "cpu"),
		machine_threads(pool, threads), string(all, "kernels"), rounds,
		plural((uint64_t)rounds));
	printf("peaks of this machine: read %.1f GB/s, int8 %.0f GOP/s, int16 %.0f GOP/s, float32 "
	       "%.0f GOP/s\n"
	       "of peak: the share of int16's peak with q16_0, of int8's for scores and int16's "
	       "for values with q8_0, else of float32's\n"
	       "\n",
		number(peaks, "read_gb_s"), number(peaks, "int8_gop_s"),
		number(peaks, "int16_gop_s"), number(peaks, "f32_gop_s"));
	puts("shape    type    depth  tokens  Mcells/s    GB/s  of read   GOP/s  of peak  of "
	     "floor");
	json_array_foreach(json_object_get(all, "rows"), i, row)
		printf("%-8s %-5s %7d %7d %9.2f %7.1f %7.0f%% %7.0f %7.0f%% %8.0f%%\n",
			string(row, "shape"), string(row, "type"), (int)number(row, "depth"),
			(int)number(row, "tokens"), number(row, "cells_per_s") / 1e6,
			number(row, "gb_s"), 100 * number(row, "read_share"), number(row, "gop_s"),
			100 * number(row, "op_share"), 100 * number(row, "floor_share"));
}

static void print(const struct bench *b)
{
	json_t *all = report(b);

	if (b->options.json) {
		json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
		putchar('\n');
	} else {
		print_text(all, b->pool);
	}
	json_decref(all);
}

int bench_attention(int argc, char **argv)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct error err = {""};

	if (!b)
		return EX_OSERR;
	struct options *o = &b->options;
	*o = (struct options){.shapes = "gqa,gqa-64,mha,mla-16",
		.types = "q16_0,f16,q8_0,f32",
		.tokens = "1,2,4,8,16",
		.depths = "512,8192,32768",
		.format = "text",
		.rounds = 3};
	const struct arg args[] = {
		{"shapes", ARG_STRING, &o->shapes, 0, 0, "NAME,...",
			"any of gqa, gqa-64, mha, mla-16, mla-128"},
		{"types", ARG_STRING, &o->types, 0, 0, "TYPE,...", "any of f32, f16, q16_0, q8_0"},
		{"tokens", ARG_STRING, &o->tokens, 0, 0, "N,...", "tokens of a pass"},
		{"depths", ARG_STRING, &o->depths, 0, 0, "N,...", "tokens before them"},
		{"window", ARG_U32, &o->window, 0, LIMIT_CONTEXT, "N",
			"the number of tokens before it that a token sees; default: all"},
		{"scattered", ARG_FLAG, &o->scattered, 0, 0, NULL,
			"pages of a sequence are not adjacent; default: they are"},
		{"rounds", ARG_U32, &o->rounds, 1, ROUNDS, "N", "default 3; medians are printed"},
		{"threads", ARG_U32, &o->threads, 1, LIMIT_THREADS, "N", ENGINE_THREADS_HELP},
		{"kernels", ARG_STRING, &o->kernels, 0, 0, "NAME", "default: the best"},
		{"format", ARG_FORMAT, &o->format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &o->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, &err);

	if (rc == 0 && o->help) {
		puts("usage: outrider-bench attention [OPTIONS]\n");
		args_help(args, stdout);
		free(b);
		return EX_OK;
	}
	if (rc == 0)
		rc = option_format(o->format, &o->json, &err);
	if (rc == 0)
		rc = parse_lists(b, &err);
	if (rc == 0)
		rc = engine_check_kernels(o->kernels, &err);
	bool usage = rc < 0;
	if (rc == 0)
		rc = measure(b, &err);
	if (rc == 0)
		print(b);
	else
		fprintf(stderr, "outrider-bench attention: %s\n", err.text);
	stop(b);
	free(b);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
