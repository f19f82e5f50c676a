/*
 * Trees drafted with the draft model. Each pass computes the best nodes of the newest level, of all
 * sessions of the round; what may follow them is the next level.
 *
 * A row of such a pass attends to the committed tokens and to the nodes on its path, whose keys and
 * values earlier passes have put into cells that are still in flight. For this each row has a view:
 * a sequence that owns nothing, whose map has the session's cells and then those of the path. So the
 * forward pass sees ordinary sequences, each one token long.
 */
#include "services/drafter/model_tree.h"

#include "services/drafter/head.h"
#include "services/drafter/head_blocks.h"
#include "services/drafter/model_pass.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/model/text/breakers.h"

#include <stdlib.h>
#include <string.h>

static_assert((int)TREE_WIDTH <= (int)SAMPLER_RANK_MAX, "all children of a node can be ranked");

bool model_tree_wanted(const struct draft_model *m, struct draft_budget budget)
{
	return budget.width > 1 && budget.nodes > 1 && m->kv.states.layout.n_layers == 0;
}

void model_tree_settle(struct draft_model *m, struct draft_session *s)
{
	struct model_tree *g = s->grown;
	uint32_t accepted[LIMIT_DRAFT_DEPTH], rejected[LIMIT_DRAFT_NODES], n_accepted = 0, n = 0;
	bool kept[LIMIT_DRAFT_NODES] = {false};
	int node = -1;
	if (head_has_blocks(m))
		head_blocks_settle_tree(m, s);
	if (!g || g->n_cells == 0)
		return;
	/* Not the last token's: its logits are needed again. Of a head none: its rows are computed
	 * again from the target's states. */
	for (uint32_t at = g->at; !m->head && at == s->seq.n + n_accepted && at + 1 < s->n; at++) {
		node = tree_child(&g->tree, node, s->tokens[at]);
		if (node < 0 || g->tree.node[node].mark == 0)
			break;
		uint32_t cell = g->tree.node[node].mark - 1;
		accepted[n_accepted++] = g->cell[cell];
		kept[cell] = true;
	}
	for (uint32_t i = 0; i < g->n_cells; i++)
		if (!kept[i])
			rejected[n++] = g->cell[i];
	kv_commit(&m->kv, &s->seq, accepted, n_accepted, rejected, n);
	g->n_cells = 0;
}

/* Adds what may follow a node (-1: the committed tokens), given the logits there. */
static void propose(struct draft_model *m, struct draft_session *s, int node, const float *logits)
{
	const struct sampler_params *params = &s->request.sampling;
	struct model_tree *g = s->grown;
	struct token_prob best[TREE_WIDTH];
	int32_t path[LIMIT_DRAFT_DEPTH];
	uint32_t n = tree_path(&g->tree, node, path), reach = g->reach;
	for (uint32_t i = 0; i < n; i++)
		reach = breakers_reach_behind(m->tokenizer, params, reach, path[i]);
	const struct sampler_input input = {
		.logits = logits,
		.allowed = s->constraint ? constraint_ahead(s->constraint, path, n) : NULL,
		.history = s->tokens,
		.n_history = s->n,
		.n_prompt = s->n_prompt,
		.dry_reach = reach,
		.tail = path,
		.n_tail = n,
	};
	uint32_t n_best = sampler_rank(
		&m->sampler, params, &input, (uint64_t)s->n + n, best, tree_width(&g->tree));
	for (uint32_t i = 0; i < n_best; i++)
		tree_add(&g->tree, node, best[i].token, best[i].p);
}

static void begin_levels(struct draft_model *m, struct draft_session *s, const float *logits)
{
	propose(m, s, -1, logits);
	s->grown->begun = true;
}

/* The budget within the model's context and the session's. */
static struct draft_budget bounded(
	const struct draft_model *m, const struct draft_session *s, struct draft_budget budget)
{
	uint32_t room = (m->n_context < s->n_context ? m->n_context : s->n_context) - s->n;
	if (budget.depth > room)
		budget.depth = (uint8_t)room;
	return budget;
}

/* Begins a tree in place of a chain that may be there. */
static bool prepare(struct draft_model *m, struct draft_item *item, uint32_t view)
{
	struct draft_session *s = item->session;
	struct model_tree *g = s->grown;
	if (!g && (g = s->grown = malloc(sizeof(*g))))
		g->n_cells = 0;
	if (!g)
		return false;
	s->n_chain = 0;
	if (m->head)
		draft_model_rewind(m, s, 0);
	else if (s->has_seq && s->seq.n >= s->n)
		kv_truncate(&m->kv, &s->seq, s->n - 1);
	tree_begin(&g->tree, bounded(m, s, item->budget));
	g->tree.least = item->knobs.cut;
	g->at = s->n;
	g->n_cells = g->n_beam = 0;
	g->begun = false;
	g->reach = breakers_reach(m->tokenizer, &s->request.sampling, s->tokens, s->n);
	g->view = view;
	g->stamp = ++m->uses;
	return true;
}

