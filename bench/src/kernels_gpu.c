#include "bench/src/kernels_gpu.h"

#include "bench/src/gpu_copy.h"
#include "bench/src/gpu.h"
#include "kernels/steps.h"
#include "shared/base/clock.h"
#include "shared/base/median.h"
#include "shared/measure/peaks.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	COLS = 2048,
	MOST_MATRICES = 512, /* of a round */
	ROUNDS = PEAKS_ROUNDS,
};

/* More than a GPU's caches hold, and what the emulation multiplies in a fraction of a second. */
#define GPU_BYTES (1ull << 30)
#define SIMT_BYTES (1ull << 18)

struct row {
	const struct tensor_type_info *type;
	uint32_t n;
	double seconds[ROUNDS], bytes, ops;
};

struct bench {
	const struct kernels_gpu_options *o;
	struct backend *backend;
	const struct backend_ops *ops;
	struct queue *q;
	unsigned char *weights;
	size_t bytes; /* of weights */
	uint32_t rows_each; /* rows of one matrix */
	struct buffer f32, q8, y;
	struct gpu_copy peak, link;
	double copy[ROUNDS], up[ROUNDS], down[ROUNDS]; /* GB/s */
	struct row *rows; /* [n_types * n_counts] */
	uint32_t n_rows;
};

static int measure_copies(struct bench *b, uint32_t round, struct error *err)
{
	b->copy[round] = gpu_copy_own(&b->peak);
	return gpu_copy_link(&b->link, &b->up[round], &b->down[round], err);
}

static int run_row(struct bench *b, struct row *row, uint32_t round, struct error *err)
{
	struct step_product product = {
		.w = {.type = row->type->type,
			.rows = b->rows_each,
			.cols = COLS,
			.row_bytes =
				(size_t)COLS / row->type->block_weights * row->type->block_bytes,
			.layout = b->o->tiles ? LAYOUT_TILES : LAYOUT_ROWS},
		.x = {.f32 = {&b->f32, 0, COLS * sizeof(float), row->n},
			.q8 = {&b->q8, 0, COLS / Q8_BLOCK * sizeof(struct q8_block), row->n}},
		.y = {&b->y, 0, b->rows_each * sizeof(float), row->n},
	};
	const struct step_products step = {.of = &product, .n = 1};
	size_t each = product.w.row_bytes * b->rows_each;
	size_t fit = b->bytes / each, n = fit < MOST_MATRICES ? fit : MOST_MATRICES;
	uint64_t start = clock_ns();

	for (size_t i = 0; i < n; i++) {
		product.w.data = b->weights + i * each;
		b->ops->products(b->q, &step);
	}
	int rc = gpu_finish(b->q, err);
	row->seconds[round] = (double)(clock_ns() - start) / 1e9;
	row->bytes = (double)each * (double)n;
	row->ops = 2.0 * b->rows_each * COLS * row->n * (double)n;
	return rc;
}

static int alloc_all(struct bench *b, uint32_t most, struct error *err)
{
	const struct {
		struct buffer *to;
		size_t bytes;
	} all[] = {
		{&b->f32, most * COLS * sizeof(float)},
		{&b->q8, most * COLS / Q8_BLOCK * sizeof(struct q8_block)},
		{&b->y, most * b->rows_each * sizeof(float)},
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(all) / sizeof(all[0]); i++)
		rc = b->ops->alloc(b->backend, all[i].bytes, BUFFER_OWN, all[i].to, err);
	return rc;
}

static int start(void *arg, struct error *err)
{
	struct bench *b = arg;
	struct backend_memory memory;
	uint32_t most = 1;

	for (uint32_t i = 0; i < b->o->n_counts; i++)
		most = b->o->counts[i] > most ? b->o->counts[i] : most;
	int rc = gpu_open(b->o->backend, &b->backend, err);
	if (rc < 0)
		return rc;
	b->ops = b->backend->ops;
	b->ops->memory(b->backend, &memory);
	bool emulated = gpu_emulated(b->backend);
	uint64_t wanted = emulated ? SIMT_BYTES : GPU_BYTES;
	b->bytes = (size_t)(wanted < memory.free / 4 ? wanted : memory.free / 4 / 256 * 256);
	b->rows_each = emulated ? 32 : 2048;
	b->weights = malloc(b->bytes);
	b->rows = calloc((size_t)b->o->n_types * b->o->n_counts, sizeof(*b->rows));
	if (b->weights == NULL || b->rows == NULL)
		return error_set(err, ENOMEM, "no memory for %zu bytes of weights", b->bytes);
	/* Small finite scales in every type. */
	memset(b->weights, 0x2d, b->bytes);
	const struct queue_limits limits = {.products = 1, .pairs = most};
	rc = b->ops->queue(b->backend, &limits, &b->q, err);
	if (rc == 0)
		rc = alloc_all(b, most, err);
	if (rc == 0)
		rc = gpu_copy_open_own(b->backend, &b->peak, err);
	if (rc == 0)
		rc = gpu_copy_open_link(b->backend, &b->link, err);
	return rc == 0 ? b->ops->place(b->backend, b->weights, b->bytes, err) : rc;
}

