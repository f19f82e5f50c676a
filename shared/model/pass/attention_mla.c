/*
 * Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1.2): a cell keeps the
 * normalised latent c and the rotated part of the key, and no head's keys or values are ever made. Since
 *   q_nope . (W_k c) = (W_k^T q_nope) . c   and   sum_i p_i W_v c_i = W_v sum_i p_i c_i,
 * a head takes its query to the latent, attends there with all heads sharing one key, and takes the result back.
 *
 * The batch is cut into blocks of MLA_TOKENS tokens, which go there and back by heads and attend with all heads together.
 * Every value is computed by itself in the order kernels.h defines, so the blocks cannot be seen in the result. In files
 * of the older layout the matrix to the latent lies transposed; its product is the sum over n of q_n times row n, in
 * ascending n, by axpy from +0. (A transposed copy would cost memory, start-up time, and for quantised files other
 * weights.)
 */
#include "shared/model/pass/forward_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	MLA_TOKENS = 16, /* of a block: a head's two matrices are read once for them */
};

struct mla_pass {
	void *memory;
	/* In f->memory: */
	float *q_a; /* [T][q_rank] */
	struct q8_block *q_a_q8;
	float *kv; /* [T][kv_rank + rope] */
	float *value; /* [T][n_heads * v] */
	struct q8_block *value_q8;
	/* Of a block: */
	float *latent_q; /* [MLA_TOKENS][n_heads][kv_rank + rope] */
	float *latent; /* [MLA_TOKENS][n_heads][kv_rank], the attention's result */
	/* By thread: */
	struct q8_block *q8; /* [MLA_TOKENS][max(nope, kv_rank) / 32] of one head */
	float *row; /* [kv_rank] */
	size_t q8_blocks, row_floats;
	/* The running block: tokens first..first+n-1. */
	uint32_t first, n;
};

void mla_layout(struct forward *f, struct carve *c)
{
	const struct mla_config *config = &f->model->config.mla;
	struct mla_pass *m = f->mla;
	size_t T = f->n_batch, width = (size_t)f->model->config.n_heads * config->v;
	CARVE(c, m->q_a, T * config->q_rank);
	CARVE(c, m->q_a_q8, T * (config->q_rank / Q8_BLOCK));
	CARVE(c, m->kv, T * (config->kv_rank + config->rope));
	CARVE(c, m->value, T * width);
	CARVE(c, m->value_q8, T * (width / Q8_BLOCK));
}

/* Every buffer of the pass: to count, then to place. */
static void layout(const struct forward *f, struct mla_pass *m, struct carve *c)
{
	const struct mla_config *config = &f->model->config.mla;
	CARVE(c, m->latent_q,
		(size_t)MLA_TOKENS * f->model->config.n_heads * (config->kv_rank + config->rope));
	CARVE(c, m->latent, (size_t)MLA_TOKENS * f->model->config.n_heads * config->kv_rank);
	CARVE(c, m->q8, f->n_threads * m->q8_blocks);
	CARVE(c, m->row, f->n_threads * m->row_floats);
}

int mla_begin(struct forward *f, struct error *err)
{
	if (f->model->config.mla.kv_rank)
		f->mla = calloc(1, sizeof(*f->mla));
	return f->mla || !f->model->config.mla.kv_rank
		       ? 0
		       : error_set(err, ENOMEM, "no memory for latent attention");
}

int mla_create(struct forward *f, struct error *err)
{
	const struct mla_config *config = &f->model->config.mla;
	size_t key = config->kv_rank + config->rope;
	uint32_t widest = config->nope > config->kv_rank ? config->nope : config->kv_rank;
	/* Whole cache lines each, so that threads do not share one. */
	struct mla_pass m = {
		.q_a = f->mla->q_a,
		.q_a_q8 = f->mla->q_a_q8,
		.kv = f->mla->kv,
		.value = f->mla->value,
		.value_q8 = f->mla->value_q8,
		.q8_blocks = (size_t)MLA_TOKENS * (widest / Q8_BLOCK),
		.row_floats = (config->kv_rank + 15u) / 16 * 16,
	};
	struct carve c = {0};
	layout(f, &m, &c);
	m.memory = aligned_alloc(CACHE_LINE, c.used);
	if (!m.memory)
		return error_set(err, ENOMEM,
			"no memory for latent attention: %zu bytes for a batch of %u", c.used,
			f->n_batch);
	c = (struct carve){m.memory, 0};
	layout(f, &m, &c);
	*f->mla = m;
	return attention_memory_get(&f->attention, f->kernels, f->n_threads,
		f->n_batch < MLA_TOKENS ? f->n_batch : MLA_TOKENS, 1, f->model->config.n_heads,
		(uint32_t)key, config->kv_rank, err);
}

