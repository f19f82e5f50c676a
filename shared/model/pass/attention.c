/*
 * The attention half of a layer. A token attends to its sequence's committed cells, then to its
 * ancestors in the batch, then to itself.
 *
 * Where those cells lie: seq->cell maps positions to cells, and its entries from seq->n on are free
 * for this. At each position, the first token whose ancestors are such tokens too (the "main
 * chain") writes its cell there. So a chain of any length, a prefill chunk or a draft, needs no
 * lists: the token at position p attends to cell[0..p]. Only the other branches of a tree follow
 * their ancestors, as far as these are not in the main chain (step_token.shared).
 */
#include "shared/model/pass/forward_internal.h"

#include <string.h>

/* The number of the sequence in this pass; sequences are numbered in order of appearance. */
static uint32_t number_of(struct forward *f, struct kv_seq *seq)
{
	uint32_t mask = f->n_numbers - 1, at = (uint32_t)((uintptr_t)seq / 64 * 2654435761u) & mask;
	while (f->numbers[at] != UINT32_MAX && f->seqs[f->numbers[at]] != seq)
		at = (at + 1) & mask;
	if (f->numbers[at] == UINT32_MAX) {
		f->numbers[at] = f->n_seqs;
		f->seqs[f->n_seqs++] = seq;
	}
	return f->numbers[at];
}

/* Sets the token's sequence, whether it is in the main chain, and from where on its ancestors
 * count; -EINVAL. */
static int place_token(struct forward *f, uint32_t t)
{
	const struct batch_token *token = &f->tokens[t];
	struct step_token *step = &f->step_tokens[t];
	struct kv_seq *seq = token->seq;
	*step = (struct step_token){
		.id = token->token >= 0 ? (uint32_t)token->token
					: f->model->config.n_vocab - (uint32_t)(token->token + 1),
		.position = token->position,
		.parent = token->parent,
		.cell = token->cell};
	if (token->parent < 0) {
		if (token->position != seq->n)
			return -EINVAL;
		uint32_t before = f->n_seqs;
		step->map = number_of(f, seq);
		f->on_main[t] = step->map == before;
		step->shared = seq->n;
	} else {
		uint32_t parent = (uint32_t)token->parent;
		if (f->tokens[parent].seq != seq ||
			token->position != f->tokens[parent].position + 1)
			return -EINVAL;
		step->map = f->step_tokens[parent].map;
		step->shared = f->step_tokens[parent].shared;
		f->on_main[t] = f->on_main[parent] && !f->has_main_child[parent];
		if (f->on_main[t])
			f->has_main_child[parent] = true;
	}
	if (!f->on_main[t])
		return 0;
	if (token->position >= seq->n_max)
		return -EINVAL;
	seq->cell[token->position] = token->cell;
	step->shared = token->position + 1;
	return 0;
}

/* Finds the sequences' maps; each is wrapped once for all its passes. */
static int find_maps(struct forward *f)
{
	for (uint32_t i = 0; i < f->n_seqs; i++) {
		struct kv_seq *seq = f->seqs[i];
		struct error err;
		int rc = seq->map.backend ? 0
					  : f->backend->ops->wrap(f->backend, seq->cell,
						    (size_t)seq->n_max * sizeof(*seq->cell),
						    &seq->map, &err);
		if (rc < 0)
			return rc;
		f->maps[i] = &seq->map;
		f->map_addresses[i] = buffer_address(&seq->map);
	}
	return 0;
}

int attention_prepare(struct forward *f)
{
	uint32_t n_cells = f->kv->layout.n_pages * KV_PAGE_CELLS;
	f->n_seqs = 0;
	f->last_position = 0;
	/* Only as large as this pass needs, because it is cleared each time. */
	for (f->n_numbers = 2; f->n_numbers < 2 * f->n; f->n_numbers *= 2)
		continue;
	memset(f->numbers, 0xff, f->n_numbers * sizeof(*f->numbers));
	memset(f->has_main_child, 0, f->n * sizeof(*f->has_main_child));
	for (uint32_t t = 0; t < f->n; t++) {
		const struct batch_token *token = &f->tokens[t];
		if (!token->seq || token->parent < -1 || token->parent >= (int32_t)t ||
			token->position >= f->limits.n_context || token->cell >= n_cells ||
			(token->token >= 0 && (uint32_t)token->token >= f->model->config.n_vocab) ||
			!kv_windows_has(f->kv, token->cell))
			return -EINVAL;
		int rc = place_token(f, t);
		if (rc < 0)
			return rc;
		if (token->position > f->last_position)
			f->last_position = token->position;
	}
	return find_maps(f);
}

