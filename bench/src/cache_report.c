#include "bench/src/cache_report.h"

#include "bench/src/picture.h"

#include "services/expert-cache/hints/hint_quality.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

uint32_t replay_slots(const struct cache_trace *trace, double percent)
{
	return (uint32_t)ceil(cache_trace_experts(trace) * percent / 100 - 1e-9);
}

static void table_row(const struct replay_plan *plan, const char *name,
	const struct cache_trace *trace, const struct replay_result *result,
	const struct replay_result *bound, FILE *to)
{
	const struct replay_totals *t = &result->decode;
	double tokens = (double)t->tokens, kib = (double)trace->expert_bytes / 1024;
	(void)plan;
	fprintf(to, "  %-10s %6.1f %6.1f %8.2f %9.0f %7.2f %8.0f %8.0f %8.2f %6.0f\n", name,
		100 * ratio((double)t->hits, (double)t->uses),
		100 * ratio((double)t->late, (double)t->uses), ratio((double)t->misses, tokens),
		kib * ratio((double)t->loads, tokens),
		ratio((double)t->loads, (double)bound->decode.loads),
		ratio((double)t->stall_ns, tokens) / 1e3, ratio((double)t->time_ns, tokens) / 1e3,
		ratio((double)t->prefetches, tokens),
		100 * ratio((double)t->prefetches_used, (double)t->prefetches_judged));
}

static void table_hints(
	const struct cache_trace *trace, const struct trace_quality *quality, FILE *to)
{
	fprintf(to, "\n%s; hints: recall %%, precision %%, us ahead\n", trace->name);
	for (unsigned s = 0; s <= HINT_SOURCES; s++)
		if (quality[s].hinted > 0)
			fprintf(to, "  %-10s %6.1f %6.1f %8.0f\n", hint_source_names[s],
				100 * ratio((double)quality[s].found, (double)quality[s].used),
				100 * ratio((double)quality[s].found, (double)quality[s].hinted),
				ratio((double)quality[s].lead_ns, (double)quality[s].found) / 1e3);
}

void replay_table(const struct replay_plan *plan, struct replay_result *results, FILE *to)
{
	fprintf(to,
		"The link: %.2f GB/s, %.0f us latency. Decoding only; per emitted token.\n"
		"hits: resident when asked for; late: on its way then; bytes: all loads, and their "
		"ratio to Belady's;\n"
		"stall: waiting for experts; time: all of it; prefetches, and how many of them "
		"were used before they left.\n"
		"recall: the share of the used experts that were hinted for in time, in layers "
		"that were hinted for; precision: the share of the hints that were used.\n",
		plan->link.bytes_per_s / 1e9, (double)plan->link.latency_ns / 1e3);
	for (size_t t = 0; t < plan->n_traces; t++) {
		const struct cache_trace *trace = &plan->traces[t];
		if (trace->n_hints > 0)
			table_hints(trace, plan->quality[t], to);
		for (size_t b = 0; b < plan->n_budgets; b++) {
			struct replay_result *bound =
				replay_cell(plan, results, t, b, plan->n_policies - 1);
			fprintf(to, "\n%s; %g%% = %u of %u experts\n", trace->name,
				plan->budgets[b], replay_slots(trace, plan->budgets[b]),
				cache_trace_experts(trace));
			fprintf(to, "  %-10s %6s %6s %8s %9s %7s %8s %8s %8s %6s\n", "policy",
				"hits %", "late %", "miss/tok", "KiB/tok", "/Belady", "stall us",
				"time us", "pre/tok", "used %");
			for (size_t p = 0; p < plan->n_policies; p++)
				table_row(plan, plan->policies[p].name, trace,
					replay_cell(plan, results, t, b, p), bound, to);
		}
	}
}

static json_t *totals_json(const struct replay_totals *t, uint64_t expert_bytes)
{
	uint64_t bytes = t->loads * expert_bytes;
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "passes",
		(json_int_t)t->passes, "tokens", (json_int_t)t->tokens, "uses", (json_int_t)t->uses,
		"hits", (json_int_t)t->hits, "late", (json_int_t)t->late, "misses",
		(json_int_t)t->misses, "loads", (json_int_t)t->loads, "bytes", (json_int_t)bytes,
		"prefetches", (json_int_t)t->prefetches, "prefetches_used",
		(json_int_t)t->prefetches_used, "prefetches_wasted",
		(json_int_t)(t->prefetches_judged - t->prefetches_used), "stall_ns",
		(json_int_t)t->stall_ns, "time_ns", (json_int_t)t->time_ns);
}

