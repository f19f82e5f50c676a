#include "shared/model/pass/delta_net.h"
#include "shared/model/pass/forward_internal.h"
#include "shared/base/clock.h"
#include "shared/base/huge_pages.h"

#include <stdlib.h>
#include <string.h>

/* Whether a feed-forward's last product takes float32 activations. */
static bool plain_down(const struct model *model, const struct kernels *kernels)
{
	bool any = kernels->matmul_f32;
	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct layer *layer = &model->layers[i];
		const struct matrix *downs[] = {
			&layer->ffn_down, &layer->down.shape, &layer->shared_down};
		for (size_t j = 0; j < sizeof(downs) / sizeof(downs[0]); j++)
			any |= downs[j]->cols > 0 && !forward_quantised(downs[j]);
	}
	return any;
}

/* Every buffer of a pass. Called twice: to count, then to place. No product overflows: the factors are within limits.h
 * and what they sum to is refused by malloc where it does not fit. */
static void layout(struct forward *f, struct carve *c)
{
	const struct model_config *config = &f->model->config;
	size_t T = f->n_batch, D = config->n_embd, A = T * f->assignments_max;
	size_t q_width = (size_t)config->n_heads * config->head_dim;
	size_t kv_width = (size_t)config->n_kv_heads * config->head_dim;
	size_t E = config->n_experts > 4 ? config->n_experts : 4, k = config->n_experts_used;
	CARVE(c, f->frequency, config->n_rot / 2);
	CARVE(c, f->x, T * D);
	CARVE(c, f->h, T * D);
	CARVE(c, f->h_q8, T * (D / Q8_BLOCK));
	CARVE(c, f->q, T * (config->arch->q_gate ? 2 : 1) * q_width);
	CARVE(c, f->k, T * kv_width);
	CARVE(c, f->v, T * kv_width);
	CARVE(c, f->att, T * q_width);
	CARVE(c, f->att_q8, T * (q_width / Q8_BLOCK));
	CARVE(c, f->out, T * D);
	CARVE(c, f->router, T * config->n_experts);
	CARVE(c, f->selection, T * config->n_experts);
	CARVE(c, f->shared, config->n_shared_ff ? T * D : 0);
	CARVE(c, f->shared_weight, T);
	CARVE(c, f->weights, T * k);
	CARVE(c, f->chosen, T * k);
	CARVE(c, f->cos_sin, T * config->n_rot);
	CARVE(c, f->on_main, T);
	CARVE(c, f->has_main_child, T);
	CARVE(c, f->main_roots, T);
	if (plain_down(f->model, f->kernels))
		CARVE(c, f->act, A * f->ff_max);
	CARVE(c, f->act_q8, A * (f->ff_max / Q8_BLOCK));
	CARVE(c, f->down, T * k * D);
	CARVE(c, f->assigned, A);
	CARVE(c, f->h_rows, T);
	CARVE(c, f->att_rows, T);
	CARVE(c, f->q_rows, T);
	CARVE(c, f->k_rows, T);
	CARVE(c, f->v_rows, T);
	CARVE(c, f->out_rows, T);
	CARVE(c, f->router_rows, T);
	CARVE(c, f->shared_rows, T);
	CARVE(c, f->hidden_rows, T);
	CARVE(c, f->in_rows, A);
	CARVE(c, f->act_rows, A);
	CARVE(c, f->down_rows, A);
	CARVE(c, f->distinct, E);
	CARVE(c, f->distinct_tokens, E);
	CARVE(c, f->expert_first, E + 1);
	CARVE(c, f->views, E);
	CARVE(c, f->ffn, E);
	CARVE(c, f->logits, (size_t)f->n_logits * config->n_vocab);
	CARVE(c, f->logit_rows, f->n_logits);
	CARVE(c, f->last_x, f->n_logits);
	CARVE(c, f->logit_row, T);
	CARVE(c, f->products, E);
	CARVE(c, f->items, WORK_ITEMS_MAX(f->n_threads, E));
	CARVE(c, f->gate_up, (size_t)f->n_threads * 2 * WORK_FFN_FLOATS);
	CARVE(c, f->attention_tokens, T);
}

