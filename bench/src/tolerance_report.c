/* outrider-bench tolerance: the grid as a table, as JSON and as a picture (tolerance.h). */
#include "bench/src/tolerance.h"

#include "bench/src/picture.h"
#include "shared/base/plural.h"

#include <math.h>
#include <stdio.h>

#define MIB (1024.0 * 1024)
#define GIB (1024 * MIB)

static void print_head(const struct tolerance_bench *b, const char *cpu)
{
	const struct tolerance_options *o = &b->options;

	printf("%s, %s, %u thread%s; %u rounds\n", o->engine.model, cpu, o->engine.threads,
		plural(o->engine.threads), o->rounds);
	printf("gamma: drafted tokens of each session; a pass has gamma + 1 of each, all picked "
	       "from, behind a context of its own\n"
	       "(a computed prompt of %d tokens, copied to all pages). tau: T(1) / T(gamma + 1), "
	       "medians; model: by the estimate of the policy-controller.\n",
		BATCHES_PROMPT);
	fputs("lambda: tokens of a session from a pass, drawn with chances of", stdout);
	for (uint32_t i = 0; i < b->n_accepted; i++)
		printf(" %u", b->accepted[i]);
	printf(" %% for the drafted tokens in turn. delta: T of one token of %s / T(1).\n",
		o->draft ? o->draft : "the drafter, here 0,");
	puts("expected, measured: lambda tau / (1 + gamma delta tau) as predicted just before each "
	     "pass, and as it came; error: of the first.\nheld out: the error of a prediction by "
	     "an estimate that has seen no pass of this line.");
	if (o->layers && o->layers != b->n_layers)
		printf("The file has %u layer%s; times and experts are scaled to %u: what the "
		       "layers took counts %.2f times, the output once.\n",
			b->n_layers, plural(b->n_layers), o->layers,
			(double)o->layers / b->n_layers);
	if (b->context[b->n_contexts - 1] > b->n_context)
		printf("The model is made for contexts of %u tokens; what longer ones cost is "
		       "measured all the same.\n",
			b->n_context);
}

static double layers_factor(const struct tolerance_bench *b)
{
	return b->options.layers ? (double)b->options.layers / b->n_layers : 1;
}

/* A figure, or "-" when it is not known. */
static void print_known(double value, int width, int digits)
{
	if (value > 0)
		printf(" %*.*f", width, digits, value);
	else
		printf(" %*s", width, "-");
}

static void print_error(double error)
{
	if (isnan(error))
		printf(" %8s", "-");
	else
		printf(" %+7.1f%%", 100 * error);
}

static void print_cell(const struct tolerance_bench *b, const struct grid_cell *cell, uint32_t g)
{
	printf("%5u %6u %9.2f", b->gamma[g], cell->passes, cell->pass_ns / 1e6);
	print_known(b->moe ? cell->experts * layers_factor(b) : 0, 8, 0);
	printf(" %6.3f %6.3f", cell->tau, cell->model_tau);
	print_known(cell->lambda, 6, 2);
	print_known(cell->lambda > 0 ? 1 / cell->lambda : 0, 8, 3);
	printf(" %6.3f", cell->delta);
	print_known(g > 0 ? cell->expected : 0, 8, 3);
	print_known(g > 0 ? cell->measured : 0, 8, 3);
	print_error(g > 0 ? grid_error(cell->expected, cell->measured) : (double)NAN);
	print_error(g > 0 ? grid_error(cell->held_out, cell->measured) : (double)NAN);
	putchar('\n');
}

/* Why there is nothing, and what the estimate makes of its neighbours. */
static void print_unmeasured(const struct tolerance_bench *b, const struct grid_cell *cells)
{
	double bytes = (double)cells[0].bytes;

	if (cells[0].state == GRID_UNMEASURED)
		fputs("  not measured: the time was over", stdout);
	else if (bytes < GIB)
		printf("  not measured: weights and KV need %.1f MiB", bytes / MIB);
	else
		printf("  not measured: weights and KV need %.1f GiB", bytes / GIB);
	if (cells[0].model_tau > 0) {
		fputs("; tau by extrapolation:", stdout);
		for (uint32_t g = 1; g < b->n_gammas; g++)
			printf(" %.3f", cells[g].model_tau);
	}
	putchar('\n');
}

