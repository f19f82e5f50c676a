/* outrider-bench tolerance: the passes of a series (tolerance.h). */
#include "bench/src/tolerance.h"

#include "kernels/cpu/simd.h"
#include "kernels/kernels.h"
#include "shared/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int add_sample(
	struct grid_series *series, const struct grid_sample *sample, struct error *err)
{
	if (series->n_samples == series->samples_max) {
		size_t most = series->samples_max ? 2 * series->samples_max : 256;
		struct grid_sample *more =
			realloc(series->samples, most * sizeof(*series->samples));

		if (!more)
			return error_set(err, ENOMEM, "no memory for %zu passes", most);
		series->samples = more;
		series->samples_max = most;
	}
	series->samples[series->n_samples++] = *sample;
	return 0;
}

/* The rows of the longest pass of this size of batch, for each sequence. */
static uint32_t longest(const struct tolerance_bench *b)
{
	return b->gamma[b->n_gammas - 1] + 1;
}

static uint64_t bytes_of(const struct tolerance_bench *b, uint32_t context, uint32_t sessions)
{
	uint64_t pages = batches_pages(sessions, context, longest(b));
	uint64_t bytes = batches_bytes(&b->target, pages);

	return b->options.draft ? bytes + batches_bytes(&b->draft, pages) : bytes;
}

/* Marks the cells that are too large, and finds out what the others need. */
static void plan(const struct tolerance_bench *b, struct grid_series *series, uint64_t *pages,
	uint32_t *sessions, uint32_t *context)
{
	*pages = 0;
	*sessions = *context = 0;
	for (uint32_t c = 0; c < b->n_contexts; c++)
		for (uint32_t i = 0; i < b->n_batches; i++) {
			uint64_t bytes = bytes_of(b, b->context[c], b->batch[i]);
			uint64_t here = batches_pages(b->batch[i], b->context[c], longest(b));
			bool fits = bytes <= b->memory && here <= KV_PAGES_MAX;

			for (uint32_t g = 0; g < b->n_gammas; g++) {
				series->cells[c][i][g].bytes = bytes;
				series->cells[c][i][g].state =
					fits ? GRID_UNMEASURED : GRID_TOO_LARGE;
			}
			if (!fits)
				continue;
			*pages = here > *pages ? here : *pages;
			*sessions = b->batch[i] > *sessions ? b->batch[i] : *sessions;
			*context = b->context[c] > *context ? b->context[c] : *context;
		}
}

static bool over(const struct tolerance_bench *b)
{
	return b->options.seconds > 0 &&
	       clock_ns() - b->start_ns > b->options.seconds * UINT64_C(1000000000);
}

/* The time that the model's own number of layers would take, by that of the layers it has. */
static double scaled_ns(const struct tolerance_bench *b, const struct batches_pass *pass)
{
	double layers = b->options.layers ? (double)b->options.layers / b->n_layers : 1;

	return 1e9 * (pass->seconds + (layers - 1) * pass->layers_s);
}

/* As many passes of a cell as fit into the slice, at least one. */
static int run_cell(struct tolerance_bench *b, struct grid_series *series, struct grid_sample *at,
	struct error *err)
{
	uint64_t end = clock_ns() + b->options.slice_ms * UINT64_C(1000000);
	int rc = 0;

	do {
		struct batches_pass pass, step = {0};

		if (b->options.draft)
			rc = batches_run(&b->draft, 1, &step, err);
		if (rc == 0)
			rc = batches_run(&b->target, b->gamma[at->gamma] + 1, &pass, err);
		if (rc != 0)
			return rc;
		at->ns = scaled_ns(b, &pass);
		at->draft_ns = 1e9 * step.seconds;
		at->experts = pass.experts;
		rc = add_sample(series, at, err);
		series->cells[at->context][at->batch][at->gamma].state = GRID_MEASURED;
	} while (rc == 0 && clock_ns() < end);
	return rc;
}

/* Begins the sequences of a size of batch. Their first pass finds everything cold: it is none of
 * the measured ones. */
static int begin(struct batches *batches, uint32_t sessions, uint32_t context, uint32_t rows,
	struct error *err)
{
	struct batches_pass ignored;
	int rc = batches_begin(batches, sessions, context, rows, err);

	return rc ? rc : batches_run(batches, 1, &ignored, err);
}

/* A round of one context: each batch with each length of draft. */
static int run_round(
	struct tolerance_bench *b, struct grid_series *series, uint32_t context, struct error *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < b->n_batches; i++) {
		if (series->cells[context][i][0].state == GRID_TOO_LARGE || over(b))
			continue;
		rc = begin(&b->target, b->batch[i], b->context[context], longest(b), err);
		if (rc == 0 && b->options.draft)
			rc = begin(&b->draft, b->batch[i], b->context[context], longest(b), err);
		for (uint32_t g = 0; rc == 0 && g < b->n_gammas && !over(b); g++) {
			struct grid_sample at = {.context = context, .batch = i, .gamma = g};

			rc = run_cell(b, series, &at, err);
		}
	}
	return rc;
}

static void say(const struct tolerance_bench *b, const struct grid_series *series, uint32_t context,
	uint32_t round)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K%s, %s: context %u, round %u of %u", series->kv,
			series->kernels, b->context[context], round + 1, b->options.rounds);
}

static int run_all(struct tolerance_bench *b, struct grid_series *series, struct error *err)
{
	int rc = 0;

	for (uint32_t c = 0; c < b->n_contexts; c++)
		for (uint32_t round = 0; rc == 0 && round < b->options.rounds; round++) {
			say(b, series, c, round);
			rc = run_round(b, series, c, err);
		}
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	return rc;
}

static int open_one(struct tolerance_bench *b, struct batches *batches, const char *path,
	const struct grid_series *series, struct error *err)
{
	struct engine_options options = b->options.engine;

	options.model = path;
	options.kv = series->kv;
	options.kernels = series->kernels;
	return batches_open(batches, &options, b->options.seed, err);
}

static int start(
	struct tolerance_bench *b, struct grid_series *series, bool *any, struct error *err)
{
	uint32_t sessions, context;
	uint64_t pages;
	int rc = open_one(b, &b->target, b->options.engine.model, series, err);

	if (rc == 0 && b->options.draft)
		rc = open_one(b, &b->draft, b->options.draft, series, err);
	if (rc < 0)
		return rc;
	const struct model *model = b->target.engine.model;
	const struct model_config *c = &model->config;
	series->kv = kv_type_name(kv_type_of(series->kv, model));
	series->kernels = kernels_select(series->kernels, err)->name;
	b->n_layers = c->n_layers;
	b->n_context = c->n_context;
	b->moe = c->n_experts > 0;
	plan(b, series, &pages, &sessions, &context);
	*any = pages > 0;
	if (!*any)
		return 0;
	context += longest(b);
	rc = batches_start(&b->target, (uint32_t)pages, sessions * longest(b), context, err);
	if (rc == 0 && b->options.draft)
		rc = batches_start(&b->draft, (uint32_t)pages, sessions, context, err);
	return rc;
}

int grid_measure(struct tolerance_bench *b, struct grid_series *series, struct error *err)
{
	bool any;
	int rc = start(b, series, &any, err);

	if (rc == 0 && any)
		rc = run_all(b, series, err);
	batches_close(&b->target);
	batches_close(&b->draft);
	return rc;
}
