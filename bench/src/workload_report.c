#include "bench/src/workload.h"

#include "bench/src/picture.h"
#include "shared/base/cpu_name.h"
#include "shared/base/plural.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static double ratio(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : 0;
}

static void k_name(int k, char out[16])
{
	if (k == WORKLOAD_K_AUTO)
		snprintf(out, 16, "auto");
	else
		snprintf(out, 16, "%d", k);
}

/* tokens/s at K = 0, against which speed-ups are given; 0 without. */
static double base_per_s(const struct workload_options *options, const struct workload_row *rows)
{
	for (size_t i = 0; i < options->n_ks; i++)
		if (rows[i].k == 0)
			return rows[i].median;
	return 0;
}

static void table_row(const struct workload_row *row, double base, FILE *to)
{
	const struct workload_totals *t = &row->totals;
	char name[16];
	k_name(row->k, name);
	fprintf(to, "%5s %8.0f (%6.0f to %6.0f) %5.2f %6.2f %6.2f %9.0f %8.0f %7.1f %4.0f%% ", name,
		row->median, row->low, row->high, base > 0 ? row->median / base : 0,
		ratio(t->tokens, t->iterations), ratio(t->k_sum, t->iterations),
		ratio(t->verify_ns, t->iterations) / 1e3, ratio(t->draft_ns, t->iterations) / 1e3,
		ratio(t->unique_experts, t->iterations), 100 * ratio(t->hits, t->hits + t->misses));
	for (int p = 0; p < LIMIT_DRAFT_DEPTH && t->drafted_at[p]; p++)
		fprintf(to, " %.0f", 100 * ratio(t->accepted_at[p], t->drafted_at[p]));
	fputc('\n', to);
}

void workload_table(
	const struct workload_options *options, const struct workload_row *rows, FILE *to)
{
	char cpu[CPU_NAME_BYTES];
	cpu_name(cpu);
	fprintf(to,
		"%s, drafter %s, %zu session%s, median of %zu rounds (lowest to highest); %s\n\n",
		options->file, options->drafter, options->sessions, plural(options->sessions),
		rows[0].n_rounds, cpu);
	fprintf(to, "%5s %8s %18s %5s %6s %6s %9s %8s %7s %5s  %s\n", "K", "tokens/s",
		"(low to high)", "ratio", "tok/it", "mean K", "verify us", "draft us", "experts",
		"hits", "acceptance by position, %");
	double base = base_per_s(options, rows);
	for (size_t i = 0; i < options->n_ks; i++)
		table_row(&rows[i], base, to);
	fputs("\nratio: to K = 0 of this run; experts: distinct, summed over the layers, per "
	      "iteration.\n",
		to);
}

static json_t *row_json(const struct workload_row *row)
{
	const struct workload_totals *t = &row->totals;
	json_t *acceptance = json_array(), *rounds = json_array(), *json = json_object();
	for (int p = 0; p < LIMIT_DRAFT_DEPTH && t->drafted_at[p]; p++)
		json_array_append_new(
			acceptance, json_real(ratio(t->accepted_at[p], t->drafted_at[p])));
	for (size_t i = 0; i < row->n_rounds; i++)
		json_array_append_new(rounds, json_real(row->tokens_per_s[i]));
	json_object_set_new(
		json, "k", row->k == WORKLOAD_K_AUTO ? json_string("auto") : json_integer(row->k));
	json_object_set_new(json, "tokens_per_s", json_real(row->median));
	json_object_set_new(json, "rounds", rounds);
	json_object_set_new(json, "tokens", json_integer((json_int_t)t->tokens));
	json_object_set_new(json, "iterations", json_integer((json_int_t)t->iterations));
	json_object_set_new(
		json, "tokens_per_iteration", json_real(ratio(t->tokens, t->iterations)));
	json_object_set_new(json, "mean_k", json_real(ratio(t->k_sum, t->iterations)));
	json_object_set_new(json, "drafted", json_integer((json_int_t)t->drafted));
	json_object_set_new(json, "accepted", json_integer((json_int_t)t->accepted));
	json_object_set_new(json, "acceptance_by_position", acceptance);
	json_object_set_new(json, "unique_experts_per_iteration",
		json_real(ratio(t->unique_experts, t->iterations)));
	json_object_set_new(json, "verify_us", json_real(ratio(t->verify_ns, t->iterations) / 1e3));
	json_object_set_new(json, "draft_us", json_real(ratio(t->draft_ns, t->iterations) / 1e3));
	json_object_set_new(json, "sample_us", json_real(ratio(t->sample_ns, t->iterations) / 1e3));
	json_object_set_new(json, "expert_hits", json_integer((json_int_t)t->hits));
	json_object_set_new(json, "expert_misses", json_integer((json_int_t)t->misses));
	return json;
}

