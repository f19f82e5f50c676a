/* Loading gated delta nets: the keys and tensors of qwen3next and qwen35moe. */
#include "shared/model/arch/model_config.h"
#include "shared/model/arch/model_internal.h"

#include <stdio.h>

/* Reads which layers are delta nets: from a list, or all but every n-th. */
static int read_layers(struct keys *k, struct model_config *c)
{
	enum gguf_value_type type;
	uint64_t n;
	uint32_t interval = 4;
	int rc = get_count(k, "full_attention_interval", 1, LIMIT_LAYERS, &interval);
	if (rc)
		return rc;
	const char *key = key_name(k, "attention.recurrent_layers");
	rc = gguf_get_array(k->gguf, key, &type, &n, k->err);
	if (rc && rc != -ENOENT)
		return rc;
	bool listed = rc == 0;
	if (listed && type != GGUF_BOOL)
		return error_set(k->err, EINVAL, "key %s is an array, but not of booleans", key);
	if (listed && n != c->n_blocks)
		return error_set(k->err, EINVAL,
			"key %s is an array of %llu elements; the model has %u blocks", key,
			(unsigned long long)n, c->n_blocks);
	const unsigned char *list = listed ? gguf_array_raw(k->gguf, key) : NULL;
	for (uint32_t i = 0; i < c->n_layers; i++) {
		c->delta.layer[i] = list ? list[i] != 0 : (i + 1) % interval != 0;
		c->delta.n_layers += c->delta.layer[i];
	}
	c->n_kv_layers = c->n_layers - c->delta.n_layers;
	if (c->n_kv_layers > 0)
		return 0;
	return error_set(k->err, ENOTSUP,
		"key %s leaves no layer with attention, which is not supported",
		listed ? key : key_name(k, "full_attention_interval"));
}

int read_delta(struct keys *k, struct model_config *c)
{
	struct delta_config *d = &c->delta;
	uint32_t inner = 0;
	if (!c->arch->delta_nets)
		return 0;
	int rc = read_layers(k, c);
	if (rc || d->n_layers == 0)
		return rc;
	rc = need_count(k, "ssm.conv_kernel", 1, LIMIT_CONV_TAPS, &d->taps);
	if (!rc)
		rc = need_count(k, "ssm.state_size", 1, LIMIT_HEAD_DIM, &d->d_k);
	if (!rc)
		rc = need_count(k, "ssm.time_step_rank", 1, LIMIT_HEADS, &d->n_v_heads);
	if (!rc)
		rc = need_count(k, "ssm.group_count", 1, LIMIT_HEADS, &d->n_k_heads);
	if (rc)
		return rc;
	if (d->n_v_heads % d->n_k_heads)
		return error_set(k->err, EINVAL,
			"key %s is %u, which does not divide the %u value heads", k->key,
			d->n_k_heads, d->n_v_heads);
	rc = need_count(k, "ssm.inner_size", 1, LIMIT_HEADS * LIMIT_HEAD_DIM, &inner);
	if (rc)
		return rc;
	d->d_v = inner / d->n_v_heads;
	if (inner % d->n_v_heads || d->d_v > LIMIT_HEAD_DIM)
		return error_set(k->err, EINVAL,
			"key %s is %u; it must be a multiple of the %u value heads, of at most %d "
			"each",
			k->key, inner, d->n_v_heads, LIMIT_HEAD_DIM);
	d->tiled = c->arch->delta_tiled;
	return 0;
}

/* Loads the products, either separate, or mixed by key head as in files of the first converters. */
static int load_inputs(struct loader *l, uint32_t i, struct delta_weights *w)
{
	const struct delta_config *d = &l->model->config.delta;
	const uint32_t n = l->model->config.n_embd, keys = d->n_k_heads * d->d_k,
		       values = d->n_v_heads * d->d_v;
	name_tensor(l, "blk.%u.ssm_in.weight", i);
	if (!d->tiled && has_tensor(l))
		return load_matrix(l, 2 * keys + 2 * values, n, &w->mixed);
	if (!d->tiled)
		snprintf(l->other_forms, sizeof(l->other_forms), "blk.%u.ssm_in.weight", i);
	name_tensor(l, "blk.%u.attn_qkv.weight", i);
	int rc = load_matrix(l, 2 * keys + values, n, &w->qkv);
	l->other_forms[0] = '\0';
	name_tensor(l, "blk.%u.attn_gate.weight", i);
	return rc ? rc : load_matrix(l, values, n, &w->z);
}

/* Loads the gates, together by key head or separate; always separate where value heads are tiled.
 */
static int load_gates(struct loader *l, uint32_t i, struct delta_weights *w)
{
	const struct delta_config *d = &l->model->config.delta;
	const uint32_t n = l->model->config.n_embd;
	int rc;
	name_tensor(l, "blk.%u.ssm_beta.weight", i);
	if (d->tiled || has_tensor(l)) {
		name_tensor(l, "blk.%u.ssm_beta.weight", i);
		rc = load_matrix(l, d->n_v_heads, n, &w->beta);
		name_tensor(l, "blk.%u.ssm_alpha.weight", i);
		if (!rc)
			rc = load_matrix(l, d->n_v_heads, n, &w->alpha);
	} else {
		snprintf(l->other_forms, sizeof(l->other_forms),
			"blk.%u.ssm_beta.weight and blk.%u.ssm_alpha.weight", i, i);
		name_tensor(l, "blk.%u.ssm_ba.weight", i);
		rc = load_matrix(l, 2 * d->n_v_heads, n, &w->ba);
		l->other_forms[0] = '\0';
	}
	name_tensor(l, "blk.%u.ssm_dt.bias", i);
	if (!rc)
		rc = load_vector(l, d->n_v_heads, &w->dt);
	name_tensor(l, "blk.%u.ssm_a", i);
	return rc ? rc : load_vector(l, d->n_v_heads, &w->a);
}

int load_delta_net(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct delta_config *d = &l->model->config.delta;
	struct delta_weights *w = &layer->delta;
	const uint32_t values = d->n_v_heads * d->d_v;
	for (uint32_t before = 0; before < i; before++)
		w->index += d->layer[before];
	int rc = load_inputs(l, i, w);
	if (!rc)
		rc = load_gates(l, i, w);
	name_tensor(l, "blk.%u.ssm_conv1d.weight", i);
	if (!rc)
		rc = load_table(l, delta_channels(d->n_k_heads, d->d_k, d->n_v_heads, d->d_v),
			d->taps, &w->conv);
	name_tensor(l, "blk.%u.ssm_norm.weight", i);
	if (!rc)
		rc = load_vector(l, d->d_v, &w->norm);
	name_tensor(l, "blk.%u.ssm_out.weight", i);
	return rc ? rc : load_matrix(l, l->model->config.n_embd, values, &w->out);
}
