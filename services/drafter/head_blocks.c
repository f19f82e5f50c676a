#include "services/drafter/head_blocks.h"

#include "shared/base/log.h"
#include "shared/model/arch/head.h"
#include "shared/model/arch/place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct kv_layout layout_of(const struct draft_model *m, const struct head_block *b)
{
	struct kv_layout layout =
		kv_layout_of(b->model, kv_type_auto(b->model), m->kv.layout.n_pages);
	layout.states.n_slots = LIMIT_RUNNING;
	return layout;
}

static struct forward_limits limits_of(const struct draft_model *m)
{
	return (struct forward_limits){.n_batch = m->n_batch_max,
		.n_logits = DRAFT_MODEL_LOGITS,
		.n_context = m->n_context};
}

static int place(struct draft_model *m, uint32_t block, struct error *err)
{
	struct head_block *b = &m->blocks->block[block];
	const struct head_experts_of of = head_experts_of_block(m, block);
	const struct kv_layout layout = layout_of(m, b);
	const struct forward_limits limits = limits_of(m);
	bool away = m->backend != m->host;
	int r = away ? model_place(b->model, m->backend, err) : 0;
	b->placed = away && r == 0;
	if (r == 0)
		r = draft_kv_open(m->backend, &layout, &b->kv, &b->memory, err);
	if (r == 0)
		r = away ? experts_mapped_init(&b->copied, b->model, m->backend, err)
			 : head_experts_init(&b->experts, b->model, &of, m->hints, m->host, err);
	struct expert_source *experts = away ? &b->copied.source : &b->experts.source;
	return r < 0 ? r
		     : forward_create(b->model, m->backend, &b->kv,
			       b->model->config.n_experts ? experts : NULL, &limits, &b->forward,
			       err);
}

int head_blocks_place(struct draft_model *m, struct error *err)
{
	int r = 0;
	for (uint32_t block = 1; r == 0 && block < m->blocks->n; block++)
		r = place(m, block, err);
	return r;
}

void head_blocks_leave(struct draft_model *m)
{
	for (uint32_t i = 1; m->blocks && i < m->blocks->n; i++) {
		struct head_block *b = &m->blocks->block[i];
		if (b->forward)
			forward_destroy(&b->forward);
		if (b->experts.read)
			head_experts_exit(&b->experts);
		experts_mapped_exit(&b->copied);
		for (uint32_t v = 0; v < DRAFT_MODEL_LOGITS; v++) {
			if (b->views[v].owner != 0)
				kv_seq_forget(&b->views[v]);
			b->view_holds[v] = 0;
		}
		draft_kv_close(&b->kv, &b->memory);
		if (b->placed)
			model_forget(b->model, m->backend);
		b->placed = false;
	}
}

void head_blocks_needs(
	const struct draft_model *m, struct backend *device, struct draft_engine_needs *needs)
{
	const struct forward_limits limits = limits_of(m);
	for (uint32_t i = 1; m->blocks && i < m->blocks->n; i++) {
		const struct kv_layout layout = layout_of(m, &m->blocks->block[i]);
		draft_engine_add_needs(m->blocks->block[i].model, &layout, &limits, device, needs);
	}
}

static bool allocate(struct head_block *b, uint32_t n)
{
	b->batch = calloc(n, sizeof(*b->batch));
	b->cells = calloc(n, sizeof(*b->cells));
	b->row = calloc(n, sizeof(*b->row));
	return b->batch && b->cells && b->row;
}

int head_blocks_open(struct draft_model *m, const char *target_path, struct error *err)
{
	struct head_blocks *blocks = calloc(1, sizeof(*blocks));
	m->blocks = blocks;
	if (!blocks || !(blocks->block[0].row = calloc(m->n_batch_max, sizeof(int32_t))))
		return error_set(err, ENOMEM, "no memory for layers for drafts");
	for (blocks->n = 1; blocks->n < m->head->n_blocks && blocks->n < HEAD_BLOCKS; blocks->n++) {
		struct head_block *b = &blocks->block[blocks->n];
		int r = head_load_nextn(target_path, blocks->n, &b->model, err);
		if (r == -ENODATA)
			break;
		if (r == 0 && !allocate(b, m->n_batch_max))
			r = error_set(err, ENOMEM, "no memory for a layer for drafts");
		if (r < 0)
			return r;
	}
	if (blocks->n > 1)
		log_info("%u layers draft, one for each token", blocks->n);
	return head_blocks_place(m, err);
}

