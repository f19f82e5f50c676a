/*
 * The attention half of a layer. A token attends to its sequence's committed cells, then to its ancestors in the batch,
 * then to itself.
 *
 * Where those cells lie: seq->cell maps positions to cells, and its entries from seq->n on are free for this. The
 * first token at each position whose ancestors are such tokens too ("main chain") writes its cell there, so a chain of any
 * length, be it a prefill chunk or a draft, needs no lists: token at position p attends to cell[0..p]. Only the other
 * branches of a tree build theirs, as far as they are their own, into memory of the thread that attends.
 */
#include "shared/model/pass/forward_internal.h"

#include "kernels/kernels.h"

#include <string.h>

/* Whether another token of the batch is already the first of this sequence's main chain. */
static bool root_taken(const struct forward *f, const struct kv_seq *seq, uint32_t n_roots)
{
	for (uint32_t i = n_roots; i-- > 0;)
		if (f->tokens[f->main_roots[i]].seq == seq)
			return true;
	return false;
}

int attention_prepare(struct forward *f)
{
	uint32_t n_roots = 0;
	uint32_t n_cells = f->kv->layout.n_pages * KV_PAGE_CELLS;
	memset(f->has_main_child, 0, f->n * sizeof(*f->has_main_child));
	for (uint32_t t = 0; t < f->n; t++) {
		const struct batch_token *token = &f->tokens[t];
		struct kv_seq *seq = token->seq;
		if (!seq || token->parent < -1 || token->parent >= (int32_t)t ||
			token->position >= f->n_context || token->cell >= n_cells ||
			(uint32_t)token->token >= f->model->config.n_vocab ||
			!kv_windows_has(f->kv, token->cell))
			return -EINVAL;
		if (token->parent < 0) {
			if (token->position != seq->n)
				return -EINVAL;
			f->on_main[t] = !root_taken(f, seq, n_roots);
			if (f->on_main[t])
				f->main_roots[n_roots++] = t;
		} else {
			uint32_t parent = (uint32_t)token->parent;
			if (f->tokens[parent].seq != seq ||
				token->position != f->tokens[parent].position + 1)
				return -EINVAL;
			f->on_main[t] = f->on_main[parent] && !f->has_main_child[parent];
			if (f->on_main[t])
				f->has_main_child[parent] = true;
		}
		if (f->on_main[t]) {
			if (token->position >= seq->n_max)
				return -EINVAL;
			seq->cell[token->position] = token->cell;
		}
		f->step_tokens[t] = (struct step_token){
			.id = (uint32_t)token->token,
			.position = token->position,
			.parent = token->parent,
			.cell = token->cell,
		};
	}
	return 0;
}

/* From one query head to the next: with arch->q_gate, each is followed by its gate. */
static uint32_t q_stride(const struct forward *f)
{
	const struct model_config *config = &f->model->config;
	return config->arch->q_gate ? 2 * config->head_dim : config->head_dim;
}

/* Of models that norm all heads of a token as one vector: their biases and that norm, which finish_head leaves out. */
static void norm_vectors(struct forward *f, uint32_t t)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t q_width = config->n_heads * q_stride(f);
	uint32_t kv_width = config->n_kv_heads * config->head_dim;
	float *q = f->q_rows[t], *k = f->k_rows[t];
	if (layer->q_bias)
		f->kernels->add(q, layer->q_bias, q_width);
	if (layer->k_bias)
		f->kernels->add(k, layer->k_bias, kv_width);
	if (layer->q_norm)
		f->kernels->rms_norm(q, layer->q_norm, config->rms_eps, q_width, q);
	if (layer->k_norm)
		f->kernels->rms_norm(k, layer->k_norm, config->rms_eps, kv_width, k);
}

/* Bias, norm and rotation of a head, whose bias has `width` values. */
static void finish_head(const struct forward *f, float *head, uint32_t width, const float *bias,
	const float *norm, const float *cos_sin)
{
	const struct model_config *config = &f->model->config;
	const bool vector = config->arch->qk_norm == QK_NORM_VECTOR;
	if (bias && !vector)
		f->kernels->add(head, bias, width);
	if (norm && !vector)
		f->kernels->rms_norm(head, norm, config->rms_eps, config->head_dim, head);
	f->kernels->rope(head, cos_sin, config->n_rot, config->arch->rope_neox);
}

