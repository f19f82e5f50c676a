/*
 * How likely the nodes of a draft are accepted: the drafter's confidence, corrected by what became
 * of nodes like it. A node counts once the path to it was accepted; then it is accepted or not.
 * Nodes are alike if they have the same rank among their siblings (0: the first child) and similar
 * confidences. So what is measured is a node's chance to be the next token, whatever the coupling
 * makes of the drafter's probabilities; there is a pool for each coupling and method, which is the
 * prior of every session. Older passes count less. Plain sums, no allocation. Engine thread.
 */
#pragma once

#include "shared/spec/draft.h"

enum { CHANCE_RANKS = 4, CHANCE_CLASSES = 8 };

struct chance_record {
	/* expected: the sum of the confidences of the nodes that were reached */
	float expected[CHANCE_RANKS][CHANCE_CLASSES], accepted[CHANCE_RANKS][CHANCE_CLASSES];
};

/* Learns from a draft that was verified: `accepted` are its accepted nodes, in order. */
void chance_learn(struct chance_record *record, const struct draft_reply *draft,
	const int16_t *accepted, uint32_t n_accepted);
/* The chance of each node that the whole path to it is accepted: chance [draft->n], 0 to 1. It
 * never exceeds that of its parent. */
void chance_of_draft(const struct chance_record *own, const struct chance_record *pool,
	const struct draft_reply *draft, float *chance);
