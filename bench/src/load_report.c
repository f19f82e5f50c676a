/* load: what the clients saw, as a table, as JSON, and as a picture. */
#include "bench/src/load.h"

#include "bench/src/picture.h"
#include "shared/base/cpu_name.h"
#include "shared/base/plural.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The value below which the share q of the sorted values is (nearest rank). */
static double quantile(const double *sorted, size_t n, double q)
{
	size_t rank = (size_t)ceil(q * (double)n);

	return sorted[rank > 0 ? rank - 1 : 0];
}

static struct load_times times_of(double *values, size_t n)
{
	struct load_times t = {.n = n};

	if (n == 0)
		return t;
	qsort(values, n, sizeof *values, compare);
	for (size_t i = 0; i < n; i++)
		t.mean += values[i] / (double)n;
	t.p50 = quantile(values, n, 0.5);
	t.p90 = quantile(values, n, 0.9);
	t.p95 = quantile(values, n, 0.95);
	t.p99 = quantile(values, n, 0.99);
	t.most = values[n - 1];
	return t;
}

static double ttft_ms(const struct load_result *r)
{
	return (r->first_s - r->due_s) * 1e3;
}

/* Mean time of the tokens behind the first one; an answer of one token has none: 0. */
static double tpot_ms(const struct load_result *r)
{
	return r->tokens > 1 ? (r->last_s - r->first_s) * 1e3 / (r->tokens - 1) : 0;
}

static bool is_good(const struct load_options *o, const struct load_result *r)
{
	return (o->ttft_ms <= 0 || ttft_ms(r) <= (double)o->ttft_ms) &&
	       (o->tpot_ms <= 0 || tpot_ms(r) <= (double)o->tpot_ms);
}

struct sums {
	double output, prompt, cached, iterations, whole_s, good_tokens;
};

static void add_answer(const struct load_options *o, const struct load_result *r,
	struct load_summary *s, struct load_curves *c, struct sums *sums)
{
	c->wait[c->n_wait++] = (r->sent_s - r->due_s) * 1e3;
	c->ttft[c->n_ttft++] = ttft_ms(r);
	if (r->tokens > 1)
		c->tpot[c->n_tpot++] = tpot_ms(r);
	c->whole[c->n_whole++] = (r->done_s - r->due_s) * 1e3;
	sums->prompt += r->prompt_tokens;
	sums->cached += r->cached;
	sums->iterations += r->iterations;
	if (is_good(o, r)) {
		s->good++;
		sums->good_tokens += r->tokens;
	}
}

int load_summarise(const struct load_options *options, const struct load_run *run,
	struct load_summary *out, struct load_curves *curves)
{
	struct sums sums = {0};
	double answered_tokens = 0;

	*out = (struct load_summary){0};
	*curves = (struct load_curves){0};
	double *values = calloc(4 * run->n, sizeof *values);
	if (!values)
		return -ENOMEM;
	curves->wait = values;
	curves->ttft = values + run->n;
	curves->tpot = values + 2 * run->n;
	curves->whole = values + 3 * run->n;
	for (size_t i = 0; i < run->n; i++) {
		const struct load_result *r = &run->results[i];

		out->answered += r->outcome == LOAD_ANSWERED;
		out->failed += r->outcome == LOAD_FAILED;
		out->left += r->outcome == LOAD_LEFT;
		out->not_sent += r->outcome == LOAD_NOT_SENT;
		sums.output += r->tokens;
		if (r->outcome != LOAD_NOT_SENT)
			sums.whole_s += r->done_s - r->sent_s;
		if (r->outcome == LOAD_ANSWERED) {
			answered_tokens += r->tokens;
			add_answer(options, r, out, curves, &sums);
		}
	}
	out->wait = times_of(curves->wait, curves->n_wait);
	out->ttft = times_of(curves->ttft, curves->n_ttft);
	out->tpot = times_of(curves->tpot, curves->n_tpot);
	out->whole = times_of(curves->whole, curves->n_whole);
	double seconds = run->seconds > 0 ? run->seconds : 1;
	out->output_per_s = sums.output / seconds;
	out->prompt_per_s = sums.prompt / seconds;
	out->cached_share = sums.prompt > 0 ? sums.cached / sums.prompt : 0;
	out->tokens_per_iteration = sums.iterations > 0 ? answered_tokens / sums.iterations : 0;
	out->in_progress = sums.whole_s / seconds;
	out->good_per_s = (double)out->good / seconds;
	out->good_tokens_per_s = sums.good_tokens / seconds;
	return 0;
}