void head_blocks_close(struct draft_model *m)
{
	for (uint32_t i = 0; m->blocks && i < HEAD_BLOCKS; i++) {
		struct head_block *b = &m->blocks->block[i];
		model_free(&b->model);
		free(b->batch);
		free(b->cells);
		free(b->row);
	}
	free(m->blocks);
	m->blocks = NULL;
}

/* Which token of a draft a row drafts, from 1 on; rows of the session's own tokens are like its last
 * one. */
static uint32_t step_of(const struct draft_model *m, uint32_t row)
{
	const struct draft_session *s = m->owner[row];
	uint32_t token = m->batch[row].position + s->shift;
	return token < s->n ? 1 : token - s->n + 2;
}

static uint32_t drafting_block(const struct draft_model *m, uint32_t row)
{
	uint32_t step = step_of(m, row);
	return (step < m->blocks->n ? step : m->blocks->n) - 1;
}

bool head_blocks_need_first(const struct draft_model *m, uint32_t n)
{
	for (uint32_t row = 0; row < n; row++)
		if (step_of(m, row) == 1)
			return true;
	return n == 0;
}

static size_t width_of(const struct draft_model *m)
{
	return m->model->config.n_embd;
}

static const float *out_of(const struct draft_model *m, uint32_t block, uint32_t row)
{
	const struct head_block *b = &m->blocks->block[block];
	struct forward *forward = block == 0 ? m->forward : b->forward;
	return forward_head_rows(forward).out + (size_t)b->row[row] * width_of(m);
}

static bool continues(const struct draft_model *m, uint32_t row)
{
	return row > 0 && m->owner[row - 1] == m->owner[row];
}

static struct head_trail *trail_of(struct draft_model *m, struct draft_session *s)
{
	struct head_trail *t = s->trail;
	size_t n = m->blocks->n * width_of(m);
	if (t)
		return t;
	t = calloc(1, sizeof(*t));
	if (t && (t->last = calloc(3 * n, sizeof(*t->last)))) {
		t->kept[0] = t->last + n;
		t->kept[1] = t->kept[0] + n;
		s->trail = t;
		return t;
	}
	free(t);
	return NULL;
}

/* The state that a block reads in a row: of the block before, for the token before; behind the last
 * block's own draft, its own. */
static const float *state_of(const struct draft_model *m, uint32_t block, uint32_t row)
{
	uint32_t from = step_of(m, row) > m->blocks->n ? block : block - 1;
	if (!continues(m, row))
		return m->owner[row]->trail->last + from * width_of(m);
	return m->blocks->block[from].row[row - 1] < 0 ? NULL : out_of(m, from, row - 1);
}

int head_blocks_pass(struct draft_model *m, struct head_block *b)
{
	if (m->backend != m->host)
		return forward_run(b->forward, b->batch, b->n_in_batch);
	return head_experts_run(&b->experts, b->forward, b->batch, b->n_in_batch);
}

void head_blocks_counts(const struct draft_model *m, uint64_t *from_slots, uint64_t *from_file)
{
	*from_slots = *from_file = 0;
	for (uint32_t i = 1; m->blocks && i < m->blocks->n; i++) {
		*from_slots += m->blocks->block[i].experts.from_slots;
		*from_file += m->blocks->block[i].experts.from_file;
	}
}

/* Puts a row of the head's batch into that of a block. */
static int add_row(struct draft_model *m, uint32_t block, uint32_t row)
{
	struct head_block *b = &m->blocks->block[block];
	struct draft_session *s = m->owner[row];
	struct kv_seq *seq = &s->trail->seq[block];
	uint32_t at = b->n_in_batch, position = m->batch[row].position;
	bool follows = continues(m, row) && b->row[row - 1] >= 0;
	b->row[row] = -1;
	if (block < drafting_block(m, row) || position < block)
		return 0;
	const float *state = state_of(m, block, row);
	if (seq->owner == 0 && kv_seq_init(seq, s->uid, m->n_context) < 0)
		return -ENOMEM;
	uint32_t expected = follows ? b->batch[at - 1].position + 1 : seq->n;
	if (!state || expected != position - block)
		return -ESTALE;
	if (kv_take(&b->kv, seq, 1, b->cells + at) < 0)
		return -ENOSPC;
	memcpy(forward_head_rows(b->forward).states + (size_t)at * width_of(m), state,
		width_of(m) * sizeof(*state));
	b->batch[at] = (struct batch_token){
		.seq = seq,
		.token = m->batch[row].token,
		.position = position - block,
		.parent = follows ? (int32_t)at - 1 : -1,
		.logits = m->batch[row].logits && drafting_block(m, row) == block,
		.cell = b->cells[at],
	};
	b->row[row] = (int32_t)at;
	b->n_in_batch++;
	return 0;
}

