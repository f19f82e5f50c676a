/* The attention half of a layer with multi-head latent attention (defined in
 * kernels/cpu/steps/mla.c). */
#include "shared/model/pass/forward_internal.h"

static void norm_compressed_q(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t n = f->model->config.mla.q_rank;
	struct rows q_a = floats_of(f, f->q_a, n);
	const struct step_norm step = {
		.width = n,
		.x = q_a,
		.add_bias = layer->mla.q_a_bias,
		.w = layer->mla.q_a_norm,
		.eps = f->model->config.rms_eps,
		.y = q_a,
		.y_q8 = matrix_quantised(&layer->q) ? q8_of(f, f->q_a_q8, n) : (struct rows){0},
	};
	f->queue->ops->norm(f->queue, &step);
}

/* Computes q and the compressed key and value of every token. */
static void project(struct forward *f, struct rows q, struct rows kv)
{
	const struct layer *layer = &f->model->layers[f->layer];
	uint32_t rank = f->model->config.mla.q_rank;
	struct inputs in = inputs_of(f, f->h, f->h_q8, f->model->config.n_embd);
	const struct matrix *first = rank > 0 ? &layer->mla.q_a : &layer->q;
	const struct step_product products[] = {
		product_of(&layer->mla.kv_a, in, kv),
		product_of(first, in, rank > 0 ? floats_of(f, f->q_a, rank) : q),
	};
	struct step_products step = {.of = products, .n = 2, .fast = fast_of(f)};
	mixer_norm(f, matrix_quantised(first) || matrix_quantised(&layer->mla.kv_a));
	next_matrix(f, rank > 0 ? &layer->q : &layer->o, &step.next);
	f->queue->ops->products(f->queue, &step);
	if (rank == 0)
		return;
	norm_compressed_q(f);
	const struct step_product product =
		product_of(&layer->q, inputs_of(f, f->q_a, f->q_a_q8, rank), q);
	step = (struct step_products){.of = &product, .n = 1, .fast = fast_of(f)};
	next_matrix(f, &layer->o, &step.next);
	f->queue->ops->products(f->queue, &step);
}

void mla_layer(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct mla_config *c = &config->mla;
	const struct layer *layer = &f->model->layers[f->layer];
	size_t width = (size_t)config->n_heads * c->v;
	const struct step_mla step = {
		.batch = batch_cells_of(f),
		.cells = kv_cells_of(f),
		.n_heads = config->n_heads,
		.nope = c->nope,
		.rope = c->rope,
		.kv_rank = c->kv_rank,
		.v = c->v,
		.q_bias = layer->q_bias,
		.kv_bias = layer->mla.kv_a_bias,
		.kv_norm = layer->mla.kv_a_norm,
		.eps = config->rms_eps,
		.scale = c->scale,
		.k_b = layer->mla.k_b,
		.v_b = layer->mla.v_b,
		.k_b_head_bytes = layer->mla.k_b_head_bytes,
		.v_b_head_bytes = layer->mla.v_b_head_bytes,
		.k_b_transposed = layer->mla.k_b_transposed,
		.q = floats_of(f, f->q, (size_t)config->n_heads * (c->nope + c->rope)),
		.kv = floats_of(f, f->kv_a, c->kv_rank + c->rope),
		.out = floats_of(f, f->att, width),
		.out_q8 =
			matrix_quantised(&layer->o) ? q8_of(f, f->att_q8, width) : (struct rows){0},
	};
	project(f, step.q, step.kv);
	f->queue->ops->mla(f->queue, &step);
	mixer_out(f, &layer->o, inputs_of(f, f->att, f->att_q8, width));
}
