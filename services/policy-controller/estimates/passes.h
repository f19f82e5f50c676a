/*
 * What the passes of the machine take, according to the records of all sessions. Each pass is
 * counted once, whichever policy sees its first record, and all policies read the same curve
 * (cost.h). Pure: no clock, no threads, no allocation.
 */
#pragma once

#include "services/policy-controller/estimates/cost.h"
#include "services/policy-controller/estimates/prices.h"
#include "services/policy-controller/estimates/tolerance.h"
#include "shared/spec/policy.h"

struct passes {
	struct cost cost;
	struct prices prices;
	struct tolerance tolerance;
	uint64_t iteration; /* the last pass that was seen */
	bool any;
	uint32_t sessions; /* of the last pass */
	/* The time of a pass of curve_sessions sessions by its number of extra tokens, up to
	 * curve_extra. Computed when it was last asked for since the last pass (passes_curve). */
	float ns[COST_EXTRA_MAX + 1];
	uint32_t curve_sessions, curve_extra; /* sessions 0: not computed */
};

void passes_init(struct passes *passes);
/* Adds a pass, with its first record; further records of the same pass are ignored. first: the
 * session had not drafted just before. */
void passes_observe(struct passes *passes, const struct iteration_record *record, bool first);
/* Takes what the record's session got in the pass that was observed last; call once for each
 * record, after passes_observe. */
void passes_brought(struct passes *passes, const struct iteration_record *record);
/* Computes passes->ns for passes of `sessions` sessions and up to `extra` extra tokens. False: no
 * pass was seen yet. */
bool passes_curve(struct passes *passes, uint32_t sessions, uint32_t extra);
/* The time of a pass with this many extra tokens by that curve, in ns; interpolated between whole
 * numbers. */
double passes_at(const struct passes *passes, double extra);
/* Relative standard deviation of the time of a pass of `sessions` sessions with `extra` extra
 * tokens, which is believed to take `ratio` times as long as a known one. It is smaller the more
 * such passes were seen lately. */
double passes_doubt(const struct passes *passes, uint32_t sessions, double extra, double ratio);
