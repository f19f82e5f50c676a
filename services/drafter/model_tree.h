/* The tree that was drafted for a session with the draft model, and the KV cells of the nodes that
 * it computed: the tokens that are accepted need not be computed again. Used by the draft thread. */
#pragma once

#include "services/drafter/tree.h"

struct model_tree {
	struct tree tree; /* a node's mark is 1 + the index of its cell; 0: it was not computed */
	uint32_t at; /* number of the committed tokens that it follows */
	uint32_t n_cells;
	uint32_t cell[LIMIT_DRAFT_NODES]; /* [n_cells] in flight */
	/* Of the round in progress. */
	bool begun; /* its first level is there */
	uint32_t reach; /* of struct sampler_input, at the end of the committed tokens */
	uint32_t view; /* the first of its views (struct draft_model) */
	uint64_t stamp; /* of what these views hold */
	/* the first row of the newest pass that computed nodes, and the cell of its node */
	uint32_t row, row_cell;
	int16_t beam[TREE_BEAM];
	uint32_t n_beam;
};
