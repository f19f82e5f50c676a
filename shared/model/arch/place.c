#include "shared/model/arch/place.h"

#include "shared/model/arch/adapter.h"
#include "shared/model/arch/head.h"

#include <string.h>

/* Called for each tensor, always in the same order. */
struct visitor {
	int (*fn)(struct visitor *visitor, const void *at, size_t bytes);
	int rc; /* of the first call that failed; then there are no more */
	struct backend *backend;
	struct error *err;
	uint64_t bytes;
	uint32_t n, n_max; /* tensors that were visited, and when to stop */
};

static void visit(struct visitor *v, const void *at, size_t bytes)
{
	if (!at || bytes == 0 || v->rc < 0 || v->n == v->n_max)
		return;
	v->rc = v->fn(v, at, bytes);
	v->n += v->rc == 0;
}

static void floats(struct visitor *v, const float *at, size_t n)
{
	visit(v, at, n * sizeof(*at));
}

static void matrix(struct visitor *v, const struct matrix *w)
{
	visit(v, w->data, (size_t)w->rows * w->row_bytes);
}

/* Row e of each bias belongs to expert e. */
static void biases(struct visitor *v, const struct expert_bias *bias, size_t n_experts, size_t n)
{
	floats(v, bias->rows, (n_experts - 1) * bias->stride + n);
}

/* The matrices of all heads, those of keys and of values as one where they lie among each other. */
static void latent_matrices(struct visitor *v, const struct mla_layer *mla, uint32_t n_heads)
{
	const struct matrix *w[2] = {&mla->k_b, &mla->v_b};
	const size_t stride[2] = {mla->k_b_head_bytes, mla->v_b_head_bytes};
	const unsigned char *first[2], *end[2];

	for (int i = 0; i < 2; i++) {
		first[i] = w[i]->data;
		end[i] = first[i] + (n_heads - 1) * stride[i] + w[i]->rows * w[i]->row_bytes;
	}
	if (first[0] < end[1] && first[1] < end[0]) {
		const unsigned char *at = first[0] < first[1] ? first[0] : first[1];
		visit(v, at, (size_t)((end[0] > end[1] ? end[0] : end[1]) - at));
		return;
	}
	for (int i = 0; i < 2; i++)
		visit(v, first[i], (size_t)(end[i] - first[i]));
}

static void mixer(struct visitor *v, const struct model_config *c, const struct layer *layer)
{
	bool whole = c->arch->qk_norm == QK_NORM_VECTOR;
	uint32_t dim = c->head_dim;

	floats(v, layer->q_norm, whole ? (size_t)c->n_heads * dim : dim);
	floats(v, layer->k_norm, whole ? (size_t)c->n_kv_heads * dim : dim);
	floats(v, layer->q_bias, layer->q.rows);
	floats(v, layer->k_bias, layer->k.rows);
	floats(v, layer->v_bias, layer->v.rows);
	floats(v, layer->o_bias, c->n_embd);
	floats(v, layer->sinks, c->n_heads);
	if (layer->mixer == MIX_MLA) {
		floats(v, layer->mla.q_a_norm, c->mla.q_rank);
		floats(v, layer->mla.q_a_bias, c->mla.q_rank);
		floats(v, layer->mla.kv_a_bias, c->mla.kv_rank + c->mla.rope);
		floats(v, layer->mla.kv_a_norm, c->mla.kv_rank);
		latent_matrices(v, &layer->mla, c->n_heads);
	}
	if (layer->mixer == MIX_DELTA_NET) {
		floats(v, layer->delta.a, c->delta.n_v_heads);
		floats(v, layer->delta.dt, c->delta.n_v_heads);
		floats(v, layer->delta.norm, c->delta.d_v);
	}
}

static void feed_forward(struct visitor *v, const struct model_config *c, const struct layer *layer)
{
	floats(v, layer->ffn_gate_bias, layer->ffn_gate.rows);
	floats(v, layer->ffn_up_bias, layer->ffn_up.rows);
	floats(v, layer->ffn_down_bias, c->n_embd);
	floats(v, layer->shared_gate_bias, layer->shared_gate.rows);
	floats(v, layer->shared_up_bias, layer->shared_up.rows);
	floats(v, layer->shared_down_bias, c->n_embd);
	if (!layer->moe)
		return;
	floats(v, layer->router_bias, c->n_experts);
	floats(v, layer->selection_bias, c->n_experts);
	biases(v, &layer->gate_bias, c->n_experts, c->n_expert_ff);
	biases(v, &layer->up_bias, c->n_experts, c->n_expert_ff);
	biases(v, &layer->down_bias, c->n_experts, c->n_embd);
}

static void visit_layer(struct visitor *v, const struct model_config *c, const struct layer *layer)
{
	struct layer copy = *layer; /* model_layer_matrices gives what may be changed */
	struct matrix *w[LAYER_MATRICES];

	model_layer_matrices(&copy, w);
	for (size_t i = 0; i < LAYER_MATRICES; i++)
		matrix(v, w[i]);
	floats(v, layer->attn_norm, c->n_embd);
	floats(v, layer->attn_norm_bias, c->n_embd);
	floats(v, layer->ffn_norm, c->n_embd);
	floats(v, layer->ffn_norm_bias, c->n_embd);
	mixer(v, c, layer);
	feed_forward(v, c, layer);
}

