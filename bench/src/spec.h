/*
 * outrider-bench spec: what trees of drafts bring and cost in the running service, by method, depth,
 * number of tokens and expert budget: tokens/s, accepted length, distinct experts, and with a budget
 * what it changed: tokens, perplexity, right answers. All cells answer a prompt before the next one
 * is asked, in an order that turns, K = 0 among them. Main thread.
 */
#pragma once

#include "bench/src/workload.h"

enum {
	SPEC_METHODS = 8,
	SPEC_SHAPES = 24,
	SPEC_BUDGETS = 8,
	SPEC_CELLS = 512,
	SPEC_ROUNDS = 99,
	SPEC_NAME = 96,
};

struct spec_method {
	char name[SPEC_NAME]; /* as it was given */
	const char *method; /* of the request */
	float error; /* of a replay */
};

struct spec_budget {
	char name[SPEC_NAME];
	char experts[SPEC_NAME]; /* as layer_limits_read takes them; "": none */
	char ranking[SPEC_NAME], coverage[SPEC_NAME]; /* "": the default */
};

struct spec_options {
	const char *file, *runtime_dir;
	struct spec_method method[SPEC_METHODS];
	struct spec_budget budget[SPEC_BUDGETS];
	uint32_t depth[SPEC_SHAPES], nodes[SPEC_SHAPES], width; /* 0: as deep a tree needs */
	uint32_t n_methods, n_budgets, n_depths, n_nodes;
	size_t rounds, limit, seconds; /* seconds 0: all rounds are run */
	uint32_t max_tokens; /* 0: as the file says */
	bool ignore_eos, json;
};

/* The sums of all answers of a cell. output: its tokens; tokens: without the first of each answer,
 * which is not decoded. */
struct spec_totals {
	struct workload_totals usage;
	uint64_t decoded; /* tokens behind the first of each answer */
	uint64_t changed; /* tokens that are not those of K = 0 at their places */
	uint64_t audited, other; /* tokens; those in whose place the model picks another */
	uint64_t asked, right; /* answers to prompts with a known answer; the right ones of them */
	uint64_t same; /* of them, those that end with the number that K = 0 ends with */
	double log_loss; /* of the audited tokens */
};

struct spec_cell {
	const struct spec_method *method; /* NULL: K = 0 */
	const struct spec_budget *budget;
	uint32_t depth, nodes, width;
	double per_s[SPEC_ROUNDS]; /* tokens/s while decoding, by round */
	double ratio[SPEC_ROUNDS]; /* to K = 0 of the round */
	size_t n_rounds;
	struct spec_totals totals;
};

/* Runs the subcommand; returns a sysexits status. */
int bench_spec(int argc, char **argv);

/* Every combination of the options that is a tree of its own, behind K = 0; how many. */
size_t spec_cells(const struct spec_options *options, struct spec_cell out[SPEC_CELLS]);

/* spec_run.c. 0, or -errno after a message on stderr: also if an answer without a budget is not the
 * one of K = 0. */
int spec_run(const struct spec_options *options, struct spec_cell *cells, size_t n);

/* spec_report.c */
void spec_table(const struct spec_options *options, struct spec_cell *cells, size_t n, FILE *to);
json_t *spec_json(const struct spec_options *options, struct spec_cell *cells, size_t n);