/* Reads the tokens that the sessions lack; behind the last one the first level begins. */
static void read_along(
	struct draft_model *m, struct draft_item *const *items, uint32_t n, bool *off)
{
	do {
		for (uint32_t i = 0; i < n; i++) {
			struct draft_session *s = items[i]->session;
			if (off[i] || s->grown->begun || m->n_in_batch == m->n_batch)
				continue;
			off[i] = model_pass_add(m, s, s->n, true) == 0;
		}
		hints_step(m->hints, n > 0 ? items[0]->budget.depth : 0);
	} while (m->n_in_batch > 0 && model_pass_run(m, begin_levels) == 0);
}

/* The view number `which` with the cells before a node. NULL: no memory. */
static struct kv_seq *look_from(
	struct draft_model *m, const struct draft_session *s, int node, uint32_t which)
{
	const struct model_tree *g = s->grown;
	struct kv_seq *view = &m->views[which];
	uint32_t n = s->n - s->shift; /* positions of the committed tokens */
	if (view->owner == 0 && kv_seq_init(view, 1, m->n_context) < 0)
		return NULL;
	if (m->view_holds[which] != g->stamp)
		memcpy(view->cell, s->seq.cell, n * sizeof(*view->cell));
	m->view_holds[which] = g->stamp;
	view->n = n + g->tree.node[node].depth;
	for (int at = g->tree.node[node].parent; at >= 0; at = g->tree.node[at].parent) {
		const struct tree_node *before = &g->tree.node[at];
		view->cell[n + before->depth] = g->cell[before->mark - 1];
	}
	return view;
}

/* For a head: the state of a node's row, which is that behind its parent. */
static void give_state(struct draft_model *m, const struct draft_session *s, int node)
{
	const struct model_tree *g = s->grown;
	const struct forward_head_rows rows = forward_head_rows(m->forward);
	uint32_t d = m->model->config.n_embd;
	int parent = g->tree.node[node].parent;
	const float *state = s->out;
	/* The parent is a node of the last pass. */
	if (parent >= 0)
		state = rows.out +
			(size_t)(g->row + g->tree.node[parent].mark - 1 - g->row_cell) * d;
	memcpy(rows.states + (size_t)m->n_in_batch * d, state, d * sizeof(*state));
	m->is_true[m->n_in_batch] = false;
}

/* Puts the newest level's nodes into the batch: rows for which the further blocks of a head have theirs. */
static void add_to_blocks(struct draft_model *m, struct draft_session *s)
{
	struct model_tree *g = s->grown;
	if (!head_blocks_add_level(m, s)) {
		kv_commit(&m->kv, &s->seq, NULL, 0, g->cell + g->n_cells, g->n_beam);
		g->n_beam = 0;
	}
	for (uint32_t i = 0; i < g->n_beam; i++) {
		const struct tree_node *node = &g->tree.node[g->beam[i]];
		m->owner[m->n_in_batch] = s;
		m->route[m->n_in_batch] = -1;
		m->batch[m->n_in_batch++] = (struct batch_token){
			.token = node->token,
			.position = s->n - s->shift + node->depth,
			.parent = -1,
			.logits = true,
		};
	}
}

/* Puts the best nodes of the newest level into the batch. */
static void add_level(struct draft_model *m, struct draft_session *s, uint32_t most)
{
	struct model_tree *g = s->grown;
	uint32_t left = LIMIT_DRAFT_NODES - g->n_cells;
	most = tree_beam(&g->tree, most < left ? most : left);
	g->n_beam = tree_next(&g->tree, g->beam, most);
	if (g->n_beam > 0 && !model_pass_take(m, s, g->n_beam, g->cell + g->n_cells))
		g->n_beam = 0;
	if (g->n_beam > 0 && head_has_blocks(m)) {
		add_to_blocks(m, s);
		return;
	}
	for (uint32_t i = 0; i < g->n_beam; i++) {
		const struct tree_node *node = &g->tree.node[g->beam[i]];
		struct kv_seq *view = look_from(m, s, g->beam[i], g->view + i);
		if (!view) {
			kv_commit(
				&m->kv, &s->seq, NULL, 0, g->cell + g->n_cells + i, g->n_beam - i);
			g->n_beam = i;
			break;
		}
		if (m->head)
			give_state(m, s, g->beam[i]);
		m->owner[m->n_in_batch] = s;
		m->batch[m->n_in_batch++] = (struct batch_token){
			.seq = view,
			.token = node->token,
			.position = view->n,
			.parent = -1,
			.logits = true,
			.cell = g->cell[g->n_cells + i],
		};
	}
}

