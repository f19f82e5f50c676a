/*
 * What a forward pass and a draft cost: estimated online from iteration records, one for all
 * sessions. Pure: no clock, no threads, no allocation.
 *
 * A pass of b sessions with e tokens beside their b certain ones takes V_b(e) = level * shape(e),
 *
 *     shape(e) = 1 + m G(e) + l e + residual(e),   G(e) = 1 + q + ... + q^(e-1).
 *
 * G is how the number of distinct experts grows: balls in bins with a share q of the experts still
 * free (Cascade, section 2.4; affinity between tokens makes q smaller), and q comes from the counts
 * of distinct experts in the records, which carry no noise of the clock. m and l, what an expert's
 * bytes and a token's arithmetic add, come from the times, by least squares with a weak prior, both
 * at least 0. The residual is what is measured at e beyond that, shrunk by its evidence. The curve
 * never falls. `level` follows the machine and the context and is the only fast part: a slower
 * machine scales every e alike.
 *
 * There is a curve for each b and each state of the cache: how much of what was looked up lately
 * was not resident, in four steps. One that was never seen begins as its nearest neighbour.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/spec/session.h"

#include <stdbool.h>

enum { COST_STATES = 4, COST_METHODS = 8, COST_EXACT = 16, COST_CELLS = 49 };
static_assert((int)COST_METHODS >= (int)DRAFT_METHODS, "each way to draft has its cost");
#define COST_NS_MAX UINT64_C(3600000000000) /* no longer time is believed */
enum { COST_EXTRA_MAX = LIMIT_BATCH };

struct cost_cell {
	float extra; /* mean of e */
	float ratio, weight; /* of the time to level; iterations it stands for */
	float experts, experts_weight; /* distinct experts of a pass */
};

struct cost_curve {
	double level_ns; /* V(0); 0 = never seen */
	float m, l, q;
	uint32_t sessions, n; /* b; passes seen */
	bool behind; /* m and l do not know of the last ones yet */
	struct cost_cell cells[COST_CELLS];
	/* G(extra) of the cells, as it was worked out last. */
	struct cost_grown {
		float q, extra; /* what it is of; q 0: of nothing */
		double value;
	} grown[COST_CELLS];
};

/* Draft wait over drafting steps: sums of a line fitted to it. */
struct cost_draft {
	double n, x, xx, y, xy;
	double first_ns; /* moving mean of first drafts */
	uint64_t first_pass; /* the last one was seen in */
};

struct cost {
	struct cost_curve curves[COST_STATES][LIMIT_RUNNING + 1];
	struct cost_draft draft[COST_METHODS];
	double missing; /* moving share of look-ups that missed */
	uint32_t state; /* of the cache: the first index of curves */
	uint64_t n_passes;
};

struct cost_pass {
	uint32_t sessions, extra; /* b, e */
	uint64_t ns; /* without the wait for drafts */
	uint32_t experts, hits, misses;
	bool first; /* the session had not drafted just before */
};

void cost_init(struct cost *cost);
/* One pass, once. Times of 0 or beyond an hour are not believed. */
void cost_observe(struct cost *cost, const struct cost_pass *pass);
/* out[0..n]: V_b(e) in ns, never falling; false (and a curve of arbitrary level) when no pass was
 * seen yet. */
bool cost_curve(struct cost *cost, uint32_t sessions, uint32_t n, float *out);
/* How many recent passes V_b(e) rests on: those of its size, and what those of the next sizes that were seen say of it. */
double cost_evidence(const struct cost *cost, uint32_t sessions, uint32_t extra);

/* The verifier waited ns for a draft of so many steps of this method (enum draft_method). first:
 * the session had not drafted just before, so the drafter had to wake up and to catch up: that says
 * little of what the next draft costs, and is only believed, by half, until another is there. */
void cost_draft_observe(
	struct cost *cost, uint32_t method, uint32_t steps, uint64_t ns, bool first);
/* How many drafts, first ones apart, that rests on. */
double cost_draft_evidence(const struct cost *cost, uint32_t method);
/* What such a wait takes, ns: *fixed + *step * steps; both 0 when nothing is known. */
void cost_draft(const struct cost *cost, uint32_t method, double *fixed, double *step);
/* What a first draft is waited for, ns: the drafter may have to read first what it did not follow. Believed the less the longer
 * ago it was, for otherwise one that the machine delayed would be the last; 0: none was seen. */
double cost_draft_first(const struct cost *cost, uint32_t method);