void mla_destroy(struct forward *f)
{
	if (f->mla)
		free(f->mla->memory);
	free(f->mla);
	f->mla = NULL;
}

static void norm_compressed_q(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n = f->model->config.mla.q_rank;
	struct rows q_a = floats_of(f, f->mla->q_a, n);
	const struct step_norm step = {
		.width = n,
		.x = q_a,
		.add_bias = layer->mla.q_a_bias,
		.w = layer->mla.q_a_norm,
		.eps = f->model->config.rms_eps,
		.y = q_a,
		.y_q8 = forward_quantised(&layer->q) ? q8_of(f, f->mla->q_a_q8, n)
						     : (struct rows){0},
	};
	f->queue->ops->norm(f->queue, &step);
}

/* The latent is normalised and the rest of the key rotated, and both are the token's cell; each query head's last
 * part is rotated. */
static void finish_token(struct forward *f, uint32_t t)
{
	const struct model_config *config = &f->model->config;
	const struct mla_config *c = &config->mla;
	const struct layer *layer = &f->model->layers[f->layer];
	const float *cos_sin = f->cos_sin + (size_t)t * config->n_rot;
	float *kv = f->mla->kv + (size_t)t * (c->kv_rank + c->rope), *q = f->q_rows[t];
	unsigned char *cells = f->kv->store.host + kv_k(f->kv, layer->kv_layer, 0);
	if (layer->mla.kv_a_bias)
		f->kernels->add(kv, layer->mla.kv_a_bias, c->kv_rank + c->rope);
	if (layer->q_bias)
		f->kernels->add(q, layer->q_bias, config->n_heads * (c->nope + c->rope));
	f->kernels->rms_norm(kv, layer->mla.kv_a_norm, config->rms_eps, c->kv_rank, kv);
	f->kernels->rope(kv + c->kv_rank, cos_sin, c->rope, false);
	f->kernels->kv_store(kv, c->kv_rank + c->rope, f->kv->layout.type,
		cells + f->tokens[t].cell * f->kv->k_bytes);
	for (uint32_t h = 0; h < config->n_heads; h++)
		f->kernels->rope(
			q + (size_t)h * (c->nope + c->rope) + c->nope, cos_sin, c->rope, false);
}

static struct matrix of_head(const struct matrix *first, size_t head_bytes, uint32_t head)
{
	struct matrix m = *first;
	m.data = (const unsigned char *)first->data + head_bytes * head;
	return m;
}

/* One head's queries of the block, in the latent's space. */
static void absorb(struct forward *f, uint32_t head, uint32_t thread)
{
	const struct mla_config *c = &f->model->config.mla;
	const struct mla_layer *layer = &f->model->layers[f->layer].mla;
	const struct mla_pass *m = f->mla;
	struct matrix k_b = of_head(&layer->k_b, layer->k_b_head_bytes, head);
	struct q8_block *q8 = m->q8 + thread * m->q8_blocks;
	float *row = m->row + thread * m->row_floats;
	struct activation x[MLA_TOKENS];
	float *y[MLA_TOKENS];
	for (uint32_t i = 0; i < m->n; i++) {
		const float *q = f->q_rows[m->first + i] + (size_t)head * (c->nope + c->rope);
		x[i] = (struct activation){q, q8 + (size_t)i * (c->nope / Q8_BLOCK)};
		y[i] = m->latent_q +
		       ((size_t)i * f->model->config.n_heads + head) * (c->kv_rank + c->rope);
		memcpy(y[i] + c->kv_rank, q + c->nope, c->rope * sizeof(*q));
		if (layer->k_b_transposed)
			memset(y[i], 0, c->kv_rank * sizeof(*q));
		else if (forward_quantised(&k_b))
			f->kernels->quantise_q8(q, c->nope, q8 + (size_t)i * (c->nope / Q8_BLOCK));
	}
	if (!layer->k_b_transposed) {
		f->kernels->matmul(&k_b, 0, c->kv_rank, x, m->n, y);
		return;
	}
	for (uint32_t d = 0; d < c->nope; d++) {
		f->kernels->dequantise_row(&k_b, d, row);
		for (uint32_t i = 0; i < m->n; i++)
			f->kernels->axpy(y[i], x[i].f32[d], row, c->kv_rank);
	}
}

