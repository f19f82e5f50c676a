/*
 * Rows with a mask of an adapter in place of a token (shared/model/arch/adapter.h): their additions
 * to the products of a layer, and the drafts that are read from their states.
 *
 * What is kept of a pass for that is its residual stream, which stays until the next pass begins.
 */
#include "shared/model/pass/forward_internal.h"

#include <errno.h>

void masks_layout(struct forward *f, struct carve *c)
{
	size_t T = FORWARD_PICKS, D = f->model->config.n_embd, one = sizeof(float);
	if (!f->limits.adapter)
		return;
	f->mask_in = carve_at(c, T * 2 * D, one);
	f->mask_z = carve_at(c, T * D, one);
	f->mask_y = carve_at(c, T * D, one);
	f->mask_u = carve_at(c, T * D, one);
	f->mask_s = carve_at(c, T * D, one);
	f->mask_q8 = carve_at(c, T * (D / Q8_BLOCK), sizeof(struct q8_block));
}

void masks_layout_batch(struct forward *f, struct carve *c)
{
	size_t T = f->limits.adapter ? f->limits.n_batch : 0;
	CARVE(c, f->gated_rows, T);
	CARVE(c, f->gated, T);
	CARVE(c, f->mask_tokens, f->limits.adapter ? FORWARD_PICKS : 0);
}

void masks_layout_tables(struct forward *f, struct carve *c)
{
	const struct adapter *a = f->limits.adapter;
	CARVE(c, f->adapts, a ? f->model->config.n_experts : 0);
	CARVE(c, f->mask_picks, a ? a->draft_length * FORWARD_PICKS : 0);
	CARVE(c, f->mask_picked, a ? a->draft_length * FORWARD_PICKS : 0);
}

int masks_prepare(struct forward *f)
{
	const struct adapter *adapter = f->limits.adapter;
	f->n_gated = 0;
	for (uint32_t t = 0; t < f->n; t++) {
		int32_t token = f->tokens[t].token;
		if (token < 0 && (!adapter || -1 - token >= (int32_t)adapter->draft_length))
			return -EINVAL;
		if (!adapter)
			continue;
		f->gated[t] = token < 0;
		if (token < 0)
			f->gated_rows[f->n_gated++] = t;
	}
	return 0;
}

void masks_adapt(struct forward *f, const struct low_rank *const *w, const struct rows *x,
	const struct rows *y, uint32_t n)
{
	struct step_adapt_one of[STEP_NEXT];
	struct step_adapt step = {
		.of = of,
		.which = batch_rows(f, f->gated_rows, sizeof(*f->gated_rows), f->n_gated),
	};
	for (uint32_t i = 0; i < n; i++)
		if (w[i]->a.data)
			of[step.n++] = (struct step_adapt_one){*w[i], x[i], y[i]};
	if (step.n > 0)
		f->queue->ops->adapt(f->queue, &step);
}

static bool any(const struct ffn_adapt *w)
{
	return w->gate.a.data || w->up.a.data || w->down.a.data;
}

const struct ffn_adapt *masks_ffn(const struct forward *f, enum adapt_part part)
{
	if (f->n_gated == 0)
		return NULL;
	const struct adapter_layer *layer = &f->limits.adapter->layers[f->layer];
	const struct ffn_adapt *w = part == ADAPT_DENSE ? &layer->dense : &layer->shared;
	return any(w) ? w : NULL;
}

const struct ffn_adapt *masks_expert(struct forward *f, uint16_t expert)
{
	if (f->n_gated == 0)
		return NULL;
	const struct ffn_adapt *w = &f->limits.adapter->layers[f->layer].experts;
	if (!any(w))
		return NULL;
	f->adapts[expert] = (struct ffn_adapt){adapter_of_expert(&w->gate, expert),
		adapter_of_expert(&w->up, expert), adapter_of_expert(&w->down, expert)};
	return &f->adapts[expert];
}

/* ---- Drafts. ---- */

static struct rows rows_of(const struct forward *f, rows_at at, size_t width, uint32_t n)
{
	return (struct rows){&f->memory, at, width * sizeof(float), n};
}

/* The masks' states behind the output norm, from the residual stream of the pass: to mask_z, and to
 * the second half of mask_in. rows: of the batch. */
static void take_states(struct forward *f, const uint32_t *rows, uint32_t n)
{
	const struct model *model = f->model;
	uint32_t d = model->config.n_embd;
	struct rows x = floats_of(f, f->x, d), z = rows_of(f, f->mask_z, d, n);
	for (uint32_t i = 0; i < n; i++)
		f->queue->ops->copy(f->queue, (struct place){z.buffer, z.offset + i * z.stride},
			(struct place){x.buffer, x.offset + rows[i] * x.stride}, x.stride);
	const struct step_norm step = {
		.width = d,
		.x = z,
		.w = model->output_norm,
		.bias = model->output_norm_bias,
		.eps = model->config.rms_eps,
		.y = z,
	};
	f->queue->ops->norm(f->queue, &step);
}

/* [e; z] in mask_in: e is the embedding of f->mask_tokens. */
static void join(struct forward *f, uint32_t n)
{
	uint32_t d = f->model->config.n_embd;
	struct rows in = rows_of(f, f->mask_in, 2 * (size_t)d, n), z = rows_of(f, f->mask_z, d, n);
	const struct step_embed step = {
		.tokens = batch_rows(f, f->mask_tokens, sizeof(*f->mask_tokens), n),
		.table = f->model->embedding,
		.x = in,
	};
	f->queue->ops->embed(f->queue, &step);
	for (uint32_t i = 0; i < n; i++)
		f->queue->ops->copy(f->queue,
			(struct place){in.buffer, in.offset + i * in.stride + z.stride},
			(struct place){z.buffer, z.offset + i * z.stride}, z.stride);
}

