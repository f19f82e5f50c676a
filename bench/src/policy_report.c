#include "bench/src/policy_sim.h"

#include <math.h>
#include <string.h>

static const struct sim_row *row_of(const struct sim_cell *cell, const char *policy)
{
	for (uint32_t i = 0; i < cell->n_rows; i++)
		if (strcmp(cell->rows[i].policy, policy) == 0)
			return &cell->rows[i];
	return NULL;
}

static bool is_static(const struct sim_row *row)
{
	return strncmp(row->policy, "static:", 7) == 0;
}

static double ms_per_token(const struct sim_row *row)
{
	return row->total.ms / row->total.tokens;
}

/* The static K that was fastest over the whole cell. */
static const struct sim_row *best_static(const struct sim_cell *cell)
{
	const struct sim_row *best = NULL;
	for (uint32_t i = 0; i < cell->n_rows; i++)
		if (is_static(&cell->rows[i]) &&
			(!best || ms_per_token(&cell->rows[i]) < ms_per_token(best)))
			best = &cell->rows[i];
	return best;
}

static double best_static_of_session(const struct sim_cell *cell, uint32_t session)
{
	double best = INFINITY;
	for (uint32_t i = 0; i < cell->n_rows; i++)
		if (is_static(&cell->rows[i]))
			best = fmin(best, cell->rows[i].session_ms[session]);
	return best;
}

/* Ratios of speed over the sessions. */
struct spread {
	double mean, worst;
};

static void spread_add(struct spread *spread, double ratio, uint32_t n)
{
	spread->mean += ratio / n;
	spread->worst = spread->worst > 0 ? fmin(spread->worst, ratio) : ratio;
}

static json_t *row_json(const struct sim_cell *cell, const struct sim_row *row)
{
	const struct sim_row *off = row_of(cell, "static:0"), *best = best_static(cell);
	struct spread to_off = {0}, to_best = {0}, to_optimum = {0};
	double optimum_ms = 0, ms = 0, n = row->total.iterations;
	for (uint32_t i = 0; i < cell->n_sessions; i++) {
		double own = row->session_ms[i];
		spread_add(&to_off, off->session_ms[i] / own, cell->n_sessions);
		spread_add(&to_best, best_static_of_session(cell, i) / own, cell->n_sessions);
		spread_add(&to_optimum, cell->optimum_ms[i] / own, cell->n_sessions);
		optimum_ms += cell->optimum_ms[i];
		ms += own;
	}
	json_t *json = json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
		"policy", row->policy, "to_k0", ms_per_token(off) / ms_per_token(row), "to_k0_mean",
		to_off.mean, "to_k0_worst", to_off.worst, "to_best_static",
		ms_per_token(best) / ms_per_token(row), "to_best_static_mean", to_best.mean,
		"to_best_static_worst", to_best.worst, "tokens_per_iteration",
		row->total.tokens / n, "mean_k", row->total.k / n, "mean_drafted",
		row->total.drafted / n, "controller_ns_per_iteration",
		row->total.controller_ns / n);
	/* Compared with a bound that cannot be exceeded, the regret is at most this much. */
	json_object_set_new(
		json, cell->bound ? "to_bound" : "to_optimum", json_real(optimum_ms / ms));
	json_object_set_new(json, cell->bound ? "regret_mean_at_most" : "regret_mean",
		json_real(1 - to_optimum.mean));
	json_object_set_new(json, cell->bound ? "regret_worst_at_most" : "regret_worst",
		json_real(1 - to_optimum.worst));
	return json;
}

json_t *sim_cell_json(const struct sim_cell *cell)
{
	json_t *rows = json_array();
	for (uint32_t i = 0; i < cell->n_rows; i++)
		json_array_append_new(rows, row_json(cell, &cell->rows[i]));
	return json_pack("{s:s, s:s, s:s, s:i, s:s, s:o}", "name", cell->name, "curve",
		cell->curve_source, "process", cell->process_source, "sessions",
		(int)cell->n_sessions, "best_static", best_static(cell)->policy, "rows", rows);
}