static void visit_all(struct visitor *v, const struct model *model)
{
	const struct model_config *c = &model->config;
	const struct head *head = model->head;

	matrix(v, &model->embedding);
	matrix(v, &model->output);
	floats(v, model->output_norm, c->n_embd);
	floats(v, model->output_norm_bias, c->n_embd);
	floats(v, model->output_bias, model->output.rows);
	if (head) {
		matrix(v, &head->project);
		floats(v, head->taps_norm, head->n_state);
		floats(v, head->token_norm, c->n_embd);
		floats(v, head->state_norm, c->n_embd);
	}
	for (uint32_t i = 0; i < c->n_layers; i++)
		visit_layer(v, c, &model->layers[i]);
}

/* n pairs of matrices, one after the other. */
static void low_rank(struct visitor *v, const struct low_rank *w, size_t n)
{
	visit(v, w->a.data, n * w->a.rows * w->a.row_bytes);
	visit(v, w->b.data, n * w->b.rows * w->b.row_bytes);
}

static void ffn_pairs(struct visitor *v, const struct ffn_adapt *w, size_t n)
{
	low_rank(v, &w->gate, n);
	low_rank(v, &w->up, n);
	low_rank(v, &w->down, n);
}

static void visit_adapter(
	struct visitor *v, const struct adapter *adapter, const struct model *target)
{
	const struct model_config *c = &target->config;

	floats(v, adapter->masks, (size_t)adapter->n_masks * c->n_embd);
	for (uint32_t i = 0; i < sizeof(adapter->sampler) / sizeof(adapter->sampler[0]); i++) {
		matrix(v, &adapter->sampler[i]);
		floats(v, adapter->sampler_norm[i], c->n_embd);
	}
	for (uint32_t i = 0; i < c->n_layers; i++) {
		const struct adapter_layer *layer = &adapter->layers[i];

		low_rank(v, &layer->q, 1);
		low_rank(v, &layer->k, 1);
		low_rank(v, &layer->v, 1);
		low_rank(v, &layer->o, 1);
		ffn_pairs(v, &layer->dense, 1);
		ffn_pairs(v, &layer->experts, c->n_experts);
		ffn_pairs(v, &layer->shared, 1);
	}
}

static int place_one(struct visitor *v, const void *at, size_t bytes)
{
	return v->backend->ops->place(v->backend, at, bytes, v->err);
}

static int forget_one(struct visitor *v, const void *at, size_t bytes)
{
	v->backend->ops->forget(v->backend, at, bytes);
	return 0;
}

static int count_one(struct visitor *v, const void *at, size_t bytes)
{
	(void)at;
	v->bytes += bytes;
	return 0;
}

static void forget(const struct model *model, struct backend *backend, uint32_t n)
{
	struct visitor v = {.fn = forget_one, .backend = backend, .n_max = n};

	visit_all(&v, model);
}

int model_place(const struct model *model, struct backend *backend, struct error *err)
{
	struct visitor v = {.fn = place_one, .backend = backend, .err = err, .n_max = UINT32_MAX};

	visit_all(&v, model);
	if (v.rc < 0)
		forget(model, backend, v.n);
	return v.rc < 0 ? error_prefix(err, v.rc, "weights of %s", gguf_path(model->gguf)) : 0;
}

void model_forget(const struct model *model, struct backend *backend)
{
	forget(model, backend, UINT32_MAX);
}

uint64_t model_place_bytes(const struct model *model)
{
	struct visitor v = {.fn = count_one, .n_max = UINT32_MAX};

	visit_all(&v, model);
	/* Tied: it is placed once. */
	if (model->embedding.data == model->output.data &&
		model->embedding.rows == model->output.rows)
		v.bytes -= (uint64_t)model->output.rows * model->output.row_bytes;
	return v.bytes;
}

int adapter_place(const struct adapter *adapter, const struct model *target,
	struct backend *backend, struct error *err)
{
	struct visitor v = {.fn = place_one, .backend = backend, .err = err, .n_max = UINT32_MAX};

	visit_adapter(&v, adapter, target);
	if (v.rc < 0) {
		struct visitor back = {.fn = forget_one, .backend = backend, .n_max = v.n};
		visit_adapter(&back, adapter, target);
	}
	return v.rc < 0 ? error_prefix(err, v.rc, "weights of %s", gguf_path(adapter->file->gguf))
			: 0;
}

void adapter_forget(
	const struct adapter *adapter, const struct model *target, struct backend *backend)
{
	struct visitor v = {.fn = forget_one, .backend = backend, .n_max = UINT32_MAX};

	visit_adapter(&v, adapter, target);
}

uint64_t adapter_place_bytes(const struct adapter *adapter, const struct model *target)
{
	struct visitor v = {.fn = count_one, .n_max = UINT32_MAX};

	visit_adapter(&v, adapter, target);
	return v.bytes;
}
