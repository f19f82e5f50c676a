/*
 * Expert budgets as requests and settings ask for them (MoE-Spec; kernels/steps.h has the formulas):
 * their names, and which of them a service can honour. The one thing in Outrider that changes an
 * answer: off unless asked for.
 */
#pragma once

#include "kernels/steps.h"
#include "shared/base/error.h"

extern const char *const budget_ranking_names[]; /* "router", "static", "oracle", NULL */
extern const char *const budget_coverage_names[]; /* "substitution", "truncation", NULL */

/* Rows of a pass that may be ranked by BUDGET_ORACLE: a draft's chain at its longest. */
enum { BUDGET_ORACLE_ROWS = LIMIT_DRAFT_DEPTH + 1 };

/* What a service has. */
struct budget_means {
	uint32_t n_experts; /* of a layer; 0: the model has none */
	bool profile; /* counts for BUDGET_STATIC */
	bool oracle; /* room for BUDGET_ORACLE */
};

/* -EINVAL names what is impossible: the number of experts, or the ranking. */
int budget_check(uint32_t experts, uint32_t ranking, uint32_t coverage,
	const struct budget_means *means, struct error *err);