/* Commits a block's rows, or gives their cells back. */
static void settle(struct draft_model *m, uint32_t block, uint32_t n, bool done)
{
	struct head_block *b = &m->blocks->block[block];
	for (uint32_t row = 0; row < n; row++) {
		uint32_t *cell = b->cells + (b->row[row] < 0 ? 0 : b->row[row]);
		if (b->row[row] >= 0)
			kv_commit(
				&b->kv, &m->owner[row]->trail->seq[block], cell, done, cell, !done);
	}
}

static int run_block(struct draft_model *m, uint32_t block, uint32_t n)
{
	struct head_block *b = &m->blocks->block[block];
	int r = 0;
	b->n_in_batch = 0;
	for (uint32_t row = 0; row < n; row++)
		b->row[row] = -1;
	for (uint32_t row = 0; r == 0 && row < n; row++)
		r = add_row(m, block, row);
	if (r == 0 && b->n_in_batch > 0)
		r = head_blocks_pass(m, b);
	settle(m, block, n, r == 0);
	return r;
}

/* Notes the states of a session's last row, which may be those of the target. */
static void note(struct draft_model *m, uint32_t first, uint32_t last)
{
	struct head_trail *t = m->owner[last]->trail;
	size_t width = width_of(m), bytes = m->blocks->n * width * sizeof(float);
	bool is_true = step_of(m, last) == 1;
	if (is_true && last == first && t->n_kept > 0)
		memcpy(t->kept[1], t->kept[0], bytes);
	for (uint32_t c = 0; c < m->blocks->n; c++) {
		const int32_t *row = m->blocks->block[c].row;
		if (row[last] >= 0)
			memcpy(t->last + c * width, out_of(m, c, last), width * sizeof(float));
		if (is_true && last > first && row[last - 1] >= 0)
			memcpy(t->kept[1] + c * width, out_of(m, c, last - 1),
				width * sizeof(float));
	}
	if (!is_true)
		return;
	memcpy(t->kept[0], t->last, bytes);
	t->n_kept = last > first || t->n_kept > 0 ? 2 : 1;
}

int head_blocks_run(struct draft_model *m, uint32_t n)
{
	int r = 0;
	for (uint32_t row = 0; row < n; row++) {
		m->blocks->block[0].row[row] = step_of(m, row) == 1 ? (int32_t)row : -1;
		if (!trail_of(m, m->owner[row]))
			return -ENOMEM;
	}
	for (uint32_t block = 1; r == 0 && block < m->blocks->n; block++)
		r = run_block(m, block, n);
	/* Blocks that differ in what they know begin anew. */
	for (uint32_t row = 0; r < 0 && row < n; row++)
		m->owner[row]->trail->n_kept = 0;
	for (uint32_t first = 0, last; r == 0 && first < n; first = last + 1) {
		for (last = first; last + 1 < n && m->owner[last + 1] == m->owner[first];)
			last++;
		note(m, first, last);
	}
	return r;
}

const float *head_blocks_logits(const struct draft_model *m, uint32_t row)
{
	uint32_t block = drafting_block(m, row);
	const struct head_block *b = &m->blocks->block[block];
	return block == 0 ? forward_logits(m->forward, row)
			  : forward_logits(b->forward, (uint32_t)b->row[row]);
}

bool head_blocks_rewind(struct draft_model *m, struct draft_session *s, uint32_t keep)
{
	struct head_trail *t = s->trail;
	uint32_t back = s->n_true - keep;
	size_t bytes = m->blocks->n * width_of(m) * sizeof(float);
	if (!t || keep == 0 || keep > s->n_true || back >= t->n_kept)
		return false;
	for (uint32_t block = 1; block < m->blocks->n; block++) {
		struct kv_seq *seq = &t->seq[block];
		uint32_t n = keep > block ? keep - block : 0;
		if (seq->n > n)
			kv_truncate(&m->blocks->block[block].kv, seq, n);
		if (seq->n != n)
			return false;
	}
	if (back == 1) {
		memcpy(t->kept[0], t->kept[1], bytes);
		t->n_kept = 1;
	}
	memcpy(t->last, t->kept[0], bytes);
	return true;
}

void head_blocks_drop(struct draft_model *m, struct draft_session *s)
{
	struct head_trail *t = s->trail;
	for (uint32_t block = 1; t && block < m->blocks->n; block++)
		if (t->seq[block].owner != 0)
			kv_seq_exit(&m->blocks->block[block].kv, &t->seq[block]);
	if (t) {
		free(t->last);
		free(t->branches);
	}
	free(t);
	s->trail = NULL;
}
