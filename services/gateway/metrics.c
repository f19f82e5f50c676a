#include "services/gateway/metrics.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* Seconds; from what a small model needs for a token to what a long prompt needs. */
static const double bounds[METRICS_BOUNDS] = {
	0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60};

void metrics_time(struct histogram *histogram, double seconds)
{
	size_t i = 0;

	while (i < METRICS_BOUNDS && seconds > bounds[i])
		i++;
	histogram->below[i]++;
	histogram->sum += seconds;
}

static void add_each(uint64_t *to, const uint32_t *from, size_t n)
{
	for (size_t i = 0; i < n && i < METRICS_POSITIONS; i++)
		to[i] += from[i];
}

void metrics_answer(struct metrics *metrics, const struct outrider_usage *usage)
{
	metrics->prompt_tokens += usage->prompt_tokens;
	metrics->completion_tokens += usage->output_tokens;
	metrics->drafted += usage->drafted;
	metrics->accepted += usage->accepted;
	metrics->restarts += usage->restarts;
	add_each(metrics->drafted_at, usage->drafted_at, usage->n_drafted_at);
	add_each(metrics->accepted_at, usage->accepted_at, usage->n_accepted_at);
	add_each(metrics->k_used, usage->k_used, usage->n_k_used);
	if (usage->output_tokens > 1)
		metrics_time(&metrics->token_s,
			(double)usage->decode_ns / 1e9 / (double)(usage->output_tokens - 1));
}

static void print(struct text *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void print(struct text *out, const char *format, ...)
{
	char line[512];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	text_add_string(out, line);
}

static void head(struct text *out, const char *name, const char *type, const char *help)
{
	print(out, "# HELP outrider_%s %s\n# TYPE outrider_%s %s\n", name, help, name, type);
}

static void one(
	struct text *out, const char *name, const char *type, const char *help, uint64_t value)
{
	head(out, name, type, help);
	print(out, "outrider_%s %" PRIu64 "\n", name, value);
}

static void times(
	struct text *out, const char *name, const char *help, const struct histogram *histogram)
{
	uint64_t n = 0;

	head(out, name, "histogram", help);
	for (size_t i = 0; i < METRICS_BOUNDS; i++) {
		n += histogram->below[i];
		print(out, "outrider_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], n);
	}
	n += histogram->below[METRICS_BOUNDS];
	print(out, "outrider_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, n);
	print(out, "outrider_%s_sum %.9g\noutrider_%s_count %" PRIu64 "\n", name, histogram->sum,
		name, n);
}

static void each(struct text *out, const char *name, const char *help, const char *label,
	const uint64_t *values, size_t first)
{
	head(out, name, "counter", help);
	for (size_t i = 0; i < METRICS_POSITIONS; i++)
		if (values[i])
			print(out, "outrider_%s{%s=\"%zu\"} %" PRIu64 "\n", name, label, i + first,
				values[i]);
}

static void print_service(const struct watch_news *news, struct text *out)
{
	one(out, "ready", "gauge", "Whether the verifier takes requests.", news->ready);
	one(out, "processes", "gauge", "Processes of the service that answer.", news->processes);
	one(out, "sessions_running", "gauge", "Sessions that are computed.", news->running);
	one(out, "sessions_waiting", "gauge", "Sessions that wait for a place.", news->waiting);
	one(out, "service_output_tokens_total", "counter",
		"Tokens that the verifier has emitted since it started, for all its clients.",
		news->output_tokens);
	one(out, "expert_hits_total", "counter",
		"Experts that were in memory when they were needed.", news->expert_hits);
	one(out, "expert_misses_total", "counter", "Experts that were waited for.",
		news->expert_misses);
	one(out, "expert_budget_bytes", "gauge", "Memory for experts.", news->expert_bytes);
}

void metrics_print(const struct metrics *metrics, const struct watch_news *news, struct text *out)
{
	print_service(news, out);
	head(out, "http_responses_total", "counter",
		"HTTP responses, by status; 499: the client left before the end.");
	for (size_t i = 0; i < METRICS_STATUSES; i++)
		if (metrics->responses[i])
			print(out, "outrider_http_responses_total{status=\"%zu\"} %" PRIu64 "\n", i,
				metrics->responses[i]);
	one(out, "http_connections", "gauge", "Open HTTP connections.", metrics->connections);
	one(out, "prompt_tokens_total", "counter", "Tokens of prompts.", metrics->prompt_tokens);
	one(out, "completion_tokens_total", "counter", "Tokens of answers.",
		metrics->completion_tokens);
	one(out, "drafted_tokens_total", "counter", "Drafted tokens.", metrics->drafted);
	one(out, "accepted_tokens_total", "counter", "Drafted tokens that were accepted.",
		metrics->accepted);
	one(out, "answer_restarts_total", "counter",
		"Restarts of the verifier that answers went through.", metrics->restarts);
	each(out, "drafted_at_total", "Drafted tokens, by position in the draft.", "position",
		metrics->drafted_at, 1);
	each(out, "accepted_at_total", "Accepted tokens, by position in the draft.", "position",
		metrics->accepted_at, 1);
	each(out, "iterations_total", "Passes, by draft length K.", "k", metrics->k_used, 0);
	times(out, "time_to_first_token_seconds", "From the request to the first token.",
		&metrics->first_token_s);
	times(out, "time_per_token_seconds", "Mean time of a token after the first, per answer.",
		&metrics->token_s);
}