/* The block's tokens attend. */
static void attend(struct forward *f)
{
	const struct mla_config *c = &f->model->config.mla;
	const struct mla_pass *m = f->mla;
	size_t heads = f->model->config.n_heads;
	struct attention_step step;
	attention_step_of(f, &step);
	for (uint32_t i = 0; i < m->n; i++)
		f->attention_tokens[i] = attention_token_of(f, m->first + i, 0,
			m->latent_q + i * heads * (c->kv_rank + c->rope),
			m->latent + i * heads * c->kv_rank);
	step.n_tokens = m->n;
	step.first = m->first;
	step.k_dim = c->kv_rank + c->rope;
	step.v_dim = c->kv_rank;
	step.n_kv_heads = 1;
	step.n_heads = (uint32_t)heads;
	step.q_stride = step.k_dim;
	step.out_stride = step.v_dim;
	step.scale = c->scale;
	attention_run(&step, &f->attention);
}

/* One head's results of the block, from the latent to values. */
static void take_back(struct forward *f, uint32_t head, uint32_t thread)
{
	const struct mla_config *c = &f->model->config.mla;
	const struct mla_layer *layer = &f->model->layers[f->layer].mla;
	const struct mla_pass *m = f->mla;
	struct matrix v_b = of_head(&layer->v_b, layer->v_b_head_bytes, head);
	struct q8_block *q8 = m->q8 + thread * m->q8_blocks;
	struct activation x[MLA_TOKENS];
	float *y[MLA_TOKENS];
	for (uint32_t i = 0; i < m->n; i++) {
		const float *latent =
			m->latent + ((size_t)i * f->model->config.n_heads + head) * c->kv_rank;
		x[i] = (struct activation){latent, q8 + (size_t)i * (c->kv_rank / Q8_BLOCK)};
		y[i] = m->value + ((size_t)(m->first + i) * f->model->config.n_heads + head) * c->v;
		if (forward_quantised(&v_b))
			f->kernels->quantise_q8(
				latent, c->kv_rank, q8 + (size_t)i * (c->kv_rank / Q8_BLOCK));
	}
	f->kernels->matmul(&v_b, 0, c->v, x, m->n, y);
}

static void quantise_value(struct forward *f, uint32_t t)
{
	uint32_t width = f->model->config.n_heads * f->model->config.mla.v;
	f->kernels->quantise_q8(f->mla->value + (size_t)t * width, width,
		f->mla->value_q8 + (size_t)t * (width / Q8_BLOCK));
}

/* q and the compressed key and value of every token, in their cells. */
static void project(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	const struct mla_config *c = &config->mla;
	struct mla_pass *m = f->mla;
	struct inputs in = inputs_of(f, f->h, f->h_q8, config->n_embd);
	struct rows q = floats_of(f, f->q, (size_t)config->n_heads * (c->nope + c->rope));
	size_t q_bytes = (size_t)config->n_heads * c->rope * sizeof(float);
	bool compressed = c->q_rank > 0;
	const struct matrix *first = compressed ? &layer->mla.q_a : &layer->q;
	const struct step_product products[] = {
		product_of(&layer->mla.kv_a, in, floats_of(f, m->kv, c->kv_rank + c->rope)),
		product_of(first, in, compressed ? floats_of(f, m->q_a, c->q_rank) : q),
	};
	struct step_products step = {.of = products, .n = 2};
	mixer_norm(f, forward_quantised(first) || forward_quantised(&layer->mla.kv_a));
	next_matrix(f, compressed ? &layer->q : &layer->o, &step.next);
	f->queue->ops->products(f->queue, &step);
	if (compressed) {
		const struct step_product product =
			product_of(&layer->q, inputs_of(f, m->q_a, m->q_a_q8, c->q_rank), q);
		norm_compressed_q(f);
		step = (struct step_products){.of = &product, .n = 1};
		next_matrix(f, &layer->o, &step.next);
		f->queue->ops->products(f->queue, &step);
	}
	work_tokens(f, finish_token, 4 * q_bytes);
}

void mla_layer(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	struct mla_pass *m = f->mla;
	size_t absorb_bytes = (size_t)config->n_heads * config->mla.kv_rank * config->mla.nope;
	size_t back_bytes = (size_t)config->n_heads * config->mla.kv_rank * config->mla.v;
	size_t width = (size_t)config->n_heads * config->mla.v;
	project(f);
	for (m->first = 0; m->first < f->n; m->first += m->n) {
		m->n = f->n - m->first < MLA_TOKENS ? f->n - m->first : MLA_TOKENS;
		pass_items(f, config->n_heads, absorb_bytes * m->n, absorb);
		attend(f);
		pass_items(f, config->n_heads, back_bytes * m->n, take_back);
	}
	if (forward_quantised(&layer->o))
		work_tokens(f, quantise_value, 2 * config->n_heads * config->mla.v * sizeof(float));
	mixer_out(f, &layer->o, inputs_of(f, m->value, m->value_q8, width));
}
