/*
 * outrider-bench workload: sends the prompts of a JSONL file to the running service, once per K and
 * round. The values of K alternate, so that a machine which becomes slower or faster affects all of
 * them alike. Reports medians over the rounds.
 */
#pragma once

#include "client/include/outrider.h"
#include "shared/base/error.h"
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
	size_t seconds; /* after this time no further round begins; 0: all rounds are run */
	uint32_t max_tokens; /* instead of what the file says; 0: as the file says */
	float temperature;
	bool ignore_eos, json;
};

/* The sums of all rounds with one K; every member is a uint64_t. */
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

/* Runs the subcommand; returns a sysexits status. */
int bench_workload(int argc, char **argv);

/* The prompts of a JSONL file as requests. */
struct workload_prompts {
	struct outrider_request **request; /* [n], owned */
	size_t n;
	/* [n], owned: the number that is the right answer, as text; NULL: the file names none */
	char **answer;
};

/* workload_prompts.c. Reads up to `limit` prompts. The requests have their input and, as their most
 * tokens, what the file says or 256; the caller sets the rest. An error names the file and the
 * line; also after one the caller frees the prompts. */
int workload_prompts_read(
	const char *path, size_t limit, struct workload_prompts *prompts, struct error *err);
void workload_prompts_free(struct workload_prompts *prompts);

/* workload_run.c. Adds what an answer took; adds sums to sums. */
void workload_totals_take(struct workload_totals *totals, const struct outrider_usage *usage);
void workload_totals_add(struct workload_totals *totals, const struct workload_totals *more);
/* Fills rows[0..n_ks-1]; 0, or -errno after a message on stderr. */
int workload_run(const struct workload_options *options, struct workload_row *rows);

/* workload_report.c */
void workload_table(
	const struct workload_options *options, const struct workload_row *rows, FILE *to);
json_t *workload_json(const struct workload_options *options, const struct workload_row *rows);
/* Checks the name of the picture: 0, or -EINVAL after a message on stderr. */
int workload_plot_check(const struct workload_options *options);
/* Plots tokens/s and tokens per iteration against K: gnuplot writes options->plot, which was
 * checked. */
int workload_plot(const struct workload_options *options, const struct workload_row *rows);
