/* The results of replays as a table, as JSON and as a picture. */
#pragma once

#include "bench/src/cache_quality.h"
#include "bench/src/cache_replay.h"

#include <jansson.h>

enum { REPLAY_POLICIES = 16, REPLAY_BUDGETS = 16, REPLAY_TRACES = 64, REPLAY_NAME = 24 };

struct replay_policy {
	char name[REPLAY_NAME]; /* such as belady:8 */
	const struct cache_policy_ops *ops;
	uint32_t ahead; /* as in replay_options */
	bool shares; /* the same */
};

struct replay_plan {
	const char *files[REPLAY_TRACES];
	struct cache_trace *traces; /* [n_traces] */
	struct trace_quality (*quality)[HINT_SOURCES + 1]; /* [n_traces] of each trace's hints */
	size_t n_traces;
	struct replay_policy policies[REPLAY_POLICIES]; /* the last is Belady's bound */
	size_t n_policies;
	double budgets[REPLAY_BUDGETS]; /* percent of all experts */
	size_t n_budgets;
	struct replay_link link;
	const char *plot, *hints; /* hints: recorded, none or perfect */
	const uint64_t *profile; /* of the traces' shape, or NULL */
	bool demand_only;
};

/* The result of a cell in [n_traces][n_budgets][n_policies]. */
static inline struct replay_result *replay_cell(const struct replay_plan *plan,
	struct replay_result *results, size_t trace, size_t budget, size_t policy)
{
	return &results[(trace * plan->n_budgets + budget) * plan->n_policies + policy];
}

/* The slots of a budget, as outrider-expert-cache computes a share. */
uint32_t replay_slots(const struct cache_trace *trace, double percent);

void replay_table(const struct replay_plan *plan, struct replay_result *results, FILE *to);
json_t *replay_json(const struct replay_plan *plan, struct replay_result *results);
/* Plots the share of hits against the budget, for all traces together: gnuplot writes plan->plot.
 */
int replay_plot(const struct replay_plan *plan, struct replay_result *results);