static void print_context(
	const struct tolerance_bench *b, const struct grid_series *s, uint32_t context)
{
	printf("\ncontext %u, KV %s, %s kernels\nbatch gamma passes   pass ms  experts    tau  "
	       "model lambda 1/lambda  delta expected measured    error held out\n",
		b->context[context], s->kv, s->kernels);
	for (uint32_t i = 0; i < b->n_batches; i++) {
		const struct grid_cell *cells = s->cells[context][i];

		if (cells[0].state != GRID_MEASURED) {
			printf("%5u", b->batch[i]);
			print_unmeasured(b, cells);
			continue;
		}
		for (uint32_t g = 0; g < b->n_gammas; g++)
			if (cells[g].state == GRID_MEASURED) {
				printf("%5u ", b->batch[i]);
				print_cell(b, &cells[g], g);
			}
	}
}

void grid_print(const struct tolerance_bench *b, const char *cpu)
{
	double expected, held_out;

	print_head(b, cpu);
	for (uint32_t i = 0; i < b->n_series; i++)
		for (uint32_t c = 0; c < b->n_contexts; c++)
			print_context(b, &b->series[i], c);
	size_t n = grid_errors(b, NULL, &expected, &held_out);
	if (n > 0)
		printf("\nThe expected speed-up is off by %.1f%% in the median of %zu measured "
		       "line%s, and by %.1f%% if the line's own passes were not seen.\n",
			100 * expected, n, plural(n), 100 * held_out);
}

static json_t *known(double value)
{
	return value > 0 ? json_real(value) : json_null();
}

static json_t *error_json(double error)
{
	return isnan(error) ? json_null() : json_real(error);
}

static json_t *cell_json(const struct tolerance_bench *b, const struct grid_cell *cell,
	uint32_t context, uint32_t batch, uint32_t g)
{
	static const char *const states[] = {[GRID_UNMEASURED] = "no time",
		[GRID_MEASURED] = "measured",
		[GRID_TOO_LARGE] = "too large"};
	json_t *all = json_pack("{s:i, s:i, s:i, s:s, s:I, s:i, s:o, s:o}", "context",
		(int)b->context[context], "batch", (int)b->batch[batch], "gamma", (int)b->gamma[g],
		"state", states[cell->state], "bytes", (json_int_t)cell->bytes, "passes",
		(int)cell->passes, "pass_ms", known(cell->pass_ns / 1e6), "experts",
		known(cell->experts * layers_factor(b)));
	json_t *curve = json_pack("{s:o, s:o, s:b, s:o, s:o, s:o}", "tau", known(cell->tau),
		"model_tau", known(cell->model_tau), "extrapolated",
		cell->passes == 0 && cell->model_tau > 0, "lambda", known(cell->lambda),
		"needed_tau", known(cell->lambda > 0 ? 1 / cell->lambda : 0), "delta",
		cell->passes > 0 ? json_real(cell->delta) : json_null());
	bool drafts = g > 0;
	json_t *speed = json_pack("{s:o, s:o, s:o, s:o}", "expected",
		known(drafts ? cell->expected : 0), "measured", known(drafts ? cell->measured : 0),
		"error",
		error_json(drafts ? grid_error(cell->expected, cell->measured) : (double)NAN),
		"held_out_error",
		error_json(drafts ? grid_error(cell->held_out, cell->measured) : (double)NAN));

	json_object_update(all, curve);
	json_object_update(all, speed);
	json_decref(curve);
	json_decref(speed);
	return all;
}

static json_t *series_json(const struct tolerance_bench *b, const struct grid_series *s)
{
	json_t *cells = json_array();
	double expected = 0, held_out = 0;
	size_t n = grid_errors(b, s, &expected, &held_out);

	for (uint32_t c = 0; c < b->n_contexts; c++)
		for (uint32_t i = 0; i < b->n_batches; i++)
			for (uint32_t g = 0; g < b->n_gammas; g++)
				json_array_append_new(
					cells, cell_json(b, &s->cells[c][i][g], c, i, g));
	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:i}", "kv", s->kv, "kernels", s->kernels,
		"cells", cells, "median_error", n > 0 ? json_real(expected) : json_null(),
		"median_held_out_error", n > 0 ? json_real(held_out) : json_null(), "measured",
		(int)n);
}

