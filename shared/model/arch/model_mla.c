/*
 * Loads latent attention: deepseek2's keys and tensors. Files have one of two layouts. The newer
 * one has *_mla keys, and separate matrices that map a head's query to the latent space (attn_k_b)
 * and the latent to its value (attn_v_b). The older one has neither: its attn_kv_b has, head by
 * head, nope rows of keys and v rows of values, as the model was published.
 */
#include "kernels/kernels.h"
#include "shared/model/arch/model_config.h"
#include "shared/model/arch/model_internal.h"

#include <stdio.h>

/* Reads the lengths of a head's parts. In the older layout, key_length and value_length are those
 * of a head; in the newer one they are those of the cache, and those of a head have other keys. */
static int read_lengths(struct keys *k, struct model_config *c)
{
	struct mla_config *mla = &c->mla;
	mla->split = gguf_has(k->gguf, key_name(k, "attention.key_length_mla"));
	int rc = need_count(k, mla->split ? "attention.key_length_mla" : "attention.key_length", 3,
		LIMIT_HEAD_DIM, &c->head_dim);
	if (!rc)
		rc = need_count(k, "rope.dimension_count", 2, c->head_dim - 1, &mla->rope);
	if (!rc)
		rc = need_count(k,
			mla->split ? "attention.value_length_mla" : "attention.value_length", 1,
			LIMIT_HEAD_DIM, &mla->v);
	if (!rc)
		rc = need_count(
			k, "attention.kv_lora_rank", 1, LIMIT_HEAD_DIM - mla->rope, &mla->kv_rank);
	mla->nope = c->head_dim - mla->rope;
	c->n_rot = mla->rope;
	return rc;
}

int read_mla(struct keys *k, struct model_config *c)
{
	int rc = need_count(k, "attention.head_count", 1, LIMIT_HEADS, &c->n_heads);
	if (!rc)
		rc = read_lengths(k, c);
	/* Some files without a compressed query have a rank for it all the same. */
	if (!rc && gguf_tensor_find(k->gguf, "blk.0.attn_q_a.weight"))
		rc = need_count(k, "attention.q_lora_rank", 1, LIMIT_EMBEDDING, &c->mla.q_rank);
	if (!rc && gguf_has(k->gguf, key_name(k, "attention.temperature_scale")))
		rc = error_set(k->err, ENOTSUP,
			"key %s is there: attention with a temperature is not supported", k->key);
	c->n_kv_heads = 1;
	return rc;
}

void finish_mla(struct keys *k, struct model_config *c)
{
	float m = 1;
	if (c->rope.scaling == ROPE_YARN && c->rope.factor > 1)
		m += (float)c->rope.yarn_log_multiplier * kernels_log((float)c->rope.factor);
	/* The root is an instruction, correctly rounded, and not libm's. */
	c->mla.scale = m * m / __builtin_sqrtf((float)c->head_dim);
	/* Converters left out the gating function, and one family of these models, GLM-4.7-Flash,
	 * has another than the first. */
	enum gguf_value_type type;
	uint64_t n_tokens;
	if ((c->n_blocks == 47 || c->n_blocks == 48) &&
		!gguf_has(k->gguf, key_name(k, "expert_gating_func")) &&
		gguf_get_array(k->gguf, "tokenizer.ggml.tokens", &type, &n_tokens, NULL) == 0 &&
		n_tokens == 154880)
		c->routing.gating = GATING_SIGMOID;
}

/* Loads attn_kv_b, or attn_k_b and attn_v_b; the metadata tell which (mla->split). */
static int load_kv_b(struct loader *l, uint32_t i, struct mla_layer *mla)
{
	const struct mla_config *c = &l->model->config.mla;
	uint32_t heads = l->model->config.n_heads;
	snprintf(l->other_forms, sizeof(l->other_forms),
		c->split ? "blk.%u.attn_kv_b.weight of a model without key_length_mla"
			 : "blk.%u.attn_k_b.weight of a model with key_length_mla",
		i);
	if (c->split) {
		name_tensor(l, "blk.%u.attn_k_b.weight", i);
		int rc = load_matrices(l, c->kv_rank, c->nope, heads, &mla->k_b);
		name_tensor(l, "blk.%u.attn_v_b.weight", i);
		if (!rc)
			rc = load_matrices(l, c->v, c->kv_rank, heads, &mla->v_b);
		mla->k_b_head_bytes = mla->k_b.row_bytes * mla->k_b.rows;
		mla->v_b_head_bytes = mla->v_b.row_bytes * mla->v_b.rows;
		return rc;
	}
	struct matrix both = {.data = NULL};
	name_tensor(l, "blk.%u.attn_kv_b.weight", i);
	int rc = load_matrix(l, heads * (c->nope + c->v), c->kv_rank, &both);
	/* In a file that is checked, problems are reported and loading continues without the
	 * tensor. */
	if (rc || !both.data)
		return rc;
	mla->k_b = both;
	mla->k_b.rows = c->nope;
	mla->k_b_transposed = true;
	mla->v_b = both;
	mla->v_b.rows = c->v;
	mla->v_b.data = (const unsigned char *)both.data + both.row_bytes * c->nope;
	mla->k_b_head_bytes = mla->v_b_head_bytes = both.row_bytes * (c->nope + c->v);
	return 0;
}

int load_mla(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *config = &l->model->config;
	const struct mla_config *c = &config->mla;
	struct mla_layer *mla = &layer->mla;
	const uint32_t q = config->n_heads * (c->nope + c->rope);
	int rc = 0;
	if (c->q_rank) {
		rc = load_linear(
			l, i, "attn_q_a", c->q_rank, config->n_embd, &mla->q_a, &mla->q_a_bias);
		name_tensor(l, "blk.%u.attn_q_a_norm.weight", i);
		if (!rc)
			rc = load_vector(l, c->q_rank, &mla->q_a_norm);
	}
	if (!c->q_rank)
		snprintf(l->other_forms, sizeof(l->other_forms), "blk.0.attn_q_a.weight");
	if (!rc)
		rc = load_linear(l, i, c->q_rank ? "attn_q_b" : "attn_q", q,
			c->q_rank ? c->q_rank : config->n_embd, &layer->q, &layer->q_bias);
	l->other_forms[0] = '\0';
	if (!rc)
		rc = load_linear(l, i, "attn_kv_a_mqa", c->kv_rank + c->rope, config->n_embd,
			&mla->kv_a, &mla->kv_a_bias);
	name_tensor(l, "blk.%u.attn_kv_a_norm.weight", i);
	if (!rc)
		rc = load_vector(l, c->kv_rank, &mla->kv_a_norm);
	if (!rc)
		rc = load_kv_b(l, i, mla);
	l->other_forms[0] = '\0';
	return rc ? rc
		  : load_linear(l, i, "attn_output", config->n_embd, config->n_heads * c->v,
			    &layer->o, &layer->o_bias);
}
