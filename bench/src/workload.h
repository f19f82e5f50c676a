/*
 * outrider-bench workload: prompts of a JSONL file sent to the running service, once per K and round, the Ks in turn, so
 * that a machine that grows slower or faster touches all of them alike. Reports medians over the rounds.
 */
#pragma once

#include "client/include/outrider.h"
#include "shared/base/limits.h"

#include <jansson.h>
#include <stdio.h>

enum { WORKLOAD_KS = 20, WORKLOAD_ROUNDS = 99 };
#define WORKLOAD_K_AUTO (-1)

struct workload_options {
	const char *file, *runtime_dir, *drafter, *plot;
	int ks[WORKLOAD_KS];
	size_t n_ks;
	size_t rounds, limit, sessions;
	size_t seconds; /* no further round begins after them; 0: all rounds */
	uint32_t max_tokens; /* in the place of what the file says; 0: that */
	float temperature;
	bool ignore_eos, json;
};

/* What all rounds of one K gave; every member a uint64_t. */
struct workload_totals {
	uint64_t tokens, iterations, drafted, accepted, unique_experts, hits, misses;
	uint64_t decode_ns, draft_ns, verify_ns, sample_ns; /* sums over the sessions */
	uint64_t k_sum;
	uint64_t drafted_at[LIMIT_DRAFT_DEPTH], accepted_at[LIMIT_DRAFT_DEPTH];
};

struct workload_row {
	int k;
	size_t n_rounds;
	double tokens_per_s[WORKLOAD_ROUNDS];
	double median, low, high;
	struct workload_totals totals;
};

/* The subcommand; returns a sysexits status. */
int bench_workload(int argc, char **argv);

/* workload_run.c. Fills rows[0..n_ks-1]; 0, or -errno with the sentence on stderr. */
int workload_run(const struct workload_options *options, struct workload_row *rows);

/* workload_report.c */
void workload_table(
	const struct workload_options *options, const struct workload_row *rows, FILE *to);
json_t *workload_json(const struct workload_options *options, const struct workload_row *rows);
/* Whether there can be a picture of that name: 0, or -EINVAL with the sentence on stderr. */
int workload_plot_check(const struct workload_options *options);
/* A picture of tokens/s and tokens per iteration over K: gnuplot writes options->plot, which was checked. */
int workload_plot(const struct workload_options *options, const struct workload_row *rows);