/* Time over the cells relative to K = 0 in each: every cell is the same work. */
static double mix_time(const struct sim_cell *cells, size_t n, const char *policy)
{
	double sum = 0;
	for (size_t i = 0; i < n; i++)
		sum += ms_per_token(row_of(&cells[i], policy)) /
		       ms_per_token(row_of(&cells[i], "static:0"));
	return sum / (double)n;
}

json_t *sim_mix_json(const struct sim_cell *cells, size_t n)
{
	const char *single = "static:0";
	double best_each = 0;
	json_t *rows = json_array();
	for (uint32_t i = 0; i < cells[0].n_rows; i++) {
		const struct sim_row *row = &cells[0].rows[i];
		if (is_static(row) && mix_time(cells, n, row->policy) < mix_time(cells, n, single))
			single = row->policy;
	}
	for (size_t i = 0; i < n; i++)
		best_each += ms_per_token(best_static(&cells[i])) /
			     ms_per_token(row_of(&cells[i], "static:0")) / (double)n;
	for (uint32_t i = 0; i < cells[0].n_rows; i++) {
		const char *policy = cells[0].rows[i].policy;
		double time = mix_time(cells, n, policy), worst = INFINITY, worst_best = INFINITY;
		for (size_t j = 0; j < n; j++) {
			double own = ms_per_token(row_of(&cells[j], policy));
			worst = fmin(worst, ms_per_token(row_of(&cells[j], "static:0")) / own);
			worst_best = fmin(worst_best, ms_per_token(best_static(&cells[j])) / own);
		}
		json_array_append_new(
			rows, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "policy", policy, "to_k0",
				      1 / time, "to_k0_worst", worst, "to_best_static",
				      best_each / time, "to_best_static_worst", worst_best,
				      "to_single_static", mix_time(cells, n, single) / time));
	}
	return json_pack("{s:i, s:s, s:o}", "cells", (int)n, "single_static", single, "rows", rows);
}

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