struct batch_cells batch_cells_of(const struct forward *f)
{
	const struct model_config *config = &f->model->config;
	return (struct batch_cells){
		.tokens = batch_rows(f, f->step_tokens, sizeof(*f->step_tokens), f->n),
		.maps = f->maps,
		.map_addresses = batch_place(f, f->map_addresses),
		.window = f->model->layers[f->layer].windowed ? config->window : 0,
		.cos_sin = floats_of(f, f->cos_sin, config->n_rot),
		.n_rot = config->n_rot,
	};
}

struct kv_cells kv_cells_of(const struct forward *f)
{
	const struct kv *kv = f->kv;
	uint32_t layer = f->model->layers[f->layer].kv_layer;
	struct kv_cells cells = {
		.buffer = &kv->store,
		.k = kv_k(kv, layer, 0),
		.v = kv_v(kv, layer, 0),
		.k_head_bytes = kv_k(kv, layer, 1) - kv_k(kv, layer, 0),
		.v_head_bytes = kv_v(kv, layer, 1) - kv_v(kv, layer, 0),
		.k_bytes = kv->k_bytes,
		.v_bytes = kv->v_bytes,
		.type = kv->layout.type,
		.k_turned = kv_turned(kv),
		.v_paired = kv_paired(kv),
	};
	if (kv_own_window(kv, layer))
		cells.of = (struct place){&f->windows, 0};
	return cells;
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
	struct step_products step = {.of = &product, .n = 1, .fast = fast_of(f)};
	next_ffn(f, &step.next);
	f->queue->ops->products(f->queue, &step);
	if (f->n_gated > 0)
		masks_adapt(f, (const struct low_rank *[]){&f->limits.adapter->layers[f->layer].o},
			&in.f32, &product.y, 1);
}

static size_t q_width(const struct model_config *config)
{
	return (size_t)config->n_heads * config->head_dim * (config->arch->q_gate ? 2 : 1);
}

static void project(struct forward *f, struct inputs in)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	size_t kv_width = (size_t)config->n_kv_heads * config->head_dim;
	const struct step_product products[] = {
		product_of(&layer->q, in, floats_of(f, f->q, q_width(config))),
		product_of(&layer->k, in, floats_of(f, f->k, kv_width)),
		product_of(&layer->v, in, floats_of(f, f->v, kv_width)),
	};
	struct step_products step = {.of = products, .n = 3, .fast = fast_of(f)};
	next_matrix(f, &layer->o, &step.next);
	f->queue->ops->products(f->queue, &step);
	if (f->n_gated == 0)
		return;
	const struct adapter_layer *a = &f->limits.adapter->layers[f->layer];
	const struct low_rank *const w[] = {&a->q, &a->k, &a->v};
	const struct rows x[] = {in.f32, in.f32, in.f32};
	const struct rows y[] = {products[0].y, products[1].y, products[2].y};
	masks_adapt(f, w, x, y, 3);
}

void attention_from(struct forward *f, struct inputs in)
{
	const struct model_config *config = &f->model->config;
	const struct layer *layer = &f->model->layers[f->layer];
	size_t kv_width = (size_t)config->n_kv_heads * config->head_dim;
	size_t width = (size_t)config->n_heads * config->head_dim;
	const struct step_attend step = {
		.batch = batch_cells_of(f),
		.cells = kv_cells_of(f),
		.n_heads = config->n_heads,
		.n_kv_heads = config->n_kv_heads,
		.dim = config->head_dim,
		.gated = config->arch->q_gate,
		.rope_neox = config->arch->rope_neox,
		.norm_vectors = config->arch->qk_norm == QK_NORM_VECTOR,
		.q_bias = layer->q_bias,
		.k_bias = layer->k_bias,
		.v_bias = layer->v_bias,
		.q_norm = layer->q_norm,
		.k_norm = layer->k_norm,
		.eps = config->rms_eps,
		/* The root is an instruction, correctly rounded, and not libm's. */
		.scale = 1.0f / __builtin_sqrtf((float)config->head_dim),
		.sinks = layer->sinks,
		.q = floats_of(f, f->q, q_width(config)),
		.k = floats_of(f, f->k, kv_width),
		.v = floats_of(f, f->v, kv_width),
		.out = floats_of(f, f->att, width),
		.out_q8 =
			matrix_quantised(&layer->o) ? q8_of(f, f->att_q8, width) : (struct rows){0},
	};
	project(f, in);
	f->queue->ops->attend(f->queue, &step);
	mixer_out(f, &layer->o, inputs_of(f, f->att, f->att_q8, width));
}

void attention_layer(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	mixer_norm(f, matrix_quantised(&layer->q) || matrix_quantised(&layer->k) ||
			      matrix_quantised(&layer->v));
	attention_from(f, inputs_of(f, f->h, f->h_q8, f->model->config.n_embd));
}