static void store_head(
	const struct forward *f, uint32_t cell, uint32_t head, const float *k, const float *v)
{
	uint32_t n = f->model->config.head_dim, layer = f->model->layers[f->layer].kv_layer;
	enum kv_type type = f->kv->layout.type;
	cell = kv_cell(f->kv, layer, cell);
	f->kernels->kv_store_turned(k, n, type, f->kv->store.host + kv_k(f->kv, layer, head), cell);
	if (kv_paired(f->kv))
		f->kernels->kv_store_paired(
			v, n, type, f->kv->store.host + kv_v(f->kv, layer, head), cell);
	else
		f->kernels->kv_store(v, n, type,
			f->kv->store.host + kv_v(f->kv, layer, head) + cell * f->kv->v_bytes);
}

static const float *bias_at(const float *bias, size_t at)
{
	return bias ? bias + at : NULL;
}

/* Keys, values and queries of one KV head, from products to what attention reads. */
static void finish_heads(void *arg, uint32_t t, uint32_t kv_head)
{
	const struct forward *f = arg;
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t group = config->n_heads / config->n_kv_heads, dim = config->head_dim;
	const float *cos_sin = f->cos_sin + (size_t)t * config->n_rot;
	size_t at = (size_t)kv_head * dim;
	float *k = f->k_rows[t] + at, *v = f->v_rows[t] + at;
	for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
		size_t q_at = (size_t)h * q_stride(f);
		finish_head(f, f->q_rows[t] + q_at, q_stride(f), bias_at(layer->q_bias, q_at),
			layer->q_norm, cos_sin);
	}
	finish_head(f, k, dim, bias_at(layer->k_bias, at), layer->k_norm, cos_sin);
	if (layer->v_bias)
		f->kernels->add(v, layer->v_bias + at, dim);
	store_head(f, f->tokens[t].cell, kv_head, k, v);
}

static size_t qkv_bytes(const struct forward *f)
{
	const struct model_config *config = &f->model->config;
	return (size_t)(config->n_heads + 2 * config->n_kv_heads) * config->head_dim *
	       sizeof(float);
}

static void finish_token(struct forward *f, uint32_t t)
{
	for (uint32_t i = 0; i < f->model->config.n_kv_heads; i++)
		finish_heads(f, t, i);
}

static void finish_all(void *arg)
{
	struct forward *f = arg;
	work_tokens(f, finish_token, 2 * qkv_bytes(f));
}

/* Positions of a branch that are not committed: the ancestors', from the last to the first. */
static void branch_cells(void *arg, uint32_t t, uint32_t from, uint32_t to, uint32_t *cells)
{
	const struct forward *f = arg;
	for (int32_t i = (int32_t)t; i >= 0 && f->tokens[i].position >= from;
		i = f->tokens[i].parent)
		if (f->tokens[i].position < to)
			cells[f->tokens[i].position - from] = f->tokens[i].cell;
}

void attention_step_of(struct forward *f, struct attention_step *step)
{
	uint32_t layer = f->model->layers[f->layer].kv_layer;
	*step = (struct attention_step){
		.kernels = f->kernels,
		.pool = f->pool,
		.tokens = f->attention_tokens,
		.kv_type = f->kv->layout.type,
		.k = f->kv->store.host + kv_k(f->kv, layer, 0),
		.v = f->kv->store.host + kv_v(f->kv, layer, 0),
		.k_head_bytes = kv_k(f->kv, layer, 1) - kv_k(f->kv, layer, 0),
		.v_head_bytes = kv_v(f->kv, layer, 1) - kv_v(f->kv, layer, 0),
		.k_cell_bytes = f->kv->k_bytes,
		.v_cell_bytes = f->kv->v_bytes,
		.k_turned = kv_turned(f->kv),
		.v_paired = kv_paired(f->kv),
		.cell_of = kv_own_window(f->kv, layer) ? f->kv->windows.of : NULL,
		.tail = branch_cells,
		.arg = f,
	};
}

struct attention_token attention_token_of(
	const struct forward *f, uint32_t t, uint32_t first, const float *q, float *out)
{
	const struct batch_token *token = &f->tokens[t];
	return (struct attention_token){
		.q = q,
		.out = out,
		.first = first,
		.last = token->position + 1,
		.cells = token->seq->cell,
		.shared = f->on_main[t] ? token->position + 1 : token->seq->n,
	};
}

/* The first position that a token at `position` attends to: its own and window - 1 before it in a windowed layer. */
static uint32_t first_cell(const struct forward *f, uint32_t position)
{
	uint32_t window = f->model->config.window;
	if (!f->model->layers[f->layer].windowed || position < window)
		return 0;
	return position + 1 - window;
}