static const char *text(const json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

static void cell_text(const json_t *cell, FILE *to)
{
	size_t i;
	const json_t *row, *rows = json_object_get(cell, "rows");
	bool bound = json_object_get(json_array_get(rows, 0), "to_bound") != NULL;
	fprintf(to, "\n%s, %d sessions; best static K: %s\n", text(cell, "name"),
		(int)number(cell, "sessions"), text(cell, "best_static"));
	fprintf(to, "                to K = 0              to best static        %s\n",
		bound ? "of its bound   regret <=, %" : "of hindsight   regret, %");
	fputs("policy           all   mean  worst     all   mean  worst     all  worst   mean  "
	      "worst  tok/it  mean K  CPU us/it\n",
		to);
	json_array_foreach(rows, i, row)
	{
		double worst = number(row, bound ? "regret_worst_at_most" : "regret_worst");
		fprintf(to, "%-14s %5.3f  %5.3f  %5.3f   %5.3f  %5.3f  %5.3f", text(row, "policy"),
			number(row, "to_k0"), number(row, "to_k0_mean"), number(row, "to_k0_worst"),
			number(row, "to_best_static"), number(row, "to_best_static_mean"),
			number(row, "to_best_static_worst"));
		fprintf(to, "   %5.3f  %5.3f  %5.1f  %5.1f",
			number(row, bound ? "to_bound" : "to_optimum"), 1 - worst,
			100 * number(row, bound ? "regret_mean_at_most" : "regret_mean"),
			100 * worst);
		fprintf(to, "   %5.2f   %5.2f   %7.2f\n", number(row, "tokens_per_iteration"),
			number(row, "mean_k"), number(row, "controller_ns_per_iteration") / 1e3);
	}
}

static void mix_text(const json_t *mix, FILE *to)
{
	size_t i;
	const json_t *row;
	fprintf(to,
		"\nall %d cells, each the same work; the single best static K: %s\n"
		"policy         to K=0  worst cell  to each cell's best  worst cell  to the single "
		"best\n",
		(int)number(mix, "cells"), text(mix, "single_static"));
	json_array_foreach(json_object_get(mix, "rows"), i, row) fprintf(to,
		"%-14s %6.3f      %6.3f               %6.3f      %6.3f              %6.3f\n",
		text(row, "policy"), number(row, "to_k0"), number(row, "to_k0_worst"),
		number(row, "to_best_static"), number(row, "to_best_static_worst"),
		number(row, "to_single_static"));
}

static bool has_kind(const json_t *row, const char *kind)
{
	return strcmp(text(row, "kind"), kind) == 0;
}

/* Prints the rows of one kind, with their errors and those of "as fast as K = 0". */
static void numbers_text(const json_t *rows, const char *kind, FILE *to)
{
	size_t i;
	const json_t *row;
	json_array_foreach(rows, i, row)
	{
		if (!has_kind(row, kind))
			continue;
		fprintf(to, "%-31s %-21s %5.2f      %5.2f  %+4.0f%%  %+4.0f%%%s %s\n",
			text(row, "name"), text(row, "policy"), number(row, "published"),
			number(row, "simulated"), 100 * number(row, "error"),
			100 * number(row, "error_of_k0"),
			has_kind(row, "prediction") && !json_is_true(json_object_get(row, "tells"))
				? " *"
				: "  ",
			text(row, "where"));
		if (text(row, "note"))
			fprintf(to, "    %s\n", text(row, "note"));
	}
}

static void bounds_text(const json_t *rows, FILE *to)
{
	size_t i;
	const json_t *row;
	json_array_foreach(rows, i, row)
	{
		if (!json_object_get(row, "holds"))
			continue;
		fprintf(to, "%-31s %-21s %s %.2f  %5.2f  %-5s %s\n", text(row, "name"),
			text(row, "policy"), text(row, "kind"), number(row, "published"),
			number(row, "simulated"),
			json_is_true(json_object_get(row, "holds")) ? "holds" : "FAILS",
			text(row, "where"));
	}
}

static void judgement_text(const char *of, const json_t *judgement, FILE *to)
{
	fprintf(to, "%s: %.0f of %.0f predictions are closer than K = 0; skill %.2f\n", of,
		number(judgement, "closer_than_k0"), number(judgement, "predictions"),
		number(judgement, "skill"));
}

static void published_text(const json_t *published, FILE *to)
{
	const json_t *rows = json_object_get(published, "rows");
	static const char columns[] = "model and task                  policy            "
				      "published  simulated  error  K = 0  where\n";
	fprintf(to,
		"\nCascade's published figures as speed to K = 0. The column K = 0 is the error of "
		"predicting\n\"as fast as K = 0\".\n\nFits: the curve or the acceptance was "
		"chosen to give them. They are not evidence.\n%s",
		columns);
	numbers_text(rows, "fit", to);
	fprintf(to,
		"\nPredictions (*: \"as fast as K = 0\" is right within 5%%, so that the figure "
		"is not evidence)\n%s",
		columns);
	numbers_text(rows, "prediction", to);
	fputs("\nBounds\n", to);
	bounds_text(rows, to);
	fputc('\n', to);
	judgement_text("fixed K", json_object_get(published, "fixed_k"), to);
	judgement_text("cascade", json_object_get(published, "cascade"), to);
	const json_t *bounds = json_object_get(published, "bounds");
	fprintf(to, "bounds: %.0f of %.0f hold\n", number(bounds, "held"),
		number(bounds, "stated"));
}

void sim_report_text(const json_t *report, FILE *to)
{
	size_t i;
	const json_t *cell, *cells = json_object_get(report, "cells");
	fprintf(to, "%s\n", text(report, "about"));
	json_array_foreach(cells, i, cell) cell_text(cell, to);
	if (json_object_get(report, "mix"))
		mix_text(json_object_get(report, "mix"), to);
	if (json_object_get(report, "published"))
		published_text(json_object_get(report, "published"), to);
}
