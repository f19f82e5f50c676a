/*
 * What a forward pass and a draft cost: estimated online from iteration records, once for all
 * sessions. Pure: no clock, no threads, no allocation.
 *
 * The time of a pass of b sessions with e extra tokens, in addition to their b certain ones, is
 *
 *   V_b(e) = level * shape(e),
 *   shape(e) = 1 + m G(e) + l e + residual(e),   G(e) = 1 + q + ... + q^(e-1).
 *
 * G describes how the number of distinct experts grows: like balls in bins, with a share q of the
 * experts still free (Cascade, section 2.4; affinity between tokens makes q smaller). q comes from
 * the counts of distinct experts in the records, which have no timing noise. m and l, the costs of
 * an expert's bytes and of a token's arithmetic, come from the times by least squares with a weak
 * prior; both are at least 0. The residual is what was measured at e beyond that, shrunk by its
 * evidence. The curve never falls. `level` follows the machine and the context and is the only fast
 * part: a slower machine scales every e alike.
 *
 * There is a curve for each b and each state of the cache. The state is the share of recent
 * look-ups that missed, in four steps. A curve that was never seen begins as its nearest neighbour.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/spec/session.h"

#include <stdbool.h>

enum { COST_STATES = 4, COST_METHODS = 9, COST_EXACT = 16, COST_CELLS = 49 };
static_assert((int)COST_METHODS >= (int)DRAFT_METHODS, "each way to draft has its cost");
#define COST_NS_MAX UINT64_C(3600000000000) /* longer times are not believed */
enum { COST_EXTRA_MAX = LIMIT_BATCH };

struct cost_cell {
	float extra; /* mean of e */
	float ratio, weight; /* ratio: time over level; weight: iterations that it represents */
	float experts, experts_weight; /* distinct experts in a pass */
};

struct cost_curve {
	double level_ns; /* V(0); 0 = never seen */
	float m, l, q;
	uint32_t sessions, n; /* b; passes seen */
	bool behind; /* m and l do not include the last passes yet */
	struct cost_cell cells[COST_CELLS];
	/* G(extra) of the cells, as computed last. */
	struct cost_grown {
		float q, extra; /* the arguments that it was computed for; q 0: none */
		double value;
	} grown[COST_CELLS];
};

/* The wait for drafts over the number of drafting steps: sums for fitting a line. */
struct cost_draft {
	double n, x, xx, y, xy;
	double first_ns; /* moving mean of the waits for first drafts */
	uint64_t first_pass; /* the pass in which the last one was seen */
};

struct cost {
	struct cost_curve curves[COST_STATES][LIMIT_RUNNING + 1];
	struct cost_draft draft[COST_METHODS];
	double missing; /* moving share of look-ups that missed */
	uint32_t state; /* state of the cache: the first index of curves */
	uint64_t n_passes;
};

struct cost_pass {
	uint32_t sessions, extra; /* b, e */
	uint64_t ns; /* without the wait for drafts */
	uint32_t experts, hits, misses;
	bool first; /* the session had not drafted just before */
};

void cost_init(struct cost *cost);
/* Adds one pass; call once per pass. Times of 0 or above an hour are not believed. */
void cost_observe(struct cost *cost, const struct cost_pass *pass);
/* out[0..n]: V_b(e) in ns, never falling. False, with a curve of arbitrary level, when no pass was
 * seen yet. */
bool cost_curve(struct cost *cost, uint32_t sessions, uint32_t n, float *out);
/* V_b(extra) in ns, and in *base V_b(0); both 0 when no pass was seen yet. As cost_curve says, except
 * that only V_b(0) bounds it below. */
double cost_time(struct cost *cost, uint32_t sessions, uint32_t extra, double *base);
/* The number of recent passes that V_b(e) rests on: passes of its own size, plus what the nearest
 * sizes that were seen are worth. */
double cost_evidence(const struct cost *cost, uint32_t sessions, uint32_t extra);

/* Adds a wait of ns for a draft of `steps` steps by this method (enum draft_method). first: the
 * session had not drafted just before, so the drafter had to wake up and catch up. That says little
 * about the next draft's cost: cost_draft uses half of it until another draft was seen;
 * cost_draft_first returns it. */
void cost_draft_observe(
	struct cost *cost, uint32_t method, uint32_t steps, uint64_t ns, bool first);
/* The number of drafts, without first ones, that the estimate rests on. */
double cost_draft_evidence(const struct cost *cost, uint32_t method);
/* The wait for a draft, in ns: *fixed + *step * steps. Both are 0 when nothing is known. */
void cost_draft(const struct cost *cost, uint32_t method, double *fixed, double *step);
/* The wait for a first draft, in ns; 0: none was seen. The drafter may first have to read what it
 * did not follow. The belief fades with time: otherwise a first draft that the machine delayed
 * would be the last one. */
double cost_draft_first(const struct cost *cost, uint32_t method);