json_t *grid_json(const struct tolerance_bench *b, const char *cpu)
{
	const struct tolerance_options *o = &b->options;
	json_t *series = json_array(), *accepted = json_array();

	for (uint32_t i = 0; i < b->n_series; i++)
		json_array_append_new(series, series_json(b, &b->series[i]));
	for (uint32_t i = 0; i < b->n_accepted; i++)
		json_array_append_new(accepted, json_integer((json_int_t)b->accepted[i]));
	return json_pack("{s:s, s:s, s:s?, s:i, s:i, s:i, s:i, s:o, s:o}", "cpu", cpu, "model",
		o->engine.model, "draft", o->draft, "threads", (int)o->engine.threads, "rounds",
		(int)o->rounds, "layers", (int)b->n_layers, "scaled_to_layers",
		(int)(o->layers ? o->layers : b->n_layers), "acceptance_percent", accepted,
		"series", series);
}

/* ---- As a picture: a row for each series, a column for each context. ---- */

static void plot_points(const struct tolerance_bench *b, const struct grid_cell *cells,
	double (*figure)(const struct grid_cell *), FILE *to)
{
	for (uint32_t g = 0; g < b->n_gammas; g++)
		if (figure(&cells[g]) > 0)
			fprintf(to, "%u %g\n", b->gamma[g], figure(&cells[g]));
	fputs("NaN NaN\ne\n", to); /* gnuplot wants a line */
}

static double measured_tau(const struct grid_cell *cell)
{
	return cell->tau;
}

static double model_tau(const struct grid_cell *cell)
{
	return cell->model_tau;
}

static double needed_tau(const struct grid_cell *cell)
{
	return cell->lambda > 0 ? 1 / cell->lambda : 0;
}

/* The first batch that was measured: what tau is needed depends on none. */
static const struct grid_cell *needed(
	const struct tolerance_bench *b, const struct grid_series *s, uint32_t context)
{
	for (uint32_t i = b->n_batches; i-- > 1;)
		if (s->cells[context][i][0].state == GRID_MEASURED)
			return s->cells[context][i];
	return s->cells[context][0];
}

static void plot_panel(
	const struct tolerance_bench *b, const struct grid_series *s, uint32_t context, FILE *to)
{
	fprintf(to,
		"set title 'context %u, KV %s, %s'\nplot '-' with lines dt 2 lc 'black' title "
		"'1 / lambda'",
		b->context[context], s->kv, s->kernels);
	for (uint32_t i = 0; i < b->n_batches; i++) {
		bool there = s->cells[context][i][0].state == GRID_MEASURED;

		fprintf(to,
			", '-' with lines lw 2 lt %u%s title 'batch %u%s', '-' with points pt 7 "
			"lt %u notitle",
			i + 1, there ? "" : " dt 3", b->batch[i], there ? "" : ", extrapolated",
			i + 1);
	}
	fputc('\n', to);
	plot_points(b, needed(b, s, context), needed_tau, to);
	for (uint32_t i = 0; i < b->n_batches; i++) {
		plot_points(b, s->cells[context][i], model_tau, to);
		plot_points(b, s->cells[context][i], measured_tau, to);
	}
}

int grid_plot(const struct tolerance_bench *b, struct error *err)
{
	FILE *to = picture_open(
		b->options.plot, 120 + 440 * b->n_contexts, 40 + 380 * b->n_series, err);

	if (!to)
		return -EIO;
	fprintf(to,
		"set multiplot layout %u,%u\nset grid\nset xrange [0:%u]\nset yrange [0:1.05]\nset "
		"key top right "
		"font ',9'\nset xlabel 'gamma, drafted tokens of each session'\nset ylabel "
		"'tau(gamma + 1); points: measured, lines: model'\n",
		b->n_series, b->n_contexts, b->gamma[b->n_gammas - 1]);
	for (uint32_t i = 0; i < b->n_series; i++)
		for (uint32_t c = 0; c < b->n_contexts; c++)
			plot_panel(b, &b->series[i], c, to);
	return picture_close(to, err);
}
