/*
 * outrider-bench budget: how far the result of a layer is off when a tree of drafted tokens may use
 * only B of its experts, and how much of the router's weight those hold, over B, for every ranking
 * and coverage (MoE-Spec, sections 4.5 and 4.6, figures 6 and 7). Main thread.
 *
 * The engine answers the prompts of a workload greedily, a tree at a time. The tree's last pass is
 * exact; beside it all experts of each layer are computed for all of its tokens. So every layer has
 * its true inputs, and its errors are its own. What a budget makes of them is the step `budget` of the
 * back end, the same as in the service.
 */
#pragma once

#include "bench/src/decoding.h"
#include "kernels/steps.h"
#include "services/drafter/tree.h"

enum { BUDGET_POINTS = 24 };

struct budget_options {
	const char *model, *draft, *workload, *profile;
	uint32_t nodes, depth, width, limit, max_tokens, threads;
	uint32_t experts[BUDGET_POINTS], n_points; /* the budgets */
	bool json;
};

/* Of all layers of all trees, each counts the same. */
struct budget_sums {
	uint64_t n; /* layers that were measured */
	uint64_t used; /* experts that their tokens chose together */
	uint64_t rows; /* tokens */
	/* Of the sum of the tokens' scores, what the listed experts hold (equation 5). */
	double share[BUDGET_POINTS][BUDGET_RANKINGS];
	/* Sum of the tokens' squared distances from the exact result, divided by that of its squares.
	 */
	double error[BUDGET_POINTS][BUDGET_RANKINGS][BUDGET_COVERAGES];
};

/* What the hook `outputs` needs. */
struct budget_layers {
	const struct budget_options *options;
	const struct model *model;
	struct queue *queue;
	const uint64_t *uses; /* [n_layers][n_experts], or NULL: nothing is ranked by them */
	struct budget_sums sums;
	uint32_t room; /* tokens */
	void *memory; /* what the step reads and writes, as one buffer */
	struct buffer buffer;
	float *outputs, *rest, *y, *weights, *scores;
	uint16_t *chosen, *list;
	uint32_t *affected, *pairs, *n_order;
	struct expert_use *order;
	uint64_t *places; /* [n_experts] an order of experts as uses: the first has the most */
	double *gold; /* [room][n_embd] the exact results */
	double *row; /* [n_embd] */
};

/* budget_layers.c. rows: the most tokens of a tree's pass. -errno with *err; budget_layers_exit also
 * then. */
int budget_layers_init(struct budget_layers *b, const struct budget_options *options,
	const struct engine *engine, const uint64_t *uses, uint32_t rows, struct error *err);
void budget_layers_exit(struct budget_layers *b);
/* The hook. arg: struct budget_layers. */
void budget_layers_take(
	void *arg, uint32_t layer, const struct step_route *route, const struct rows *outputs);

struct budget_run {
	const struct budget_options *options;
	struct engine target,
		draft; /* draft: used if there is one; else the target drafts itself */
	struct budget_layers layers;
	struct tree tree;
	struct draft_reply reply;
	uint64_t trees, tokens; /* that were accepted, the last of each pass included */
};

/* budget_trees.c: answers a prompt, one tree after the other. */
int budget_answer(struct budget_run *run, const int32_t *prompt, uint32_t n, uint32_t most,
	struct error *err);

/* Runs the subcommand; returns a sysexits status. */
int bench_budget(int argc, char **argv);