void load_curves_free(struct load_curves *curves)
{
	free(curves->wait); /* the other three are parts of it */
	*curves = (struct load_curves){0};
}

static void table_row(const char *name, const struct load_times *t, FILE *to)
{
	fprintf(to, "%-24s", name);
	if (t->n == 0)
		fputs("  no answer\n", to);
	else
		fprintf(to, " %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n", t->mean, t->p50, t->p90,
			t->p95, t->p99, t->most);
}

/* What arrived, in words. */
static void print_load(
	const struct load_options *o, const struct load_run *run, size_t sent, FILE *to)
{
	if (o->trace)
		fprintf(to, "%s, times divided by %g, lengths multiplied by %g", o->trace,
			(double)o->speed, (double)o->scale);
	else if (strcmp(o->arrivals, "closed") == 0)
		fputs("closed: each client sends when it has its answer", to);
	else
		fprintf(to, "%s, %g requests/s", o->arrivals, (double)o->rate);
	fprintf(to, "; %u client%s; %zu requests in %.1f s", o->clients, plural(o->clients), sent,
		run->seconds);
	if (o->workload)
		fprintf(to, "; prompts of %s, answers of %s tokens", o->workload, o->output_range);
	else if (!o->trace)
		fprintf(to, "; prompts of %s tokens, answers of %s", o->prompt_range,
			o->output_range);
	if (o->shared)
		fprintf(to, ", the first %u shared by %u group%s", o->shared, o->groups,
			plural(o->groups));
}

static void print_goodput(const struct load_options *o, const struct load_run *run,
	const struct load_summary *s, FILE *to)
{
	if (o->ttft_ms <= 0 && o->tpot_ms <= 0)
		return;
	fprintf(to, "goodput: %.3f requests/s and %.1f tokens/s of answers with", s->good_per_s,
		s->good_tokens_per_s);
	if (o->ttft_ms > 0)
		fprintf(to, " TTFT up to %g ms", (double)o->ttft_ms);
	if (o->tpot_ms > 0)
		fprintf(to, "%s TPOT up to %g ms", o->ttft_ms > 0 ? " and" : "",
			(double)o->tpot_ms);
	fprintf(to, ": %.1f %% of the requests\n",
		100 * (double)s->good / (double)(run->n - s->not_sent));
}

void load_print(const struct load_options *options, const struct load_run *run,
	const struct load_summary *s, FILE *to)
{
	char cpu[CPU_NAME_BYTES];

	cpu_name(cpu);
	fprintf(to, "%s\n", cpu);
	print_load(options, run, run->n - s->not_sent, to);
	fprintf(to, "\n\n%-24s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "50 %", "90 %", "95 %",
		"99 %", "most");
	table_row("TTFT", &s->ttft, to);
	table_row("TPOT", &s->tpot, to);
	table_row("the whole answer", &s->whole, to);
	table_row("until a client was free", &s->wait, to);
	fprintf(to,
		"\n%zu answered, %zu failed, %zu left early; refused and sent again: "
		"%u times; in progress: %.1f in the mean, at most %u\n",
		s->answered, s->failed, s->left, run->refused, s->in_progress,
		run->in_progress_most);
	fprintf(to,
		"%.1f tokens/s of answers; %.1f tokens/s of prompts, %.1f %% of which were there "
		"already; %.2f tokens per iteration\n",
		s->output_per_s, s->prompt_per_s, 100 * s->cached_share, s->tokens_per_iteration);
	print_goodput(options, run, s, to);
	for (uint32_t i = 0; i < run->n_reasons; i++)
		fprintf(to, "%s%8u  %s\n", i == 0 ? "\nfailed because (N: a number):\n" : "",
			run->reasons[i].n, run->reasons[i].text);
}

static json_t *times_json(const struct load_times *t)
{
	return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "n", (json_int_t)t->n, "mean",
		t->mean, "p50", t->p50, "p90", t->p90, "p95", t->p95, "p99", t->p99, "most",
		t->most);
}

