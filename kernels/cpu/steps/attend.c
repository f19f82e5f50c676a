/* The step `attend`: what is done between the products and attention (attention_split.c), and after
 * it. */
#include "kernels/cpu/steps/steps.h"

struct attend {
	const struct kernels *kernels;
	const struct step_attend *step;
};

/* ---- A batch, for attention_run. ---- */

/* The cells of a token's own ancestors, from the last position to the first. */
static void branch_cells(void *arg, uint32_t t, uint32_t from, uint32_t to, uint32_t *cells)
{
	const struct rows *tokens = &((const struct batch_cells *)arg)->tokens;

	for (int32_t i = (int32_t)t; i >= 0 && token_at(tokens, (uint32_t)i)->position >= from;
		i = token_at(tokens, (uint32_t)i)->parent) {
		const struct step_token *token = token_at(tokens, (uint32_t)i);

		if (token->position < to)
			cells[token->position - from] = token->cell;
	}
}

struct attention_step attention_step_of(
	struct cpu_queue *q, const struct batch_cells *batch, const struct kv_cells *cells)
{
	return (struct attention_step){
		.kernels = q->kernels,
		.pool = q->pool,
		.tokens = q->attention_tokens,
		.kv_type = cells->type,
		.k = cells->buffer->host + cells->k,
		.v = cells->buffer->host + cells->v,
		.k_head_bytes = cells->k_head_bytes,
		.v_head_bytes = cells->v_head_bytes,
		.k_cell_bytes = cells->k_bytes,
		.v_cell_bytes = cells->v_bytes,
		.k_turned = cells->k_turned,
		.v_paired = cells->v_paired,
		.cell_of = cells->of.buffer ? place_at(cells->of) : NULL,
		.tail = branch_cells,
		.tail_arg = (void *)batch,
	};
}

struct attention_token attention_token_of(
	const struct batch_cells *batch, uint32_t t, const float *q, float *out)
{
	const struct step_token *token = token_at(&batch->tokens, t);
	uint32_t last = token->position + 1;

	return (struct attention_token){
		.q = q,
		.out = out,
		.first = batch->window > 0 && last > batch->window ? last - batch->window : 0,
		.last = last,
		.cells = (const uint32_t *)(const void *)batch->maps[token->map]->host,
		.shared = token->shared,
	};
}

/* ---- Heads. ---- */

/* Distance between query heads: each may be followed by its gate. */
static uint32_t q_stride(const struct step_attend *s)
{
	return s->gated ? 2 * s->dim : s->dim;
}

/* For models that normalise all heads of a token as one vector: the biases and that norm, which
 * finish_head then leaves out. */
static void norm_vectors(void *arg, uint32_t t, uint32_t thread)
{
	const struct attend *a = arg;
	const struct step_attend *s = a->step;
	uint32_t q_width = s->n_heads * q_stride(s), kv_width = s->n_kv_heads * s->dim;
	float *q = floats_at(&s->q, t), *k = floats_at(&s->k, t);

	(void)thread;
	if (s->q_bias)
		a->kernels->add(q, s->q_bias, q_width);
	if (s->k_bias)
		a->kernels->add(k, s->k_bias, kv_width);
	if (s->q_norm)
		a->kernels->rms_norm(q, s->q_norm, s->eps, q_width, q);
	if (s->k_norm)
		a->kernels->rms_norm(k, s->k_norm, s->eps, kv_width, k);
}

/* Bias, norm and rotation of one head. The bias has `width` values. */
static void finish_head(const struct attend *a, float *head, uint32_t width, const float *bias,
	const float *norm, const float *cos_sin)
{
	const struct step_attend *s = a->step;

	if (bias && !s->norm_vectors)
		a->kernels->add(head, bias, width);
	if (norm && !s->norm_vectors)
		a->kernels->rms_norm(head, norm, s->eps, s->dim, head);
	a->kernels->rope(head, cos_sin, s->batch.n_rot, s->rope_neox);
}

static void store_head(
	const struct attend *a, uint32_t cell, uint32_t head, const float *k, const float *v)
{
	const struct step_attend *s = a->step;
	const struct kv_cells *c = &s->cells;
	unsigned char *k_cells = c->buffer->host + c->k + head * c->k_head_bytes;
	unsigned char *v_cells = c->buffer->host + c->v + head * c->v_head_bytes;

	if (c->of.buffer)
		cell = ((const uint32_t *)place_at(c->of))[cell];
	a->kernels->kv_store_turned(k, s->dim, c->type, k_cells, cell);
	if (c->v_paired)
		a->kernels->kv_store_paired(v, s->dim, c->type, v_cells, cell);
	else
		a->kernels->kv_store(v, s->dim, c->type, v_cells + cell * c->v_bytes);
}

