/*
 * What the passes of the machine take, as the records of all sessions tell it: each pass is seen once, whichever policy
 * sees its first record, and policies read the same curve (cost.h). Pure: no clock, no threads, no allocation.
 */
#pragma once

#include "services/policy-controller/estimates/cost.h"
#include "shared/spec/policy.h"

struct passes {
	struct cost cost;
	uint64_t iteration; /* the last pass that was seen */
	bool any;
	uint32_t sessions; /* of the last pass */
	/* What a pass of so many sessions takes, by its extra tokens, as far as it was asked for since the last pass was seen
	 * (passes_curve). */
	float ns[COST_EXTRA_MAX + 1];
	uint32_t curve_sessions, curve_extra; /* sessions 0: nothing was */
};

void passes_init(struct passes *passes);
/* What a pass says of what passes take: once, with its first record. first: the session had not drafted just before. */
void passes_observe(struct passes *passes, const struct iteration_record *record, bool first);
/* Has passes->ns hold what a pass of so many sessions takes, up to so many extra tokens. False: no pass was seen yet. */
bool passes_curve(struct passes *passes, uint32_t sessions, uint32_t extra);
/* What a pass with so many extra tokens takes by that curve, ns; between two whole numbers, in proportion. */
double passes_at(const struct passes *passes, double extra);
/* Relative standard deviation of the time of a pass of so many sessions with so many extra tokens, which is believed to take
 * `ratio` times a known one: the less, the more such passes were seen lately. */
double passes_doubt(const struct passes *passes, uint32_t sessions, double extra, double ratio);