/* The heads of one KV head of a token: gates, and the form the next product takes. */
static void finish_attention(void *arg, uint32_t t, uint32_t kv_head)
{
	struct forward *f = arg;
	const struct model_config *config = &f->model->config;
	uint32_t group = config->n_heads / config->n_kv_heads, dim = config->head_dim;
	size_t at = (size_t)t * config->n_heads * dim + (size_t)kv_head * group * dim;
	const float *q = f->q_rows[t] + (size_t)kv_head * group * q_stride(f);
	for (uint32_t h = 0; h < group && config->arch->q_gate; h++) {
		float *out = f->att + at + (size_t)h * dim;
		f->kernels->sigmoid_mul(q + (size_t)h * q_stride(f) + dim, out, dim, out);
	}
	/* Blocks lie within one group's outputs when those are a whole number of blocks. */
	if (f->layer_att_q8 && group * dim % Q8_BLOCK == 0)
		f->kernels->quantise_q8(f->att + at, group * dim, f->att_q8 + at / Q8_BLOCK);
}

static void attend(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	struct attention_step step;
	attention_step_of(f, &step);
	for (uint32_t t = 0; t < f->n; t++)
		f->attention_tokens[t] =
			attention_token_of(f, t, first_cell(f, f->tokens[t].position), f->q_rows[t],
				f->att + (size_t)t * config->n_heads * config->head_dim);
	step.n_tokens = f->n;
	step.k_dim = config->head_dim;
	step.v_dim = config->head_dim;
	step.n_kv_heads = config->n_kv_heads;
	step.n_heads = config->n_heads / config->n_kv_heads;
	step.q_stride = q_stride(f);
	step.out_stride = config->head_dim;
	step.scale = f->attention_scale;
	step.sinks = f->model->layers[f->layer].sinks;
	step.prepare = finish_heads;
	step.prepare_all = finish_all;
	step.done = finish_attention;
	attention_run(&step, &f->attention);
}

static void quantise_att(struct forward *f, uint32_t t)
{
	uint32_t width = f->model->config.n_heads * f->model->config.head_dim;
	size_t at = (size_t)t * width;
	f->kernels->quantise_q8(f->att + at, width, f->att_q8 + at / Q8_BLOCK);
}

void mixer_norm(struct forward *f, bool quantised)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n = f->model->config.n_embd;
	const struct step_norm step = {
		.width = n,
		.x = floats_of(f, f->x, n),
		.w = layer->attn_norm,
		.bias = layer->attn_norm_bias,
		.eps = f->model->config.rms_eps,
		.y = floats_of(f, f->h, n),
		.y_q8 = quantised ? q8_of(f, f->h_q8, n) : (struct rows){0},
	};
	f->queue->ops->norm(f->queue, &step);
}

void mixer_out(struct forward *f, const struct matrix *w, struct inputs in)
{
	const struct step_product product =
		product_of(w, in, floats_of(f, f->out, f->model->config.n_embd));
	struct step_products step = {.of = &product, .n = 1};
	next_ffn(f, &step.next);
	f->queue->ops->products(f->queue, &step);
}

static void project(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	struct inputs in = inputs_of(f, f->h, f->h_q8, config->n_embd);
	size_t kv_width = (size_t)config->n_kv_heads * config->head_dim;
	const struct step_product products[] = {
		product_of(
			&layer->q, in, floats_of(f, f->q, (size_t)config->n_heads * q_stride(f))),
		product_of(&layer->k, in, floats_of(f, f->k, kv_width)),
		product_of(&layer->v, in, floats_of(f, f->v, kv_width)),
	};
	struct step_products step = {.of = products, .n = 3};
	next_matrix(f, &layer->o, &step.next);
	f->queue->ops->products(f->queue, &step);
}

void attention_layer(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t group = config->n_heads / config->n_kv_heads;
	f->layer_att_q8 = forward_quantised(&layer->o);

	mixer_norm(f, forward_quantised(&layer->q) || forward_quantised(&layer->k) ||
			      forward_quantised(&layer->v));
	project(f);
	if (config->arch->qk_norm == QK_NORM_VECTOR)
		work_tokens(f, norm_vectors, 2 * qkv_bytes(f));
	attend(f);
	if (f->layer_att_q8 && group * config->head_dim % Q8_BLOCK != 0)
		work_tokens(f, quantise_att, qkv_bytes(f));
	mixer_out(f, &layer->o,
		inputs_of(f, f->att, f->att_q8, (size_t)config->n_heads * config->head_dim));
}