static json_t *hints_json(const struct replay_plan *plan)
{
	json_t *rows = json_array();
	for (size_t t = 0; t < plan->n_traces; t++)
		for (unsigned s = 0; s <= HINT_SOURCES; s++) {
			const struct trace_quality *q = &plan->quality[t][s];
			if (q->hinted == 0)
				continue;
			json_array_append_new(rows,
				json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "trace",
					plan->files[t], "name", plan->traces[t].name, "source",
					hint_source_names[s], "passes", (json_int_t)q->passes,
					"used", (json_int_t)q->used, "found", (json_int_t)q->found,
					"hinted", (json_int_t)q->hinted, "late",
					(json_int_t)q->late, "lead_ns", (json_int_t)q->lead_ns));
		}
	return rows;
}

json_t *replay_json(const struct replay_plan *plan, struct replay_result *results)
{
	json_t *rows = json_array();
	for (size_t t = 0; t < plan->n_traces; t++)
		for (size_t b = 0; b < plan->n_budgets; b++)
			for (size_t p = 0; p < plan->n_policies; p++) {
				const struct cache_trace *trace = &plan->traces[t];
				struct replay_result *cell = replay_cell(plan, results, t, b, p);
				json_array_append_new(rows,
					json_pack("{s:s,s:s,s:i,s:f,s:I,s:s,s:o,s:o}", "trace",
						plan->files[t], "name", trace->name, "k",
						(int)trace->k, "budget_percent", plan->budgets[b],
						"slots",
						(json_int_t)replay_slots(trace, plan->budgets[b]),
						"policy", plan->policies[p].name, "decode",
						totals_json(&cell->decode, trace->expert_bytes),
						"prefill",
						totals_json(&cell->prefill, trace->expert_bytes)));
			}
	return json_pack("{s:f,s:I,s:o,s:o}", "link_bytes_per_s", plan->link.bytes_per_s,
		"link_latency_ns", (json_int_t)plan->link.latency_ns, "hints", hints_json(plan),
		"rows", rows);
}

/* Hits of all traces together. */
static double hit_percent(
	const struct replay_plan *plan, struct replay_result *results, size_t budget, size_t policy)
{
	double hits = 0, uses = 0;
	for (size_t t = 0; t < plan->n_traces; t++) {
		const struct replay_totals *totals =
			&replay_cell(plan, results, t, budget, policy)->decode;
		hits += (double)totals->hits;
		uses += (double)totals->uses;
	}
	return 100 * ratio(hits, uses);
}

static void plot_script(const struct replay_plan *plan, struct replay_result *results, FILE *to)
{
	fputs("set title \"Experts that were resident when asked for\" noenhanced\n"
	      "set xlabel 'budget, percent of the experts'\nset ylabel 'hits, percent'\n"
	      "set yrange [0:100]\nset grid\nset key bottom right\nplot ",
		to);
	for (size_t p = 0; p < plan->n_policies; p++)
		fprintf(to, "%s'-' with linespoints lw 2 title '%s'", p > 0 ? ", " : "",
			plan->policies[p].name);
	fputc('\n', to);
	for (size_t p = 0; p < plan->n_policies; p++) {
		for (size_t b = 0; b < plan->n_budgets; b++)
			fprintf(to, "%g %g\n", plan->budgets[b], hit_percent(plan, results, b, p));
		fputs("e\n", to);
	}
}

int replay_plot(const struct replay_plan *plan, struct replay_result *results)
{
	struct error err = {""};
	int code = picture_check(plan->plot, &err);
	FILE *gnuplot = code == 0 ? picture_open(plan->plot, 800, 500, &err) : NULL;

	if (gnuplot) {
		plot_script(plan, results, gnuplot);
		code = picture_close(gnuplot, &err);
	} else if (code == 0) {
		code = -EIO;
	}
	if (code < 0)
		fprintf(stderr, "outrider-bench cache: %s\n", err.text);
	return code;
}
