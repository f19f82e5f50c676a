/*
 * Growing a draft tree (EAGLE-2's dynamic trees, arXiv 2406.16858, section 4.2): the best tokens of
 * the newest level are expanded, all candidates are ranked by their joint probability, and as many
 * of the first are kept as the budget has nodes. It knows nothing of who proposes: a draft model, a
 * head and n-grams do it alike. Used by the draft thread.
 *
 *	tree_begin(&tree, budget);
 *	tree_add(&tree, -1, ...);            once for each token that may come first
 *	while ((n = tree_next(&tree, beam, TREE_BEAM)) > 0)
 *		for each of the n:
 *			tree_add(&tree, beam[i], ...);  for each token that may follow it
 *	tree_answer(&tree, reply);
 *
 * A node's chance is the product of the confidences along its path. It never exceeds its parent's,
 * and among equals the older node comes first, so a parent always ranks before its children, and
 * the first nodes by rank are connected, however many they are. A candidate that ranks behind as
 * many as the budget has is dropped at once: nothing that comes later can bring it back.
 */
#pragma once

#include "shared/spec/draft.h"

enum {
	TREE_BEAM = 32, /* nodes of one level that are expanded */
	TREE_WIDTH = 32, /* children of one node */
	TREE_ROOM = LIMIT_DRAFT_NODES + TREE_BEAM * TREE_WIDTH,
};

struct tree_node {
	double chance; /* of the whole path */
	float confidence; /* of this token, given the path before it */
	int32_t token;
	int16_t parent; /* -1: the committed tokens precede it */
	uint8_t depth; /* tokens before it on its path */
	uint32_t mark; /* the caller's own; 0 at first */
};

struct tree {
	struct draft_budget budget;
	/* [LIMIT_DRAFT_DEPTH + 1] or NULL: a node of a depth (from 0) with a smaller chance than this is
	 * no candidate (policy_session.cut). Borrowed; the caller may set it after tree_begin. */
	const float *least;
	uint32_t level; /* depth of the candidates that are added now */
	uint32_t n, n_ranked;
	uint16_t rank
		[LIMIT_DRAFT_NODES]; /* [n_ranked] indices of the nodes that are kept, best first */
	struct tree_node node[TREE_ROOM]; /* [n] parents come before their children */
};

/* Begins an empty tree. The budget is limited to what a draft can hold, its width to TREE_WIDTH. */
void tree_begin(struct tree *tree, struct draft_budget budget);
/* The most candidates that tree_add takes behind one node, at the depth that is added now. */
static inline uint32_t tree_width(const struct tree *tree)
{
	uint32_t width = draft_width_at(&tree->budget, tree->level);
	return width < TREE_WIDTH ? width : TREE_WIDTH;
}
/* How many of `most` nodes of one level are worth expanding: EAGLE-2 expands as many as a node has
 * children; a tree of fixed shape has all of them. */
static inline uint32_t tree_beam(const struct tree *tree, uint32_t most)
{
	bool fixed = tree->budget.shape[0] > 0;
	return fixed || most < tree->budget.width ? most : tree->budget.width;
}
/* Adds a candidate behind `parent` (-1, or a node that the last tree_next gave). confidence: its
 * probability after the path, 0 to 1. No two children of a node may have the same token, and no
 * node more than tree_width children. Returns its index, or -1: it ranks too low. */
int tree_add(struct tree *tree, int parent, int32_t token, float confidence);
/* Begins the next level: beam gets the indices of the best nodes of the newest one, at most `most`,
 * best first. Returns how many; 0: the tree is complete. Drops the nodes that are not ranked any
 * more, which changes the indices of the others. */
uint32_t tree_next(struct tree *tree, int16_t *beam, uint32_t most);
/* The tokens of the path to a node, itself included, in order. Returns how many. */
uint32_t tree_path(const struct tree *tree, int node, int32_t tokens[LIMIT_DRAFT_DEPTH]);
/* The child of a node (-1: of the committed tokens) that has this token; -1: none is ranked. */
int tree_child(const struct tree *tree, int parent, int32_t token);
/* Appends the ranked nodes to an empty reply with room for the budget's nodes, best first. */
void tree_answer(const struct tree *tree, struct draft_reply *reply);
