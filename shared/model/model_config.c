#include "shared/model/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int read_arch(const struct gguf *gguf, const struct arch **arch, struct error *err)
{
	struct gguf_string name;
	int rc = gguf_get_string(gguf, "general.architecture", &name, err);
	if (rc == -ENOENT)
		return error_set(err, EINVAL, "key general.architecture is missing");
	if (rc)
		return rc;
	*arch = arch_find(name.data, name.bytes);
	if (*arch)
		return 0;
	char known[256] = "";
	size_t used = 0;
	for (size_t i = 0; arch_at(i) && used < sizeof(known); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "",
			arch_at(i)->name);
	return error_set(err, ENOTSUP,
		"key general.architecture is \"%s\", which is not supported (supported: %s)",
		gguf_name_text(name).text, known);
}

/* What kind of file it is: one whole model, nothing else. */
static int check_kind(const struct gguf *gguf, struct error *err)
{
	struct gguf_string type;
	int rc = gguf_get_string(gguf, "general.type", &type, err);
	if (!rc && (type.bytes != 5 || memcmp(type.data, "model", 5) != 0))
		return error_set(err, ENOTSUP,
			"key general.type is \"%s\"; only \"model\" can be loaded",
			gguf_name_text(type).text);
	if (rc && rc != -ENOENT)
		return rc;
	uint64_t count = 1, no = 0;
	rc = gguf_get_u64(gguf, "split.count", 0, UINT16_MAX, &count, err);
	if (rc && rc != -ENOENT)
		return rc;
	rc = gguf_get_u64(gguf, "split.no", 0, UINT16_MAX, &no, err);
	if (rc && rc != -ENOENT)
		return rc;
	if (count > 1 || no > 0)
		return error_set(err, ENOTSUP,
			"the file is one part of a split model (split.no %llu, split.count %llu); "
			"split "
			"files are not supported: join the parts into one file first",
			(unsigned long long)no, (unsigned long long)count);
	return 0;
}

static int read_attention(struct keys *k, struct model_config *c)
{
	int rc = 0;
	if (!gguf_has(k->gguf, key_name(k, "attention.head_count")))
		return missing_key(k);
	rc = get_layered(k, "attention.head_count", LIMIT_HEADS, &c->n_heads);
	if (rc)
		return rc;
	c->n_kv_heads = c->n_heads;
	rc = get_layered(k, "attention.head_count_kv", LIMIT_HEADS, &c->n_kv_heads);
	if (rc)
		return rc;
	if (c->n_heads % c->n_kv_heads)
		return error_set(k->err, EINVAL,
			"key %s is %u, which does not divide the %u query heads", k->key,
			c->n_kv_heads, c->n_heads);
	rc = get_count(k, "attention.key_length", 2, LIMIT_HEAD_DIM, &c->head_dim);
	if (rc)
		return rc;
	if (!c->head_dim) {
		c->head_dim = c->n_embd / c->n_heads;
		if (c->n_embd % c->n_heads || c->head_dim < 2 || c->head_dim > LIMIT_HEAD_DIM)
			return error_set(k->err, EINVAL,
				"key %s is missing, and %s.embedding_length %u over "
				"attention.head_count %u makes no head length of 2 to %d",
				k->key, k->arch->name, c->n_embd, c->n_heads, LIMIT_HEAD_DIM);
	}
	uint32_t value_length = c->head_dim;
	rc = get_count(k, "attention.value_length", 1, LIMIT_HEAD_DIM, &value_length);
	if (!rc && value_length != c->head_dim)
		rc = error_set(k->err, ENOTSUP,
			"key %s is %u and the key length %u; lengths that differ are not supported",
			k->key, value_length, c->head_dim);
	bool causal = true;
	if (!rc)
		rc = gguf_get_bool(k->gguf, key_name(k, "attention.causal"), &causal, k->err);
	if (!rc && !causal)
		rc = error_set(k->err, ENOTSUP, "key %s is false: the model does not generate text",
			k->key);
	return rc == -ENOENT ? 0 : rc;
}

static int read_window(struct keys *k, struct model_config *c)
{
	const char *key = "attention.sliding_window";
	uint32_t period = 2;
	if (k->arch->window == WINDOW_NONE)
		return 0;
	if (k->arch->window == WINDOW_ALL)
		return get_count(k, key, 0, INT32_MAX, &c->window);
	int rc = need_count(k, key, 1, INT32_MAX, &c->window);
	if (!rc)
		rc = get_count(k, "attention.sliding_window_pattern", 2, 2, &period);
	return rc;
}

/* Blocks behind the last layer that predict further tokens count as blocks, not as layers. */
static int read_blocks(struct keys *k, struct model_config *c)
{
	uint32_t n_predict = 0;
	int rc = need_count(k, "block_count", 1, LIMIT_LAYERS, &c->n_blocks);
	if (!rc)
		rc = get_count(k, "nextn_predict_layers", 0, c->n_blocks - 1, &n_predict);
	k->n_blocks = c->n_blocks;
	c->n_layers = c->n_blocks - n_predict;
	c->n_kv_layers = c->n_layers;
	return rc;
}

int model_read_config(const struct gguf *gguf, struct model_config *config, struct error *err)
{
	struct keys k = {.gguf = gguf, .err = err};
	*config = (struct model_config){0};
	int rc = check_kind(gguf, err);
	if (!rc)
		rc = read_arch(gguf, &k.arch, err);
	if (rc || !k.arch)
		return rc;
	config->arch = k.arch;
	rc = read_blocks(&k, config);
	if (!rc)
		rc = need_count(&k, "context_length", 1, LIMIT_CONTEXT, &config->n_context);
	if (!rc)
		rc = need_count(&k, "embedding_length", 1, LIMIT_EMBEDDING, &config->n_embd);
	if (!rc)
		rc = k.arch->mixer == MIX_MLA ? read_mla(&k, config) : read_attention(&k, config);
	if (!rc)
		rc = read_window(&k, config);
	if (!rc)
		rc = read_rope(&k, config);
	if (!rc)
		rc = read_feed_forward(&k, config);
	if (!rc)
		rc = read_delta(&k, config);
	if (rc)
		return rc;
	if (k.arch->mixer == MIX_MLA)
		finish_mla(&k, config);
	double eps = NAN;
	rc = get_number(&k, "attention.layer_norm_rms_epsilon", 1e-30, 1, &eps);
	if (!rc && isnan(eps))
		rc = missing_key(&k);
	config->rms_eps = (float)eps;
	return rc;
}
