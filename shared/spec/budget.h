/*
 * Expert budgets as requests and settings ask for them (MoE-Spec; kernels/steps.h has the formulas):
 * their names, and which of them a service can honour. The one thing in Outrider that changes an
 * answer: off unless asked for.
 */
#pragma once

#include "kernels/steps.h"
#include "shared/base/layer_limits.h"

extern const char *const budget_ranking_names[]; /* "router", "static", "oracle", NULL */
extern const char *const budget_coverage_names[]; /* "substitution", "truncation", NULL */

/* Rows of a pass that may be ranked by BUDGET_ORACLE: those of the largest draft. */
enum { BUDGET_ORACLE_ROWS = LIMIT_DRAFT_NODES + 1 };

/* What a service has. */
struct budget_means {
	uint32_t n_layers, n_experts; /* of the model, and of a layer; n_experts 0: it has none */
	bool profile; /* counts for BUDGET_STATIC */
	bool oracle; /* room for BUDGET_ORACLE */
};

/* Reads the experts of each layer (shared/base/layer_limits.h) into out, [LIMIT_LAYERS], and checks
 * the ranking. -EINVAL names what is impossible; out is then unchanged. */
int budget_read(const char *text, uint32_t ranking, uint32_t coverage,
	const struct budget_means *means, uint16_t *out, struct error *err);