static void multiply(struct forward *f, const struct matrix *w, struct inputs in, struct rows y)
{
	const struct step_product product = product_of(w, in, y);
	const struct step_products step = {.of = &product, .n = 1};
	f->queue->ops->products(f->queue, &step);
}

/* The sampler's part i: mask_y = W_i in, then out = norm(silu(mask_y)) and what is added. */
static void part(struct forward *f, uint32_t i, struct rows in, const struct rows *add, rows_at out,
	uint32_t n)
{
	const struct adapter *a = f->limits.adapter;
	uint32_t d = f->model->config.n_embd;
	struct rows y = rows_of(f, f->mask_y, d, n);
	multiply(f, &a->sampler[i], (struct inputs){in, {0}}, y);
	struct step_silu_norm step = {
		.width = d,
		.y = y,
		.w = a->sampler_norm[i],
		.eps = f->model->config.rms_eps,
		.skip = a->skip,
		.out = rows_of(f, out, d, n),
	};
	if (add) {
		step.add = *add;
		if (a->skip != 0)
			step.z = rows_of(f, f->mask_z, d, n);
	}
	f->queue->ops->silu_norm(f->queue, &step);
}

/* The rows that are multiplied with the output: the sampler's result, or z without a sampler. */
static struct rows sample(struct forward *f, uint32_t n)
{
	uint32_t d = f->model->config.n_embd;
	struct rows u = rows_of(f, f->mask_u, d, n);
	if (!f->limits.adapter->sampler[0].data)
		return rows_of(f, f->mask_z, d, n);
	join(f, n);
	part(f, 0, rows_of(f, f->mask_in, 2 * (size_t)d, n), NULL, f->mask_u, n);
	part(f, 1, u, &u, f->mask_s, n);
	return rows_of(f, f->mask_s, d, n);
}

/* Picks from the logits of rows s, in the room of the rows that are only picked from. */
static int pick(struct forward *f, struct rows s, uint32_t n, uint32_t first)
{
	const struct model *model = f->model;
	struct inputs in = {s, {0}};
	struct rows logits = logits_of(f, f->limits.n_logits);
	logits.n = n;
	if (matrix_quantised(&model->output)) {
		in.q8 = (struct rows){&f->memory, f->mask_q8,
			model->config.n_embd / Q8_BLOCK * sizeof(struct q8_block), n};
		const struct step_norm step = {
			.width = model->config.n_embd, .x = s, .y_q8 = in.q8};
		f->queue->ops->norm(f->queue, &step);
	}
	multiply(f, &model->output, in, logits);
	for (uint32_t i = 0; i < n; i++)
		f->pick_row[i] = i;
	const struct step_pick step = {
		.logits = logits,
		.rows = f->mask_picks,
		.first = first,
		.n = n,
		.which = f->pick_row,
		.results = f->mask_picked,
	};
	f->queue->ops->pick(f->queue, &step);
	return f->queue->ops->wait(f->queue, f->queue->ops->ticket(f->queue));
}

/* Adds the pick of mask j of a group, which is the i-th of its depth. before: its pick of mask j - 1,
 * or -1. False: the row is no mask. */
static bool add(struct forward *f, const struct forward_masks *group, uint32_t j, uint32_t at,
	uint32_t i, int32_t before)
{
	int32_t token = before < 0 ? group->token : f->mask_picked[before].token;
	struct pick_row *row = &f->mask_picks[at];
	if (group->row + j >= f->n || !f->gated[group->row + j] || token < 0 ||
		(uint32_t)token >= f->model->config.n_vocab)
		return false;
	*row = group->like;
	row->parent = before;
	row->token = token;
	row->source = i;
	row->position += j;
	row->want_p = true;
	f->mask_tokens[i] = (struct step_token){.id = (uint32_t)token};
	return true;
}

int forward_draft(struct forward *forward, const struct forward_masks *groups, uint32_t n)
{
	struct forward *f = forward;
	uint32_t rows[FORWARD_PICKS], which[FORWARD_PICKS], first = 0;
	int32_t last[FORWARD_PICKS]; /* of each group, its last pick */
	if (!f->limits.adapter || n > FORWARD_PICKS || n > f->limits.n_picks)
		return -EINVAL;
	for (uint32_t i = 0; i < n; i++)
		last[i] = -1;
	for (uint32_t j = 0; j < f->limits.adapter->draft_length; j++) {
		uint32_t m = 0;
		for (uint32_t i = 0; i < n; i++) {
			if (groups[i].n <= j)
				continue;
			if (!add(f, &groups[i], j, first + m, m, last[i]))
				return -EINVAL;
			last[i] = (int32_t)(first + m);
			rows[m] = groups[i].row + j;
			which[m++] = i;
		}
		if (m == 0)
			break;
		take_states(f, rows, m);
		int rc = pick(f, sample(f, m), m, first);
		if (rc < 0)
			return rc;
		for (uint32_t i = 0; i < m; i++) {
			groups[which[i]].drafted[j] = f->mask_picked[first + i].token;
			groups[which[i]].chance[j] = f->mask_picked[first + i].p;
		}
		first += m;
	}
	return 0;
}
