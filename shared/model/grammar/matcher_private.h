/* The states of a matcher, for the files of this directory. */
#pragma once

#include "shared/model/grammar/matcher.h"
#include "shared/model/grammar/tables.h"

/* One way to go on: a state of the automaton, and the node of what follows when its rule has ended.
 */
struct frame {
	uint32_t state, then;
};

/* A set of frames, sorted; within a node that is a state of the matcher, each state of the
 * automaton occurs at most once. Node 0 is the empty set. */
struct node {
	uint32_t first, n; /* its frames */
	uint32_t next; /* the next node with the same hash */
	uint32_t depth; /* the longest path along `then` */
	uint32_t row; /* its transitions, or ROW_NONE */
	uint32_t mask; /* its mask (vocab.h), or ROW_NONE */
};
#define ROW_NONE UINT32_MAX
/* A transition that was not computed yet. */
#define STEP_UNKNOWN (UINT32_MAX - 1)

struct link {
	uint32_t value, state, next;
};

struct matcher {
	const struct grammar *grammar;
	size_t bytes_max;
	uint32_t start;
	struct frame *frames;
	uint32_t n_frames, frames_capacity;
	struct node *nodes;
	uint32_t n_nodes, nodes_capacity;
	uint32_t *rows; /* [n_rows][n_classes] */
	uint32_t n_rows, rows_capacity;
	uint32_t *table; /* node by hash */
	uint32_t n_slots;

	/* For the step in progress. */
	uint32_t *at_state; /* [states] lists of what follows each: index of a link, or LINK_NONE */
	uint32_t *touched, n_touched; /* [states] those with a list */
	uint32_t *at_rule; /* [rules] lists of frames */
	uint64_t *called; /* [rules / 64] the ranks of the rules that are called, as bits */
	struct link *links;
	uint32_t n_links, links_capacity;
	struct frame *gather;
	uint32_t n_gather, gather_capacity;
	bool full, hopeless; /* full: there is no memory; hopeless: the text exceeds the limits */
};

uint32_t matcher_step(struct matcher *matcher, uint32_t state, uint32_t class);