/* The rows that lie at the same place in every pass. */
static void set_rows(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	size_t D = config->n_embd, q_width = (size_t)config->n_heads * config->head_dim;
	size_t kv_width = (size_t)config->n_kv_heads * config->head_dim;
	for (size_t t = 0; t < f->n_batch; t++) {
		f->h_rows[t] = (struct activation){f->h + t * D, f->h_q8 + t * (D / Q8_BLOCK)};
		f->att_rows[t] = (struct activation){
			f->att + t * q_width, f->att_q8 + t * (q_width / Q8_BLOCK)};
		f->q_rows[t] = f->q + t * (config->arch->q_gate ? 2 : 1) * q_width;
		f->k_rows[t] = f->k + t * kv_width;
		f->v_rows[t] = f->v + t * kv_width;
		f->out_rows[t] = f->out + t * D;
		f->router_rows[t] = f->router + t * config->n_experts;
		f->shared_rows[t] = f->shared_weight + t;
		f->hidden_rows[t] = f->h + t * D;
		f->logit_row[t] = UINT32_MAX;
	}
	for (size_t a = 0; a < (size_t)f->n_batch * f->assignments_max; a++) {
		f->act_rows[a] = (struct activation){f->act ? f->act + a * f->ff_max : NULL,
			f->act_q8 + a * (f->ff_max / Q8_BLOCK)};
	}
	for (size_t i = 0; i < f->n_logits; i++)
		f->logit_rows[i] = f->logits + i * config->n_vocab;
}

static int check(const struct forward *f, struct error *err)
{
	const struct model_config *config = &f->model->config;
	const struct kv_layout *kv = &f->kv->layout;
	if (f->n_batch == 0 || f->n_batch > LIMIT_BATCH)
		return error_set(err, EINVAL, "batch of %u tokens, allowed are 1..%d", f->n_batch,
			LIMIT_BATCH);
	if (f->n_logits == 0 || f->n_logits > f->n_batch)
		return error_set(err, EINVAL, "%u rows of logits, allowed are 1..%u (the batch)",
			f->n_logits, f->n_batch);
	if (f->n_context == 0 || f->n_context > LIMIT_CONTEXT)
		return error_set(err, EINVAL, "context of %u tokens, allowed are 1..%d",
			f->n_context, LIMIT_CONTEXT);
	if (config->n_experts > 0 && !f->experts)
		return error_set(err, EINVAL, "a model with experts needs an expert source");
	struct kv_layout wanted = kv_layout_of(f->model, kv->type, kv->n_pages);
	if (kv->n_layers != wanted.n_layers || kv->n_kv_heads != wanted.n_kv_heads ||
		kv->k_dim != wanted.k_dim || kv->v_dim != wanted.v_dim)
		return error_set(err, EINVAL,
			"the KV cache has %u layers of %u heads of %u and %u, the model %u of %u "
			"of "
			"%u and %u",
			kv->n_layers, kv->n_kv_heads, kv->k_dim, kv->v_dim, wanted.n_layers,
			wanted.n_kv_heads, wanted.k_dim, wanted.v_dim);
	return 0;
}

/* What the layout depends on. */
static void set_shape(struct forward *f, const struct model *model, const struct kernels *kernels,
	uint32_t n_threads, uint32_t n_batch, uint32_t n_logits)
{
	const struct model_config *config = &model->config;
	f->model = model;
	f->kernels = kernels;
	f->n_batch = n_batch;
	f->n_logits = n_logits;
	f->n_threads = n_threads;
	f->assignments_max = config->n_experts_used + (config->n_shared_ff > 0);
	if (f->assignments_max == 0)
		f->assignments_max = 1;
	uint32_t ff = config->n_ff > config->n_expert_ff ? config->n_ff : config->n_expert_ff;
	if (config->n_shared_ff > ff)
		ff = config->n_shared_ff;
	f->ff_max = (ff + Q8_BLOCK - 1) / Q8_BLOCK * Q8_BLOCK;
}

