#include "services/drafter/tree.h"

#include "services/drafter/draft.h"

#include <assert.h>
#include <string.h>

void tree_begin(struct tree *tree, struct draft_budget budget)
{
	if (budget.nodes > LIMIT_DRAFT_NODES)
		budget.nodes = LIMIT_DRAFT_NODES;
	if (budget.depth > LIMIT_DRAFT_DEPTH)
		budget.depth = LIMIT_DRAFT_DEPTH;
	if (budget.width > TREE_WIDTH)
		budget.width = TREE_WIDTH;
	tree->budget = budget;
	tree->least = NULL;
	tree->level = tree->n = tree->n_ranked = 0;
}

/* The place of a new node with this chance: behind all that have as much. */
static uint32_t place_of(const struct tree *tree, double chance)
{
	uint32_t low = 0, high = tree->n_ranked;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (tree->node[tree->rank[middle]].chance < chance)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

int tree_add(struct tree *tree, int parent, int32_t token, float confidence)
{
	double before = parent < 0 ? 1 : tree->node[parent].chance;
	double chance = before * (double)(confidence > 1 ? 1 : confidence);
	uint32_t place = place_of(tree, chance);
	bool full = tree->n_ranked >= tree->budget.nodes;
	assert(parent < 0 ? tree->level == 0 : tree->node[parent].depth + 1u == tree->level);
	/* Written so that a NaN fails. */
	if (!(chance >= 0) || tree->level >= tree->budget.depth || tree->n == TREE_ROOM ||
		(full && place == tree->n_ranked) ||
		(tree->least && chance < (double)tree->least[tree->level]))
		return -1;
	uint32_t moved = tree->n_ranked - place - full;
	memmove(tree->rank + place + 1, tree->rank + place, moved * sizeof(*tree->rank));
	tree->rank[place] = (uint16_t)tree->n;
	tree->n_ranked += !full;
	tree->node[tree->n] = (struct tree_node){
		.chance = chance,
		.confidence = confidence,
		.token = token,
		.parent = (int16_t)parent,
		.depth = (uint8_t)tree->level,
	};
	return (int)tree->n++;
}

/* Drops the nodes that are not ranked. The parent of a ranked node is ranked. */
static void compact(struct tree *tree)
{
	int16_t index[TREE_ROOM]; /* new index of each node that stays; -1: it goes */
	uint32_t n = 0;
	memset(index, 0xff, tree->n * sizeof(*index));
	for (uint32_t i = 0; i < tree->n_ranked; i++)
		index[tree->rank[i]] = 0;
	for (uint32_t i = 0; i < tree->n; i++) {
		struct tree_node node = tree->node[i];
		if (index[i] < 0)
			continue;
		if (node.parent >= 0)
			node.parent = index[node.parent];
		index[i] = (int16_t)n;
		tree->node[n++] = node;
	}
	for (uint32_t i = 0; i < tree->n_ranked; i++)
		tree->rank[i] = (uint16_t)index[tree->rank[i]];
	tree->n = n;
}

uint32_t tree_next(struct tree *tree, int16_t *beam, uint32_t most)
{
	uint32_t n = 0;
	compact(tree);
	if (tree->level + 1 >= tree->budget.depth)
		return 0;
	for (uint32_t i = 0; i < tree->n_ranked && n < most; i++)
		if (tree->node[tree->rank[i]].depth == tree->level)
			beam[n++] = (int16_t)tree->rank[i];
	tree->level++;
	return n;
}

uint32_t tree_path(const struct tree *tree, int node, int32_t tokens[LIMIT_DRAFT_DEPTH])
{
	uint32_t n = node < 0 ? 0 : tree->node[node].depth + 1u;
	for (uint32_t at = n; at > 0; node = tree->node[node].parent)
		tokens[--at] = tree->node[node].token;
	return n;
}

int tree_child(const struct tree *tree, int parent, int32_t token)
{
	for (uint32_t i = 0; i < tree->n_ranked; i++) {
		const struct tree_node *node = &tree->node[tree->rank[i]];
		if (node->parent == parent && node->token == token)
			return tree->rank[i];
	}
	return -1;
}

void tree_answer(const struct tree *tree, struct draft_reply *reply)
{
	int16_t index[TREE_ROOM];
	for (uint32_t i = 0; i < tree->n_ranked; i++) {
		const struct tree_node *node = &tree->node[tree->rank[i]];
		index[tree->rank[i]] = (int16_t)reply->n;
		draft_add(reply, node->parent < 0 ? -1 : index[node->parent], node->token,
			node->confidence);
	}
}