static void stop(void *arg)
{
	struct bench *b = arg;
	struct buffer *const all[] = {&b->f32, &b->q8, &b->y};

	gpu_copy_close(&b->peak);
	gpu_copy_close(&b->link);
	if (b->q != NULL)
		b->ops->queue_free(b->q);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i]->backend != NULL)
			b->ops->free(all[i]);
	/* What was placed goes with it. */
	if (b->backend != NULL)
		b->ops->destroy(b->backend);
	free(b->weights);
	free(b->rows);
}

static int measure(void *arg, struct error *err)
{
	struct bench *b = arg;
	int rc = 0;

	for (uint32_t i = 0; i < b->o->n_types; i++)
		for (uint32_t j = 0; j < b->o->n_counts; j++)
			b->rows[b->n_rows++] = (struct row){
				.type = tensor_type_info(b->o->types[i]), .n = b->o->counts[j]};
	for (uint32_t round = 0; rc == 0 && round < b->o->rounds; round++) {
		rc = measure_copies(b, round, err);
		for (uint32_t i = 0; rc == 0 && i < b->n_rows; i++)
			rc = run_row(b, &b->rows[i], round, err);
	}
	return rc;
}

static json_t *report(void *arg)
{
	struct bench *b = arg;
	double copy = median(b->copy, b->o->rounds);
	json_t *rows = json_array();

	for (uint32_t i = 0; i < b->n_rows; i++) {
		struct row *row = &b->rows[i];
		double seconds = median(row->seconds, b->o->rounds);
		double gb_s = row->bytes / 1e9 / seconds;

		json_array_append_new(
			rows, json_pack("{s:s, s:i, s:f, s:f, s:f}", "type", row->type->name,
				      "tokens", (int)row->n, "gb_s", gb_s, "copy_share",
				      gb_s / copy, "gop_s", row->ops / 1e9 / seconds));
	}
	json_t *all = gpu_json(b->backend, b->o->rounds);
	json_object_set_new(all, "peaks",
		json_pack("{s:f, s:f, s:f}", "copy_gb_s", copy, "to_device_gb_s",
			median(b->up, b->o->rounds), "from_device_gb_s",
			median(b->down, b->o->rounds)));
	json_object_set_new(all, "rows", rows);
	return all;
}

static void print_text(const void *arg, const json_t *all)
{
	const struct bench *b = arg;
	const json_t *peaks = json_object_get(all, "peaks"), *row;
	size_t i;

	gpu_say(b->backend, b->o->rounds);
	printf("peaks of copies: in its memory, read and written, %.2f GB/s; of %zu KiB to it "
	       "%.2f GB/s, from it %.2f GB/s\n\n",
		gpu_number(peaks, "copy_gb_s"), b->link.bytes >> 10,
		gpu_number(peaks, "to_device_gb_s"), gpu_number(peaks, "from_device_gb_s"));
	printf("matrices %u x %d   tokens       GB/s  of copy      GOP/s\n", b->rows_each, COLS);
	json_array_foreach(json_object_get(all, "rows"), i, row)
		printf("%-20s %6u %10.3f %7.1f%% %10.3f\n", b->rows[i].type->name, b->rows[i].n,
			gpu_number(row, "gb_s"), 100 * gpu_number(row, "copy_share"),
			gpu_number(row, "gop_s"));
}

static const struct gpu_bench steps = {start, measure, report, print_text, stop};

int kernels_gpu(const struct kernels_gpu_options *options, struct error *err)
{
	struct bench *b = calloc(1, sizeof(*b));

	if (b == NULL)
		return error_set(err, ENOMEM, "no memory");
	b->o = options;
	int rc = gpu_run(&steps, b, options->json, err);
	free(b);
	return rc;
}