size_t forward_bytes(const struct model *model, const struct kernels *kernels, uint32_t n_threads,
	uint32_t n_batch, uint32_t n_logits)
{
	struct forward f = {0};
	struct carve count = {0};
	set_shape(&f, model, kernels, n_threads, n_batch, n_logits);
	layout(&f, &count);
	return count.used;
}

int forward_create(const struct model *model, const struct kernels *kernels, struct pool *pool,
	struct kv *kv, struct expert_source *experts, uint32_t n_batch, uint32_t n_logits,
	uint32_t n_context, struct forward **out, struct error *err)
{
	const struct model_config *config = &model->config;
	struct forward *f = calloc(1, sizeof(*f));
	if (!f)
		return error_set(err, ENOMEM, "no memory for the forward pass");
	set_shape(f, model, kernels, pool_threads(pool), n_batch, n_logits);
	f->pool = pool;
	f->kv = kv;
	f->experts = experts;
	f->n_context = n_context;
	int rc = check(f, err);
	if (rc < 0) {
		free(f);
		return rc;
	}
	struct carve count = {0};
	layout(f, &count);
	/* Rows of tokens are far apart: in small pages each store of a product would be to a page of its own (measured: a
	 * prompt of 512 tokens of qwen3-30b-a3b takes 2 % longer). */
	f->memory = huge_pages_alloc(count.used);
	if (!f->memory) {
		free(f);
		return error_set(err, ENOMEM,
			"no memory for the forward pass: %zu bytes for a batch of %u", count.used,
			n_batch);
	}
	struct carve place = {f->memory, 0};
	layout(f, &place);
	set_rows(f);
	forward_rope_init(f);
	/* The root is an instruction, correctly rounded: no libm. */
	f->attention_scale = 1.0f / __builtin_sqrtf((float)config->head_dim);
	if (config->mla.kv_rank)
		rc = mla_create(f, err);
	else
		rc = attention_memory_get(&f->attention, kernels, f->n_threads, n_batch,
			config->n_kv_heads, config->n_heads / config->n_kv_heads, config->head_dim,
			config->head_dim, err);
	if (rc == 0)
		rc = delta_create(f, err);
	if (rc < 0)
		forward_destroy(&f);
	*out = f;
	return rc;
}

void forward_destroy(struct forward **forward)
{
	if (*forward) {
		delta_destroy(*forward);
		mla_destroy(*forward);
		attention_memory_put(&(*forward)->attention);
		free((*forward)->memory);
		free(*forward);
	}
	*forward = NULL;
}

void forward_set_hooks(struct forward *forward, const struct forward_hooks *hooks)
{
	forward->hooks = hooks ? *hooks : (struct forward_hooks){0};
}

void forward_norm_bias(const struct forward *f, const float *x, const float *w, const float *bias,
	float *y, struct q8_block *q8)
{
	uint32_t n = f->model->config.n_embd;
	if (bias)
		f->kernels->layer_norm(x, w, bias, f->model->config.rms_eps, n, y);
	else
		f->kernels->rms_norm(x, w, f->model->config.rms_eps, n, y);
	if (q8)
		f->kernels->quantise_q8(y, n, q8);
}

void forward_norm(
	const struct forward *f, const float *x, const float *w, float *y, struct q8_block *q8)
{
	forward_norm_bias(f, x, w, NULL, y, q8);
}

static void embed_token(struct forward *f, uint32_t t)
{
	f->kernels->dequantise_row(&f->model->embedding, (uint32_t)f->tokens[t].token,
		f->x + (size_t)t * f->model->config.n_embd);
}