void load_print_json(const struct load_options *options, const struct load_run *run,
	const struct load_summary *s, FILE *to)
{
	char cpu[CPU_NAME_BYTES];
	json_t *reasons = json_array();

	bool has_rate = !options->trace && strcmp(options->arrivals, "closed") != 0;
	json_t *rate = has_rate ? json_real((double)options->rate) : json_null();

	cpu_name(cpu);
	for (uint32_t i = 0; i < run->n_reasons; i++)
		json_array_append_new(
			reasons, json_pack("{s:s, s:i}", "reason", run->reasons[i].text, "n",
					 (int)run->reasons[i].n));
	json_t *all = json_pack("{s:s, s:s, s:o, s:i, s:I, s:f}", "cpu", cpu, "arrivals",
		options->trace ? options->trace : options->arrivals, "rate", rate, "clients",
		(int)options->clients, "requests", (json_int_t)(run->n - s->not_sent), "seconds",
		run->seconds);
	json_t *counts = json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "answered",
		(json_int_t)s->answered, "failed", (json_int_t)s->failed, "left",
		(json_int_t)s->left, "good", (json_int_t)s->good, "refused",
		(json_int_t)run->refused, "failures", reasons);
	json_t *times = json_pack("{s:o, s:o, s:o, s:o}", "ttft_ms", times_json(&s->ttft),
		"tpot_ms", times_json(&s->tpot), "whole_ms", times_json(&s->whole), "wait_ms",
		times_json(&s->wait));
	json_t *rates = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "output_tokens_per_s",
		s->output_per_s, "prompt_tokens_per_s", s->prompt_per_s, "cached_share",
		s->cached_share, "tokens_per_iteration", s->tokens_per_iteration,
		"goodput_requests_per_s", s->good_per_s, "goodput_tokens_per_s",
		s->good_tokens_per_s, "in_progress", s->in_progress, "in_progress_most",
		(int)run->in_progress_most);
	json_object_update(all, counts);
	json_object_update(all, times);
	json_object_update(all, rates);
	json_dumpf(all, to, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
	fputc('\n', to);
	json_decref(counts);
	json_decref(times);
	json_decref(rates);
	json_decref(all);
}

/* The share of the answers that took at most as long: one point for each answer. */
static void plot_share(const double *sorted, size_t n, FILE *to)
{
	for (size_t i = 0; i < n; i++)
		fprintf(to, "%g %g\n", sorted[i], 100 * (double)(i + 1) / (double)n);
	if (n == 0)
		fputs("NaN NaN\n", to);
	fputs("e\n", to);
}

/* Each answer when it was due, with its TTFT or its TPOT. */
static void plot_over_time(
	const struct load_run *run, double (*measure)(const struct load_result *), FILE *to)
{
	fputs("NaN NaN\n", to); /* gnuplot wants a line */
	for (size_t i = 0; i < run->n; i++)
		if (run->results[i].outcome == LOAD_ANSWERED)
			fprintf(to, "%g %g\n", run->results[i].due_s, measure(&run->results[i]));
	fputs("e\n", to);
}

int load_plot(const struct load_options *options, const struct load_run *run,
	const struct load_curves *curves, struct error *err)
{
	FILE *to = picture_open(options->plot, 900, 700, err);

	if (!to)
		return -EIO;
	fputs("set multiplot layout 2,1\nset grid\nset logscale x\nset key bottom right\n"
	      "set xlabel 'ms, from when the request was due'\nset ylabel 'answers, percent'\n"
	      "set yrange [0:100]\n"
	      "plot '-' with steps lw 2 title 'TTFT', '-' with steps lw 2 title 'TPOT', '-' "
	      "with steps lw 2 title 'the whole answer'\n",
		to);
	plot_share(curves->ttft, curves->n_ttft, to);
	plot_share(curves->tpot, curves->n_tpot, to);
	plot_share(curves->whole, curves->n_whole, to);
	fputs("unset logscale x\nset logscale y\nset yrange [*:*]\nset key top right\n", to);
	fputs("set xlabel 's, when the request was due'\nset ylabel 'ms'\n", to);
	fputs("plot '-' with points pt 7 ps 0.4 title 'TTFT', '-' with points pt 7 ps 0.4 title "
	      "'TPOT'\n",
		to);
	plot_over_time(run, ttft_ms, to);
	plot_over_time(run, tpot_ms, to);
	return picture_close(to, err);
}
