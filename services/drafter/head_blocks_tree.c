/* Trees in the further blocks of a head with several. */
#include "services/drafter/head_blocks.h"
#include "services/drafter/model_tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void head_blocks_begin_level(struct draft_model *m)
{
	for (uint32_t block = 1; block < m->blocks->n; block++)
		m->blocks->block[block].n_in_batch = 0;
}

/* Tokens before a node of this depth, without the first one: its position in the head's own block. */
static uint32_t position_of(const struct draft_session *s, uint32_t depth)
{
	return s->n - s->shift + depth;
}

/* The block that drafts behind a node: the first one that is to know it. */
static uint32_t drafting_block(const struct draft_model *m, uint32_t depth)
{
	return depth + 2 < m->blocks->n ? depth + 1 : m->blocks->n - 1;
}

/* The state that a block gave behind a node of the last level, or, for -1, behind the session's tokens. */
static const float *state_behind(
	const struct draft_model *m, const struct draft_session *s, uint32_t block, int node)
{
	const struct model_tree *g = s->grown;
	size_t width = m->model->config.n_embd;
	if (node < 0)
		return s->trail->last + block * width;
	uint32_t row = s->trail->branches->row[block] + g->tree.node[node].mark - 1 - g->row_cell;
	return forward_head_rows(m->blocks->block[block].forward).out + row * width;
}

/* The view number `which` of a block, with the cells before a node. NULL: no memory. */
static struct kv_seq *look_from(struct draft_model *m, const struct draft_session *s,
	uint32_t block, int node, uint32_t which)
{
	struct head_block *b = &m->blocks->block[block];
	const struct model_tree *g = s->grown;
	const struct kv_seq *seq = &s->trail->seq[block];
	struct kv_seq *view = &b->views[which];
	if (view->owner == 0 && kv_seq_init(view, 1, m->n_context) < 0)
		return NULL;
	if (b->view_holds[which] != g->stamp)
		memcpy(view->cell, seq->cell, seq->n * sizeof(*view->cell));
	b->view_holds[which] = g->stamp;
	view->n = position_of(s, g->tree.node[node].depth) - block;
	for (int at = g->tree.node[node].parent; at >= 0; at = g->tree.node[at].parent) {
		uint32_t position = position_of(s, g->tree.node[at].depth);
		if (position >= block)
			view->cell[position - block] =
				s->trail->branches->cell[block][g->tree.node[at].mark - 1];
	}
	return view;
}

/* Adds the level to a block, whose cells for it are there. */
static bool add_rows(struct draft_model *m, struct draft_session *s, uint32_t block, uint32_t depth)
{
	struct head_block *b = &m->blocks->block[block];
	struct model_tree *g = s->grown;
	size_t width = m->model->config.n_embd;
	float *states = forward_head_rows(b->forward).states;
	/* Behind the draft of the last block, its own. */
	uint32_t from = depth + 2 > m->blocks->n ? block : block - 1;
	s->trail->branches->next[block] = b->n_in_batch;
	for (uint32_t i = 0; i < g->n_beam; i++) {
		const struct tree_node *node = &g->tree.node[g->beam[i]];
		struct kv_seq *view = look_from(m, s, block, g->beam[i], g->view + i);
		uint32_t at = b->n_in_batch + i;
		if (!view)
			return false;
		memcpy(states + at * width, state_behind(m, s, from, node->parent),
			width * sizeof(*states));
		b->row[m->n_in_batch + i] = (int32_t)at;
		b->batch[at] = (struct batch_token){
			.seq = view,
			.token = node->token,
			.position = view->n,
			.parent = -1,
			.logits = block == drafting_block(m, depth),
			.cell = s->trail->branches->cell[block][g->n_cells + i],
		};
	}
	b->n_in_batch += g->n_beam;
	return true;
}

static bool take(struct draft_model *m, struct draft_session *s, uint32_t block)
{
	const struct model_tree *g = s->grown;
	struct kv_seq *seq = &s->trail->seq[block];
	struct head_branches *t = s->trail->branches;
	if (seq->owner == 0 && kv_seq_init(seq, s->uid, m->n_context) < 0)
		return false;
	if (kv_take(&m->blocks->block[block].kv, seq, g->n_beam, t->cell[block] + g->n_cells) < 0)
		return false;
	if (t->end[block] == t->from[block])
		t->from[block] = g->n_cells;
	t->end[block] = g->n_cells + g->n_beam;
	return true;
}

/* Gives back the cells of the nodes from `from` on. */
static void give_back(struct draft_model *m, struct draft_session *s, uint32_t from)
{
	struct head_branches *t = s->trail->branches;
	for (uint32_t block = 1; block < m->blocks->n; block++) {
		uint32_t first = from > t->from[block] ? from : t->from[block];
		if (first >= t->end[block])
			continue;
		kv_commit(&m->blocks->block[block].kv, &s->trail->seq[block], NULL, 0,
			t->cell[block] + first, t->end[block] - first);
		t->end[block] = first;
	}
}

bool head_blocks_add_level(struct draft_model *m, struct draft_session *s)
{
	const struct model_tree *g = s->grown;
	uint32_t depth = g->tree.node[g->beam[0]].depth, before[HEAD_BLOCKS];
	bool room = true;
	if (!s->trail->branches)
		s->trail->branches = calloc(1, sizeof(*s->trail->branches));
	if (!s->trail->branches)
		return false;
	for (uint32_t block = drafting_block(m, depth); block < m->blocks->n; block++) {
		before[block] = m->blocks->block[block].n_in_batch;
		/* It knows the tokens from the one on for which there is a state of the block before. */
		if (room && position_of(s, depth) >= block)
			room = take(m, s, block) && add_rows(m, s, block, depth);
	}
	if (room)
		return true;
	for (uint32_t block = drafting_block(m, depth); block < m->blocks->n; block++)
		m->blocks->block[block].n_in_batch = before[block];
	give_back(m, s, g->n_cells);
	return false;
}

int head_blocks_run_level(struct draft_model *m)
{
	int r = 0;
	for (uint32_t block = 1; r == 0 && block < m->blocks->n; block++) {
		struct head_block *b = &m->blocks->block[block];
		if (b->n_in_batch > 0)
			r = head_blocks_pass(m, b);
	}
	return r;
}

void head_blocks_end_level(struct draft_model *m, struct draft_session *s, bool done)
{
	struct head_branches *t = s->trail->branches;
	if (done)
		memcpy(t->row, t->next, sizeof(t->row));
	else
		give_back(m, s, s->grown->n_cells);
}

void head_blocks_settle_tree(struct draft_model *m, struct draft_session *s)
{
	if (!s->trail || !s->trail->branches)
		return;
	give_back(m, s, 0);
	memset(s->trail->branches->from, 0, sizeof(s->trail->branches->from));
	memset(s->trail->branches->end, 0, sizeof(s->trail->branches->end));
}