static const float *bias_at(const float *bias, size_t at)
{
	return bias ? bias + at : NULL;
}

/* Turns the products of one KV head, and of its query heads, into what attention reads. */
static void finish_heads(void *arg, uint32_t t, uint32_t kv_head)
{
	const struct attend *a = arg;
	const struct step_attend *s = a->step;
	uint32_t group = s->n_heads / s->n_kv_heads, dim = s->dim;
	const float *cos_sin = floats_at(&s->batch.cos_sin, t);
	size_t at = (size_t)kv_head * dim;
	float *q = floats_at(&s->q, t), *k = floats_at(&s->k, t) + at;
	float *v = floats_at(&s->v, t) + at;

	for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
		size_t q_at = (size_t)h * q_stride(s);

		finish_head(a, q + q_at, q_stride(s), bias_at(s->q_bias, q_at), s->q_norm, cos_sin);
	}
	finish_head(a, k, dim, bias_at(s->k_bias, at), s->k_norm, cos_sin);
	if (s->v_bias)
		a->kernels->add(v, s->v_bias + at, dim);
	store_head(a, token_at(&s->batch.tokens, t)->cell, kv_head, k, v);
}

/* Finishes the heads of one KV head of a token: gates, and the quantised form for the next product.
 */
static void finish_attention(void *arg, uint32_t t, uint32_t kv_head)
{
	const struct attend *a = arg;
	const struct step_attend *s = a->step;
	uint32_t group = s->n_heads / s->n_kv_heads, dim = s->dim;
	size_t at = (size_t)kv_head * group * dim;
	const float *q = floats_at(&s->q, t) + (size_t)kv_head * group * q_stride(s);
	float *out = floats_at(&s->out, t) + at;

	for (uint32_t h = 0; h < group && s->gated; h++)
		a->kernels->sigmoid_mul(q + (size_t)h * q_stride(s) + dim, out + (size_t)h * dim,
			dim, out + (size_t)h * dim);
	/* No block straddles two groups when a group's output is a whole number of blocks. */
	if (s->out_q8.buffer && group * dim % Q8_BLOCK == 0)
		a->kernels->quantise_q8(out, group * dim, q8_at(&s->out_q8, t) + at / Q8_BLOCK);
}

static void finish_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct attend *a = arg;

	(void)thread;
	for (uint32_t h = 0; h < a->step->n_kv_heads; h++)
		finish_heads(arg, t, h);
}

struct all {
	/* first, so that functions for one head can take this for a struct attend */
	struct attend attend;
	struct cpu_queue *q;
};

static size_t qkv_bytes(const struct step_attend *s)
{
	return (size_t)(s->n_heads + 2 * s->n_kv_heads) * s->dim * sizeof(float);
}

static void finish_all(void *arg)
{
	struct all *all = arg;
	const struct step_attend *s = all->attend.step;
	uint32_t n = s->batch.tokens.n;

	work_items(all->q, n, n * 2 * qkv_bytes(s), finish_row, &all->attend);
}

void cpu_attend(struct queue *queue, const struct step_attend *s)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct all all = {{q->kernels, s}, q};
	uint32_t n = s->batch.tokens.n, group = s->n_heads / s->n_kv_heads;
	struct attention_step run = attention_step_of(q, &s->batch, &s->cells);

	assert(n <= q->limits.n_tokens);
	if (s->norm_vectors)
		work_items(q, n, n * 2 * qkv_bytes(s), norm_vectors, &all.attend);
	for (uint32_t t = 0; t < n; t++)
		q->attention_tokens[t] = attention_token_of(
			&s->batch, t, floats_at(&s->q, t), floats_at(&s->out, t));
	run.n_tokens = n;
	run.k_dim = run.v_dim = s->dim;
	run.n_kv_heads = s->n_kv_heads;
	run.n_heads = group;
	run.q_stride = q_stride(s);
	run.out_stride = s->dim;
	run.scale = s->scale;
	run.sinks = s->sinks;
	run.prepare = finish_heads;
	run.prepare_all = finish_all;
	run.done = finish_attention;
	run.arg = &all;
	attention_run(&run, &q->attention);
	if (s->out_q8.buffer && group * s->dim % Q8_BLOCK != 0)
		work_quantise(q, n, s->n_heads * s->dim, &s->out, &s->out_q8);
}