/* Adds what follows the nodes that a pass computed, whose rows begin with `row`. */
static void take_level(struct draft_model *m, struct draft_session *s, uint32_t row)
{
	struct model_tree *g = s->grown;
	g->row = row;
	g->row_cell = g->n_cells;
	for (uint32_t i = 0; i < g->n_beam; i++) {
		int parent = g->tree.node[g->beam[i]].parent;
		if (m->head)
			head_hint(m, s, row + i,
				parent < 0 ? s->tokens[s->n - 1] : g->tree.node[parent].token);
		g->tree.node[g->beam[i]].mark = 1 + g->n_cells++;
		propose(m, s, g->beam[i], model_row_logits(m, row + i));
	}
}

/* Grows all trees by a level; false when none grows any more, or the pass failed. */
static bool grow(struct draft_model *m, struct draft_item *const *items, uint32_t n,
	const bool *off, uint32_t most)
{
	uint32_t row = 0, left = 0;
	if (head_has_blocks(m))
		head_blocks_begin_level(m);
	for (uint32_t i = 0; i < n; i++) {
		const struct model_tree *g = items[i]->session->grown;
		if (off[i] || !g->begun)
			continue;
		add_level(m, items[i]->session, most);
		if (g->n_beam > 0 && g->tree.budget.depth - g->tree.level > left)
			left = g->tree.budget.depth - g->tree.level;
	}
	uint32_t rows = m->n_in_batch;
	if (rows == 0)
		return false;
	uint64_t start_ns = clock_ns();
	hints_step(m->hints, left);
	int r = head_has_blocks(m) ? head_blocks_run_level(m) : model_forward(m, rows);
	m->passes++;
	m->tokens += rows;
	m->n_in_batch = 0;
	if (r < 0)
		log_error("the draft model's pass failed: %s", strerror(-r));
	else
		hints_step_took(m->hints, clock_ns() - start_ns);
	for (uint32_t i = 0; i < n; i++) {
		struct model_tree *g = items[i]->session->grown;
		if (off[i] || g->n_beam == 0)
			continue;
		if (head_has_blocks(m))
			head_blocks_end_level(m, items[i]->session, r == 0);
		if (r == 0)
			take_level(m, items[i]->session, row);
		else
			kv_commit(&m->kv, &items[i]->session->seq, NULL, 0, g->cell + g->n_cells,
				g->n_beam);
		row += g->n_beam;
		g->n_beam = 0;
	}
	return r == 0;
}

/* Without layers like the target's, the hints are what the tokens of the main path needed before. */
static void hint(struct draft_model *m, const struct draft_item *item)
{
	const struct draft_session *s = item->session;
	int32_t tokens[LIMIT_DRAFT_DEPTH + 1];
	int16_t path[LIMIT_DRAFT_DEPTH];
	uint32_t n = draft_path(item->reply, path), first = 1;
	if (model_hints(m))
		return;
	tokens[0] = s->tokens[s->n - 1];
	for (uint32_t i = 0; i < n; i++)
		tokens[1 + i] = item->reply->node[path[i]].token;
	/* The last token of the path has no state behind it. */
	if (m->head && n > 1)
		hints_head_history(m->hints, s, tokens, first, n - 1);
	if (m->head && n > 1)
		first = n;
	hints_history(m->hints, s, tokens, first, n + 1 - first, NULL);
}

void model_tree_draft(struct draft_model *m, struct draft_item *const *items, uint32_t n)
{
	bool off[LIMIT_RUNNING];
	/* Rows of each session in one pass, and its views. */
	uint32_t most = n > 0 ? DRAFT_MODEL_LOGITS / n : 0;
	for (uint32_t i = 0; i < n; i++) {
		struct draft_session *s = items[i]->session;
		off[i] = !prepare(m, items[i], i * most) ||
			 s->n - s->shift - (s->has_seq ? s->seq.n : 0) > m->n_batch;
	}
	read_along(m, items, n, off);
	while (grow(m, items, n, off, most < TREE_BEAM ? most : TREE_BEAM))
		continue;
	for (uint32_t i = 0; i < n; i++) {
		if (off[i] || !items[i]->session->grown->begun)
			continue;
		items[i]->reply->method = m->method;
		tree_answer(&items[i]->session->grown->tree, items[i]->reply);
		hint(m, items[i]);
	}
	for (uint32_t i = 0; i < n; i++)
		if (items[i]->session->grown)
			items[i]->session->grown->tree.least = NULL;
}
