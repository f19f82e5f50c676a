/*
 * One of the machines that compute experts for `outrider-bench price`: a back end, with rows of
 * inputs and the experts of an arena in memory that it computes from.
 */
#pragma once

#include "bench/src/expert_arena.h"

struct price_side {
	struct backend *backend; /* borrowed */
	struct queue *q;
	const struct expert_arena *arena; /* borrowed */
	struct buffer f32, q8, y, pairs;
	struct buffer experts; /* [arena->n] as in the arena */
	uint32_t next; /* the expert that the next step begins with */
};

/* For up to n_rows tokens of an expert; side->backend must be set. A device gets a copy of the arena;
 * the CPU computes in the arena itself. */
int price_side_open(struct price_side *side, const struct expert_arena *arena, uint32_t n_rows,
	struct error *err);
/* May be called for one that was not opened, or only in part; before the arena is closed. */
void price_side_close(struct price_side *side);

/* Computes all experts of the arena, with n tokens each, as many in a step as a token uses. copies:
 * each step is queued behind the copies of its experts from the arena. Returns in *ns how long one
 * expert takes. */
int price_side_run(struct price_side *side, uint32_t n, bool copies, double *ns, struct error *err);
