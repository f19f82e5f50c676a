/*
 * What a pass of a draft head does besides a layer (shared/model/arch/head.h). e: embedding of the
 * row's token; g, h: its state; [a; b]: one row after the other.
 *
 * EAGLE-3: g = fc(taps), or fc(norm(taps)); attention reads [norm(e); norm(g)]; the residual stream
 * begins as g, or as norm(g); the state that is given back is x, before output_norm.
 *
 * nextn: h = norm(taps), the target's; x = eh_proj [norm(e); norm(h)]; the state that is given back is that after output_norm.
 */
#include "shared/model/pass/forward_internal.h"
#include "shared/model/arch/head.h"

static size_t wide_width(const struct forward *f)
{
	size_t two = 2 * (size_t)f->model->config.n_embd, taps = f->model->head->n_state;
	return two > taps ? two : taps;
}

void head_layout(struct forward *f, struct carve *c)
{
	size_t T = f->limits.n_batch, width = wide_width(f);
	f->wide = carve_at(c, T * width, sizeof(float));
	f->wide_q8 = carve_at(c, T * ((width + Q8_BLOCK - 1) / Q8_BLOCK), sizeof(struct q8_block));
}

void head_layout_batch(struct forward *f, struct carve *c)
{
	const struct head *head = f->model->head;
	size_t T = f->limits.n_batch, D = f->model->config.n_embd;
	CARVE(c, f->head_taps, T * head->n_state);
	CARVE(c, f->head_states, T * D);
	CARVE(c, f->head_out, T * D);
}

struct forward_head_rows forward_head_rows(const struct forward *forward)
{
	return (struct forward_head_rows){
		forward->head_taps, forward->head_states, forward->head_out};
}

/* y = norm(x) * w; y_q8 may have no buffer. */
static void norm_rows(struct forward *f, uint32_t width, struct rows x, const float *w,
	struct rows y, struct rows y_q8)
{
	const struct step_norm step = {
		.width = width,
		.x = x,
		.w = w,
		.eps = f->model->config.rms_eps,
		.y = y,
		.y_q8 = y_q8,
	};
	f->queue->ops->norm(f->queue, &step);
}

static struct rows state_rows(const struct forward *f)
{
	size_t bytes = f->model->config.n_embd * sizeof(float);
	return batch_rows(f, f->head_states, bytes, f->n);
}

/* [norm(e); norm(state)], and its quantised form where a product needs that. */
static struct inputs join(struct forward *f, bool quantised)
{
	const struct head *head = f->model->head;
	uint32_t d = f->model->config.n_embd;
	struct inputs in = inputs_of(f, f->wide, f->wide_q8, 2 * (size_t)d);
	struct rows half = in.f32;
	norm_rows(f, d, floats_of(f, f->x, d), head->token_norm, half, (struct rows){0});
	half.offset += d * sizeof(float);
	norm_rows(f, d, state_rows(f), head->state_norm, half, (struct rows){0});
	if (quantised)
		norm_rows(f, 2 * d, in.f32, NULL, (struct rows){0}, in.q8);
	return in;
}

static void multiply(struct forward *f, const struct matrix *w, struct inputs in, struct rows y,
	struct step_fast fast)
{
	const struct step_product product = product_of(w, in, y);
	const struct step_products step = {.of = &product, .n = 1, .fast = fast};
	f->queue->ops->products(f->queue, &step);
}

void head_begin(struct forward *f)
{
	const struct head *head = f->model->head;
	if (head->kind != HEAD_NEXTN)
		return;
	struct inputs in = join(f, matrix_quantised(&head->project));
	multiply(f, &head->project, in, floats_of(f, f->x, f->model->config.n_embd), fast_of(f));
}

void head_attention(struct forward *f)
{
	const struct head *head = f->model->head;
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t d = f->model->config.n_embd;
	struct rows x = floats_of(f, f->x, d), states = state_rows(f);
	struct inputs in = join(f, matrix_quantised(&layer->q) || matrix_quantised(&layer->k) ||
					   matrix_quantised(&layer->v));
	/* The embedding in x has been read. */
	if (head->residual_normed)
		norm_rows(f, d, states, head->state_norm, x, (struct rows){0});
	else
		f->queue->ops->copy(f->queue, (struct place){x.buffer, x.offset},
			(struct place){states.buffer, states.offset}, f->n * x.stride);
	attention_from(f, in);
}

void head_end(struct forward *f)
{
	uint32_t d = f->model->config.n_embd;
	struct rows x = floats_of(f, f->x, d), out = batch_rows(f, f->head_out, x.stride, f->n);
	if (f->model->head->kind == HEAD_NEXTN)
		norm_rows(f, d, x, f->model->output_norm, out, (struct rows){0});
	else
		f->queue->ops->copy(f->queue, (struct place){out.buffer, out.offset},
			(struct place){x.buffer, x.offset}, f->n * x.stride);
}

/* Runs of n rows, which all are fast; in f->fast, until the next pass. */
static struct step_fast all_fast(struct forward *f, uint32_t n)
{
	uint32_t n_runs = 0;
	for (uint32_t at = 0; at < n; at += FORWARD_FAST_CHUNK)
		f->fast[n_runs++] = (struct step_run){
			at, n - at < FORWARD_FAST_CHUNK ? n - at : FORWARD_FAST_CHUNK};
	return (struct step_fast){f->fast, n_runs};
}

int forward_head_fuse(struct forward *forward, uint32_t first, uint32_t n, bool fast)
{
	struct forward *f = forward;
	const struct head *head = f->model->head;
	size_t d = f->model->config.n_embd, width = head->n_state;
	if (n == 0 || first >= f->limits.n_batch || n > f->limits.n_batch - first ||
		(fast && !f->limits.fast))
		return -EINVAL;
	f->n = n;
	struct rows taps = batch_rows(f, f->head_taps + first * width, width * sizeof(float), n);
	struct rows states = batch_rows(f, f->head_states + first * d, d * sizeof(float), n);
	if (head->kind == HEAD_NEXTN) {
		norm_rows(f, (uint32_t)d, taps, head->taps_norm, states, (struct rows){0});
		return f->queue->ops->wait(f->queue, f->queue->ops->ticket(f->queue));
	}
	struct inputs in = {taps, q8_of(f, f->wide_q8, width)};
	bool quantised = matrix_quantised(&head->project);
	if (head->taps_norm)
		in.f32 = floats_of(f, f->wide, width);
	if (head->taps_norm || quantised)
		norm_rows(f, (uint32_t)width, taps, head->taps_norm, in.f32,
			quantised ? in.q8 : (struct rows){0});
	multiply(f, &head->project, in, states, fast ? all_fast(f, n) : (struct step_fast){0});
	return f->queue->ops->wait(f->queue, f->queue->ops->ticket(f->queue));
}
