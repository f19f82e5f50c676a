#include "shared/model/model_internal.h"

/* Where the file decides, both or none. */
static int load_qk_norm(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const bool vector = c->arch->qk_norm == QK_NORM_VECTOR;
	const uint32_t q = vector ? c->n_heads * c->head_dim : c->head_dim;
	const uint32_t k = vector ? c->n_kv_heads * c->head_dim : c->head_dim;
	enum part part = c->arch->qk_norm == QK_NORM_NONE ? PART_NONE : PART_NEEDED;
	name_tensor(l, "blk.%u.attn_k_norm.weight", i);
	bool has_k = has_tensor(l);
	name_tensor(l, "blk.%u.attn_q_norm.weight", i);
	if (c->arch->qk_norm_optional && !has_k && !has_tensor(l))
		part = PART_NONE;
	int rc = load_part(l, part, q, &layer->q_norm);
	name_tensor(l, "blk.%u.attn_k_norm.weight", i);
	return rc ? rc : load_part(l, part, k, &layer->k_norm);
}

int load_attention(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim,
		       d = c->n_embd;
	const struct {
		const char *name;
		uint32_t rows, cols;
		struct matrix *weight;
		const float **bias;
		enum part biased;
	} parts[] = {
		{"attn_q", c->arch->q_gate ? 2 * q : q, d, &layer->q, &layer->q_bias,
			c->arch->qkv_bias},
		{"attn_k", kv, d, &layer->k, &layer->k_bias, c->arch->qkv_bias},
		{"attn_v", kv, d, &layer->v, &layer->v_bias, c->arch->qkv_bias},
		{"attn_output", d, q, &layer->o, &layer->o_bias, c->arch->o_bias},
	};
	int rc = 0;
	for (size_t p = 0; !rc && p < sizeof(parts) / sizeof(parts[0]); p++) {
		name_tensor(l, "blk.%u.%s.weight", i, parts[p].name);
		rc = load_matrix(l, parts[p].rows, parts[p].cols, parts[p].weight);
		name_tensor(l, "blk.%u.%s.bias", i, parts[p].name);
		if (!rc)
			rc = load_part(l, parts[p].biased, parts[p].rows, parts[p].bias);
	}
	name_tensor(l, "blk.%u.attn_sinks.weight", i);
	if (!rc)
		rc = load_part(l, c->arch->sinks, c->n_heads, &layer->sinks);
	return rc ? rc : load_qk_norm(l, i, layer);
}
