#include "services/gateway/metrics.h"

#include "services/gateway/metrics_print.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* Seconds, from what a small model takes for a token to what a long prompt takes. */
static const double bounds[METRICS_BOUNDS] = {
	0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300};

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
	metrics_time(&metrics->prefill_s, (double)usage->prefill_ns / 1e9);
	if (usage->output_tokens > 1)
		metrics_time(&metrics->token_s,
			(double)usage->decode_ns / 1e9 / (double)(usage->output_tokens - 1));
}

void metrics_line(struct text *out, const char *format, ...)
{
	char line[512];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	text_add_string(out, line);
}

void metrics_head(struct text *out, const char *name, const char *type, const char *help)
{
	metrics_line(out, "# HELP outrider_%s %s\n# TYPE outrider_%s %s\n", name, help, name, type);
}

void metrics_counter(struct text *out, const char *name, const char *help, uint64_t value)
{
	metrics_head(out, name, "counter", help);
	metrics_line(out, "outrider_%s %" PRIu64 "\n", name, value);
}

void metrics_gauge(struct text *out, const char *name, const char *help, double value)
{
	metrics_head(out, name, "gauge", help);
	if (isfinite(value))
		metrics_line(out, "outrider_%s %.17g\n", name, value);
}

static void times(
	struct text *out, const char *name, const char *help, const struct histogram *histogram)
{
	uint64_t n = 0;

	metrics_head(out, name, "histogram", help);
	for (size_t i = 0; i < METRICS_BOUNDS; i++) {
		n += histogram->below[i];
		metrics_line(
			out, "outrider_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], n);
	}
	n += histogram->below[METRICS_BOUNDS];
	metrics_line(out, "outrider_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, n);
	metrics_line(out, "outrider_%s_sum %.9g\noutrider_%s_count %" PRIu64 "\n", name,
		histogram->sum, name, n);
}

/* Prints the values up to the last that is not 0. */
static void each(struct text *out, const char *name, const char *help, const char *label,
	const uint64_t *values, size_t first)
{
	size_t n = METRICS_POSITIONS;

	while (n > 0 && values[n - 1] == 0)
		n--;
	metrics_head(out, name, "counter", help);
	for (size_t i = 0; i < n; i++)
		metrics_line(out, "outrider_%s{%s=\"%zu\"} %" PRIu64 "\n", name, label, i + first,
			values[i]);
}

static void print_http(const struct metrics *metrics, struct text *out)
{
	metrics_head(out, "http_responses_total", "counter",
		"HTTP responses, by status; 499: the client left before the end.");
	for (size_t i = 0; i < METRICS_STATUSES; i++)
		if (metrics->responses[i])
			metrics_line(out,
				"outrider_http_responses_total{status=\"%zu\"} %" PRIu64 "\n", i,
				metrics->responses[i]);
	metrics_gauge(
		out, "http_connections", "Open HTTP connections.", (double)metrics->connections);
	metrics_gauge(out, "http_requests_open", "Requests whose response is not all sent.",
		(double)metrics->requests_open);
	metrics_gauge(out, "http_answers_running", "Answers that the verifier was asked for.",
		(double)metrics->streams);
	metrics_gauge(out, "http_answers_waiting",
		"Answers that wait in the gateway until the verifier has room.",
		(double)metrics->streams_waiting);
	metrics_head(out, "http_limited_total", "counter",
		"Requests refused because of a limit of their API key.");
	for (size_t i = LIMITS_NONE + 1; i < LIMITS_KINDS; i++)
		metrics_line(out, "outrider_http_limited_total{limit=\"%s\"} %" PRIu64 "\n",
			limits_names[i], metrics->limited[i]);
	metrics_counter(out, "http_received_bytes_total", "Bytes of request bodies.",
		metrics->received_bytes);
	metrics_counter(
		out, "http_sent_bytes_total", "Bytes of response bodies.", metrics->sent_bytes);
}

void metrics_print(const struct metrics *metrics, const struct watch_news *news, struct text *out)
{
	metrics_service(news, out);
	print_http(metrics, out);
	metrics_counter(out, "prompt_tokens_total", "Tokens of prompts.", metrics->prompt_tokens);
	metrics_counter(
		out, "completion_tokens_total", "Tokens of answers.", metrics->completion_tokens);
	metrics_counter(out, "drafted_tokens_total", "Drafted tokens.", metrics->drafted);
	metrics_counter(out, "accepted_tokens_total", "Drafted tokens that were accepted.",
		metrics->accepted);
	metrics_counter(out, "answer_restarts_total",
		"Restarts of the verifier that answers went through.", metrics->restarts);
	each(out, "drafted_at_total", "Drafted tokens, by position in the draft.", "position",
		metrics->drafted_at, 1);
	each(out, "accepted_at_total", "Accepted tokens, by position in the draft.", "position",
		metrics->accepted_at, 1);
	each(out, "iterations_total", "Passes of answers, by draft length K.", "k", metrics->k_used,
		0);
	times(out, "time_to_first_token_seconds", "From the request to the first token.",
		&metrics->first_token_s);
	times(out, "time_per_token_seconds", "Mean time of a token after the first, per answer.",
		&metrics->token_s);
	times(out, "queue_seconds", "From the request until the verifier began with it.",
		&metrics->queue_s);
	times(out, "prefill_seconds", "Time that the verifier took for the prompt.",
		&metrics->prefill_s);
}
