/*
 * gamma-tolerance: how much slower a pass becomes when each session verifies more tokens, whether
 * drafts can pay, and whether they did. After "Rethinking the high-throughput LLM inference: an
 * opportunity for speculative decoding" (2025), section 3.1. Formulas cite it as [gamma].
 *
 * T(gamma) is the time of a pass in which each of b sessions has gamma tokens. It is V_b of cost.h
 * at b (gamma - 1) extra tokens: what passes cost is estimated once. Here it is only put beside what
 * the same passes brought. Predictions are made before the estimate learns from their pass.
 *
 * Pure: no clock, no threads, no allocation.
 */
#pragma once

#include "services/policy-controller/estimates/cost.h"
#include "shared/spec/policy.h"

/* Cells by the tokens that a session of a pass drafted in the mean, rounded, at least 1 if any
 * did; 0: none. The last cell has all longer drafts too. */
enum { TOLERANCE_GAMMAS = 17 };

/* Sums over the passes of one size of batch and one length of drafts; they fade. */
struct tolerance_cell {
	float passes, sessions, drafted, emitted, context;
	double ns, wait_ns; /* ns: without the wait for drafts */
	double predicted_ns, predicted_base_ns; /* as expected just before each pass: T, T(1) */
};

struct tolerance {
	struct tolerance_cell cells[LIMIT_RUNNING + 1][TOLERANCE_GAMMAS];
	/* the cell of the last pass, for the further records of that pass; NULL: it has none */
	struct tolerance_cell *last;
};

/* One point of a curve over gamma. What is not known is 0. */
struct tolerance_point {
	uint32_t sessions, gamma; /* gamma: drafted tokens of each session */
	double tau; /* tau(gamma + 1), as the model says */
	double pass_ns; /* T(gamma + 1), as the model says */
	double evidence; /* passes that this rests on (cost_evidence) */
	/* What drafts of this length brought and took, and what followed: */
	double passes, context; /* passes seen lately; tokens of a session's context in them */
	double drafted, lambda; /* tokens of a session in a pass: drafted, emitted */
	double delta; /* T_D / T(1), T_D: the wait for drafts by the length of a draft */
	double predicted, measured; /* speed-up over passes without drafts */
};

/* tau(gamma) = T(1) / T(gamma) [gamma, section 3.1]. */
double tolerance_tau(double first_ns, double pass_ns);
/* S = lambda tau(gamma + 1) / (1 + gamma delta tau(gamma + 1)) [gamma, equation 1]. tau:
 * tau(gamma + 1). */
double tolerance_speedup(double lambda, double tau, double gamma, double delta);

/* Takes the first record of a pass, before the cost learns from it. The time is sane and there are
 * no prompt tokens. */
void tolerance_pass(struct tolerance *t, struct cost *cost, const struct iteration_record *record);
/* Takes every record of that pass, the first one too. */
void tolerance_brought(struct tolerance *t, const struct iteration_record *record);
/* True when passes of this many sessions were seen. */
bool tolerance_seen(const struct tolerance *t, uint32_t sessions);
/* out[0 .. most-1]: gamma from 0 on, for batches of this size. Returns how many there are: up to
 * `most`, TOLERANCE_GAMMAS, and what the estimate reaches; 0: no pass of any size was seen. */
uint32_t tolerance_points(const struct tolerance *t, struct cost *cost, uint32_t sessions,
	uint32_t most, struct tolerance_point *out);
