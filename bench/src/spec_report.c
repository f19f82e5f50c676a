/* outrider-bench spec: what came of it (spec.h). */
#include "bench/src/spec.h"

#include "shared/base/cpu_name.h"
#include "shared/base/median.h"
#include "shared/base/plural.h"

#include <math.h>
#include <string.h>

static double ratio(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : 0;
}

static double middle(const double *values, size_t n)
{
	double sorted[SPEC_ROUNDS];

	memcpy(sorted, values, n * sizeof(*values));
	return median(sorted, n);
}

static double perplexity(const struct spec_totals *t)
{
	return t->audited ? exp(t->log_loss / (double)t->audited) : 0;
}

static double experts(const struct spec_cell *cell)
{
	return ratio(cell->totals.usage.unique_experts, cell->totals.usage.iterations);
}

static void table_row(const struct spec_cell *cell, const struct spec_cell *plain, FILE *to)
{
	const struct spec_totals *t = &cell->totals;
	const char *budget = cell->method ? cell->budget->name : "off";

	fprintf(to, "%-11s %5u %5u %-19s %9.1f %6.2f %6.2f %8.1f %6.2f %9.0f %8.0f",
		cell->method ? cell->method->name : "K = 0", cell->depth, cell->nodes, budget,
		middle(cell->per_s, cell->n_rounds), middle(cell->ratio, cell->n_rounds),
		ratio(t->usage.tokens, t->usage.iterations), experts(cell),
		experts(plain) > 0 ? experts(cell) / experts(plain) : 0,
		ratio(t->usage.verify_ns, t->usage.iterations) / 1e3,
		ratio(t->usage.draft_ns, t->usage.iterations) / 1e3);
	fprintf(to, " %7.1f", 100 * ratio(t->changed, t->usage.tokens));
	if (t->audited)
		fprintf(to, " %7.1f %7.3f", 100 * ratio(t->other, t->audited), perplexity(t));
	else
		fprintf(to, " %7s %7s", "", "");
	if (t->asked)
		fprintf(to, " %5.1f %5.1f", 100 * ratio(t->right, t->asked),
			100 * ratio(t->same, t->asked));
	fputc('\n', to);
}

void spec_table(const struct spec_options *options, struct spec_cell *cells, size_t n, FILE *to)
{
	char cpu[CPU_NAME_BYTES];

	cpu_name(cpu);
	fprintf(to, "%s, median of %zu round%s; %s\n\n", options->file, cells[0].n_rounds,
		plural(cells[0].n_rounds), cpu);
	fprintf(to, "%-11s %5s %5s %-19s %9s %6s %6s %8s %6s %9s %8s %7s %7s %7s %5s %5s\n",
		"method", "depth", "nodes", "budget", "tokens/s", "ratio", "tok/it", "experts",
		"x one", "verify us", "draft us", "changed", "audit", "ppl", "right", "same");
	for (size_t i = 0; i < n; i++)
		table_row(&cells[i], &cells[0], to);
	fputs("\nratio: to K = 0 of the round. experts: distinct, summed over the layers, per "
	      "iteration; x one: beside those of K = 0.\n"
	      "changed: tokens that are not those of K = 0 at their places, %; audit: tokens in "
	      "whose place the model itself picks another\n"
	      "behind the same beginning, %; ppl: perplexity of the answers under the model "
	      "itself; right: answers whose last number is right, %; same:\n"
	      "those whose last number is that of K = 0, %.\n",
		to);
}

static json_t *row_json(const struct spec_cell *cell)
{
	const struct spec_totals *t = &cell->totals;
	json_t *rounds = json_array(), *row = json_object();

	for (size_t i = 0; i < cell->n_rounds; i++)
		json_array_append_new(rounds, json_real(cell->per_s[i]));
	json_object_set_new(row, "method", json_string(cell->method ? cell->method->name : "none"));
	json_object_set_new(row, "budget", json_string(cell->method ? cell->budget->name : "off"));
	json_object_set_new(row, "depth", json_integer(cell->depth));
	json_object_set_new(row, "nodes", json_integer(cell->nodes));
	json_object_set_new(row, "width", json_integer(cell->width));
	json_object_set_new(row, "tokens_per_s", json_real(middle(cell->per_s, cell->n_rounds)));
	json_object_set_new(row, "ratio", json_real(middle(cell->ratio, cell->n_rounds)));
	json_object_set_new(row, "rounds", rounds);
	json_object_set_new(row, "tokens", json_integer((json_int_t)t->usage.tokens));
	json_object_set_new(row, "tokens_per_iteration",
		json_real(ratio(t->usage.tokens, t->usage.iterations)));
	json_object_set_new(row, "drafted", json_integer((json_int_t)t->usage.drafted));
	json_object_set_new(row, "accepted", json_integer((json_int_t)t->usage.accepted));
	json_object_set_new(row, "unique_experts_per_iteration", json_real(experts(cell)));
	json_object_set_new(
		row, "verify_us", json_real(ratio(t->usage.verify_ns, t->usage.iterations) / 1e3));
	json_object_set_new(
		row, "draft_us", json_real(ratio(t->usage.draft_ns, t->usage.iterations) / 1e3));
	json_object_set_new(row, "expert_hits", json_integer((json_int_t)t->usage.hits));
	json_object_set_new(row, "expert_misses", json_integer((json_int_t)t->usage.misses));
	json_object_set_new(row, "changed_share", json_real(ratio(t->changed, t->usage.tokens)));
	json_object_set_new(row, "audited", json_integer((json_int_t)t->audited));
	json_object_set_new(row, "audit_changed", json_integer((json_int_t)t->other));
	json_object_set_new(row, "perplexity", t->audited ? json_real(perplexity(t)) : json_null());
	json_object_set_new(row, "right", json_integer((json_int_t)t->right));
	json_object_set_new(row, "same", json_integer((json_int_t)t->same));
	json_object_set_new(row, "asked", json_integer((json_int_t)t->asked));
	return row;
}

json_t *spec_json(const struct spec_options *options, struct spec_cell *cells, size_t n)
{
	char cpu[CPU_NAME_BYTES];
	json_t *rows = json_array();

	cpu_name(cpu);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(rows, row_json(&cells[i]));
	return json_pack("{s:s,s:s,s:o}", "cpu", cpu, "workload", options->file, "rows", rows);
}
