/*
 * outrider-bench load: sends requests to a running service as many clients would, at times that do
 * not depend on its answers, and tells how long each client waited. One thread; one connection for
 * each client.
 */
#pragma once

#include "bench/src/load_plan.h"
#include "client/include/outrider.h"

#include <jansson.h>
#include <stdio.h>

enum { LOAD_CLIENTS = 1000, LOAD_REASONS = 16, LOAD_REASON_BYTES = 160 };

struct load_options {
	const char *runtime_dir, *arrivals, *trace, *corpus, *workload;
	const char *prompt_range, *output_range, *drafter, *format, *plot;
	struct load_range prompt_tokens, output_tokens;
	uint32_t clients, requests, seconds, shared, groups, leave, seed, retry_ms;
	uint32_t k; /* UINT32_MAX: the policy chooses */
	float rate, speed, scale, temperature, ttft_ms, tpot_ms;
	bool json, help;
};

enum load_outcome { LOAD_NOT_SENT, LOAD_ANSWERED, LOAD_FAILED, LOAD_LEFT };

/* One request. Times in seconds since the measurement began; first_s to done_s of requests that got
 * that far. */
struct load_result {
	enum load_outcome outcome;
	/* due_s: planned; sent_s: a client was free and sent it */
	double due_s, sent_s, first_s, last_s, done_s;
	uint32_t tokens, prompt_tokens, cached, iterations;
	uint32_t reason; /* LOAD_FAILED: the first index of load_run.reasons */
	uint32_t leaves_at; /* its client leaves when it has that many tokens; UINT32_MAX: stays */
};

/* What a run has found. */
struct load_run {
	struct load_result *results; /* [n], owned */
	size_t n;
	double seconds; /* from the first request that was due to the last end */
	uint32_t in_progress_most, refused; /* refused: and sent again */
	/* Why requests failed, with N for the numbers in it; the last one stands for all further
	 * ones. */
	struct load_reason {
		char text[LOAD_REASON_BYTES];
		uint32_t n;
	} reasons[LOAD_REASONS];
	uint32_t n_reasons;
};

int bench_load(int argc, char **argv);

/* load_run.c. Sends all requests of the plan and waits for their ends. plan->arrivals are in
 * order of time. */
int load_run(const struct load_options *options, const struct load_plan *plan, struct load_run *run,
	struct error *err);

/* load_report.c. Quantiles of one measure over the answered requests, in ms. */
struct load_times {
	size_t n;
	double mean, p50, p90, p95, p99, most;
};

struct load_summary {
	size_t answered, failed, left, not_sent, good;
	struct load_times wait, ttft, tpot, whole;
	double output_per_s, prompt_per_s, cached_share, tokens_per_iteration, in_progress;
	double good_per_s, good_tokens_per_s; /* requests and tokens within the targets */
};

/* *sorted of each measure: [n] ms, owned by the caller (load_curves_free); for the picture. */
struct load_curves {
	double *wait, *ttft, *tpot, *whole;
	size_t n_wait, n_ttft, n_tpot, n_whole;
};

int load_summarise(const struct load_options *options, const struct load_run *run,
	struct load_summary *out, struct load_curves *curves);
void load_curves_free(struct load_curves *curves);
void load_print(const struct load_options *options, const struct load_run *run,
	const struct load_summary *s, FILE *to);
void load_print_json(const struct load_options *options, const struct load_run *run,
	const struct load_summary *s, FILE *to);
int load_plot(const struct load_options *options, const struct load_run *run,
	const struct load_curves *curves, struct error *err);
