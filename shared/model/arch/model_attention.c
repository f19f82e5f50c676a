#include "shared/model/arch/model_internal.h"

/* If the file decides, it has both or none. */
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
	const struct group qkv = {
		.fused = "attn_qkv",
		.suffix = "",
		.cols = d,
		.n = 3,
		.part = {{"attn_q", c->arch->q_gate ? 2 * q : q}, {"attn_k", kv}, {"attn_v", kv}},
	};
	int rc = load_group(l, i, &qkv, (struct matrix *[]){&layer->q, &layer->k, &layer->v},
		(const float **[]){&layer->q_bias, &layer->k_bias, &layer->v_bias});
	if (!rc)
		rc = load_linear(l, i, "attn_output", d, q, &layer->o, &layer->o_bias);
	name_tensor(l, "blk.%u.attn_sinks.weight", i);
	if (!rc)
		rc = load_part(l, c->arch->sinks, c->n_heads, &layer->sinks);
	return rc ? rc : load_qk_norm(l, i, layer);
}