json_t *workload_json(const struct workload_options *options, const struct workload_row *rows)
{
	char cpu[CPU_NAME_BYTES];
	cpu_name(cpu);
	json_t *list = json_array();
	for (size_t i = 0; i < options->n_ks; i++)
		json_array_append_new(list, row_json(&rows[i]));
	return json_pack("{s:s,s:s,s:s,s:I,s:o}", "cpu", cpu, "workload", options->file, "drafter",
		options->drafter, "sessions", (json_int_t)options->sessions, "rows", list);
}

static void plot_script(
	const struct workload_options *options, const struct workload_row *rows, FILE *to)
{
	const char *slash = strrchr(options->file, '/');
	fprintf(to, "set title \"%.100s, drafter %.20s\" noenhanced\n",
		slash ? slash + 1 : options->file, options->drafter);
	/* A single K needs a range, too. */
	fprintf(to, "set xrange [-0.5:%zu.5]\n", options->n_ks - 1);
	fputs("set xlabel 'K'\nset ylabel 'tokens/s'\nset y2label 'tokens per iteration'\nset "
	      "y2tics\n"
	      "set ytics nomirror\nset yrange [0:*]\nset y2range [0:*]\nset grid ytics\nset key "
	      "top left\n"
	      "plot '-' using 1:3:4:5:xticlabels(2) with yerrorlines lw 2 title 'tokens/s (low, "
	      "median, high)', "
	      "'-' using 1:3:xticlabels(2) axes x1y2 with linespoints dt 2 title 'tokens per "
	      "iteration'\n",
		to);
	char label[16];
	for (size_t i = 0; i < options->n_ks; i++) {
		k_name(rows[i].k, label);
		fprintf(to, "%zu %s %g %g %g\n", i, label, rows[i].median, rows[i].low,
			rows[i].high);
	}
	fputs("e\n", to);
	for (size_t i = 0; i < options->n_ks; i++) {
		k_name(rows[i].k, label);
		fprintf(to, "%zu %s %g\n", i, label,
			ratio(rows[i].totals.tokens, rows[i].totals.iterations));
	}
	fputs("e\n", to);
}

int workload_plot_check(const struct workload_options *options)
{
	struct error err = {""};
	int code = picture_check(options->plot, &err);
	if (code == 0 && strchr(options->file, '"'))
		code = error_set(&err, EINVAL, "--plot %s: takes a workload whose name has no \"",
			options->plot);
	if (code < 0)
		fprintf(stderr, "outrider-bench workload: %s\n", err.text);
	return code;
}

int workload_plot(const struct workload_options *options, const struct workload_row *rows)
{
	struct error err = {""};
	FILE *gnuplot = picture_open(options->plot, 800, 450, &err);
	int code = gnuplot ? 0 : -EIO;
	if (gnuplot) {
		plot_script(options, rows, gnuplot);
		code = picture_close(gnuplot, &err);
	}
	if (code < 0)
		fprintf(stderr, "outrider-bench workload: %s\n", err.text);
	return code;
}