static void last_norm_token(struct forward *f, uint32_t t)
{
	uint32_t n = f->model->config.n_embd;
	if (f->logit_row[t] != UINT32_MAX)
		forward_norm_bias(f, f->x + (size_t)t * n, f->model->output_norm,
			f->model->output_norm_bias, f->h + (size_t)t * n,
			forward_quantised(&f->model->output) ? f->h_q8 + (size_t)t * (n / Q8_BLOCK)
							     : NULL);
}

/* Which tokens get which rows of logits; -EINVAL when more ask than forward_create was told. */
static int assign_logits(struct forward *f, uint32_t *n_rows)
{
	uint32_t n = 0;
	for (uint32_t t = 0; t < f->n_batch; t++)
		f->logit_row[t] = UINT32_MAX;
	for (uint32_t t = 0; t < f->n; t++) {
		if (!f->tokens[t].logits)
			continue;
		if (n == f->n_logits)
			return -EINVAL;
		f->last_x[n] = f->h_rows[t];
		f->logit_row[t] = n++;
	}
	*n_rows = n;
	return 0;
}

static void output_logits(struct forward *f, uint32_t n_rows)
{
	if (n_rows == 0)
		return;
	work_tokens(f, last_norm_token, 2 * f->model->config.n_embd * sizeof(float));
	f->products[0] = (struct product){f->model->output, f->last_x, f->logit_rows, n_rows};
	ahead_mixer(f, 0); /* of the next pass */
	work_products(f, 1);
	for (uint32_t i = 0; i < n_rows && f->model->output_bias; i++)
		f->kernels->add(f->logit_rows[i], f->model->output_bias, f->model->config.n_vocab);
}

/* The residual stream as it is before f->layer, or after the last. */
static void call_residual_hook(struct forward *f)
{
	if (f->hooks.residual)
		f->hooks.residual(f->hooks.arg, f->layer, f->n, f->x);
}

/* By layer->mixer: x += mixer(norm(x)). */
static void (*const mixers[])(struct forward *f) = {
	[MIX_ATTENTION] = attention_layer,
	[MIX_MLA] = mla_layer,
	[MIX_DELTA_NET] = delta_layer,
};

int forward_run(struct forward *forward, const struct batch_token *tokens, uint32_t n)
{
	struct forward *f = forward;
	uint32_t n_rows = 0;
	uint64_t start = clock_ns();
	memset(&f->stats, 0, sizeof(f->stats));
	if (n == 0 || n > f->n_batch)
		return -EINVAL;
	f->tokens = tokens;
	f->n = n;
	int rc = assign_logits(f, &n_rows);
	if (rc == 0)
		rc = attention_prepare(f);
	if (rc == 0)
		rc = delta_prepare(f);
	if (rc < 0)
		return rc;
	work_tokens(f, embed_token, f->model->config.n_embd * sizeof(float));
	uint64_t at = clock_ns();
	for (f->layer = 0; f->layer < f->model->config.n_layers; f->layer++) {
		call_residual_hook(f);
		mixers[f->model->layers[f->layer].mixer](f);
		uint64_t attended = clock_ns();
		f->stats.attention_ns += attended - at;
		rc = ffn_layer(f);
		if (rc < 0)
			return rc;
		at = clock_ns();
		f->stats.moe_ns += at - attended;
	}
	call_residual_hook(f);
	output_logits(f, n_rows);
	uint64_t end = clock_ns();
	f->stats.output_ns = end - at;
	f->stats.total_ns = end - start;
	return 0;
}

void forward_replay(struct forward *forward)
{
	if (forward->delta)
		delta_replay(forward);
}

const float *forward_logits(const struct forward *forward, uint32_t i)
{
	return forward->logit_rows[forward->logit_row[i]];
}

const struct forward_stats *forward_stats(const struct forward *forward)
{
	return &forward->stats;
}
