#include "shared/model/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT_FEED_FORWARD = 1 << 20, KEY_BYTES = 128 };

/* Reading keys of one architecture: the name of the last key asked for stays in key, for messages. */
struct keys {
	const struct gguf *gguf;
	const struct arch *arch;
	struct error *err;
	char key[KEY_BYTES];
};

static const char *key_name(struct keys *k, const char *suffix)
{
	snprintf(k->key, sizeof(k->key), "%s.%s", k->arch->name, suffix);
	return k->key;
}

static int missing(struct keys *k)
{
	return error_set(k->err, EINVAL, "key %s is missing", k->key);
}

/* An optional count; *out keeps its value when the key is absent. */
static int get_count(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out)
{
	uint64_t value;
	int rc = gguf_get_u64(k->gguf, key_name(k, suffix), min, max, &value, k->err);
	if (rc == -ENOENT)
		return 0;
	if (!rc)
		*out = (uint32_t)value;
	return rc;
}

static int need_count(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out)
{
	if (!gguf_has(k->gguf, key_name(k, suffix)))
		return missing(k);
	return get_count(k, suffix, min, max, out);
}

/* A count that some converters write once and others once per layer. Layers that differ are refused. */
static int get_layered(
	struct keys *k, const char *suffix, uint32_t n_layers, uint64_t max, uint32_t *out)
{
	enum gguf_value_type type;
	uint64_t n;
	const char *key = key_name(k, suffix);
	/* No error struct: a scalar is not an array, and that is fine. */
	if (gguf_get_array(k->gguf, key, &type, &n, NULL) != 0)
		return get_count(k, suffix, 1, max, out);
	if (type == GGUF_STRING || type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL)
		return error_set(k->err, EINVAL, "key %s is an array, but not of integers", key);
	if (n != n_layers)
		return error_set(k->err, EINVAL,
			"key %s is an array of %llu elements; the model has %u blocks", key,
			(unsigned long long)n, n_layers);
	for (uint64_t i = 0; i < n; i++) {
		int64_t value = gguf_array_i64(k->gguf, key, i);
		if (value < 1 || (uint64_t)value > max)
			return error_set(k->err, EINVAL,
				"key %s is %lld for block %llu; 1 to %llu are allowed", key,
				(long long)value, (unsigned long long)i, (unsigned long long)max);
		if (value != gguf_array_i64(k->gguf, key, 0))
			return error_set(k->err, ENOTSUP,
				"key %s differs between blocks (%lld in block 0, %lld in block "
				"%llu), which is not supported",
				key, (long long)gguf_array_i64(k->gguf, key, 0), (long long)value,
				(unsigned long long)i);
		*out = (uint32_t)value;
	}
	return 0;
}

/* A number in min..max; NaN is in no range. *out keeps its value when the key is absent. */
static int get_number(struct keys *k, const char *suffix, double min, double max, double *out)
{
	double value;
	const char *key = key_name(k, suffix);
	int rc = gguf_get_f64(k->gguf, key, &value, k->err);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	if (!(value >= min && value <= max))
		return error_set(
			k->err, EINVAL, "key %s is %g; %g to %g are allowed", key, value, min, max);
	*out = value;
	return 0;
}

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
	char known[128] = "";
	size_t used = 0;
	for (size_t i = 0; arch_at(i) && used < sizeof(known); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "",
			arch_at(i)->name);
	return error_set(err, ENOTSUP,
		"key general.architecture is \"%s\", which is not supported (supported: %s)",
		gguf_name_text(name).text, known);
}

/* What kind of file it is: a model, not an adapter or a projector. (gguf.c has seen to its parts.) */
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
	return 0;
}

static int read_attention(struct keys *k, struct model_config *c)
{
	int rc = 0;
	if (!gguf_has(k->gguf, key_name(k, "attention.head_count")))
		return missing(k);
	rc = get_layered(k, "attention.head_count", c->n_layers, LIMIT_HEADS, &c->n_heads);
	if (rc)
		return rc;
	c->n_kv_heads = c->n_heads;
	rc = get_layered(k, "attention.head_count_kv", c->n_layers, LIMIT_HEADS, &c->n_kv_heads);
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

/* Linear scaling is a factor; llama3's is a tensor of factors; everything else is refused. */
static int read_rope_scaling(struct keys *k, struct model_config *c)
{
	struct gguf_string type;
	bool scaled = true;
	int rc = gguf_get_string(k->gguf, key_name(k, "rope.scaling.type"), &type, k->err);
	if (rc && rc != -ENOENT)
		return rc;
	if (!rc) {
		struct gguf_name_text text = gguf_name_text(type);
		scaled = strcmp(text.text, "linear") == 0;
		if (!scaled && strcmp(text.text, "none") != 0)
			return error_set(k->err, ENOTSUP,
				"key %s is \"%s\"; none and linear are supported", k->key,
				text.text);
	}
	/* Files older than rope.scaling.* have rope.scale_linear. */
	double factor = 1, attn_factor = 1;
	rc = get_number(k, "rope.scale_linear", 1e-3, 1e6, &factor);
	if (!rc)
		rc = get_number(k, "rope.scaling.factor", 1e-3, 1e6, &factor);
	if (rc)
		return rc;
	c->rope_scale = scaled ? (float)(1 / factor) : 1;
	rc = get_number(k, "rope.scaling.attn_factor", 0, 1e6, &attn_factor);
	if (!rc && attn_factor != 1)
		rc = error_set(k->err, ENOTSUP, "key %s is %g, which is not supported without yarn",
			k->key, attn_factor);
	return rc;
}

static int read_rope(struct keys *k, struct model_config *c)
{
	c->n_rot = c->head_dim;
	int rc = get_count(k, "rope.dimension_count", 2, c->head_dim, &c->n_rot);
	if (rc)
		return rc;
	if (c->n_rot % 2)
		return error_set(k->err, EINVAL, "key %s is %u; it must be even", k->key, c->n_rot);
	c->rope_base = 10000;
	rc = get_number(k, "rope.freq_base", 1, 1e15, &c->rope_base);
	return rc ? rc : read_rope_scaling(k, c);
}

static int read_feed_forward(struct keys *k, struct model_config *c)
{
	uint32_t width = 0;
	int rc = get_layered(k, "feed_forward_length", c->n_layers, LIMIT_FEED_FORWARD, &width);
	if (!rc)
		rc = get_count(k, "expert_count", 0, LIMIT_EXPERTS, &c->n_experts);
	if (rc)
		return rc;
	if (c->n_experts ? !k->arch->moe_allowed : k->arch->moe_required)
		return error_set(k->err, EINVAL, "key %s is %s, but architecture %s is %s", k->key,
			c->n_experts ? "not 0" : "0 or missing", k->arch->name,
			c->n_experts ? "dense" : "a mixture of experts");
	if (!c->n_experts) {
		c->n_ff = width;
		key_name(k, "feed_forward_length");
		return width ? 0 : missing(k);
	}
	uint32_t max = c->n_experts < LIMIT_EXPERTS_USED ? c->n_experts : LIMIT_EXPERTS_USED;
	rc = need_count(k, "expert_used_count", 1, max, &c->n_experts_used);
	if (rc)
		return rc;
	if (k->arch->expert_ffn_key)
		return need_count(
			k, "expert_feed_forward_length", 1, LIMIT_FEED_FORWARD, &c->n_expert_ff);
	c->n_expert_ff = width;
	key_name(k, "feed_forward_length");
	return width ? 0 : missing(k);
}

int model_read_config(const struct gguf *gguf, struct model_config *config, struct error *err)
{
	struct keys k = {.gguf = gguf, .err = err};
	const uint64_t n_before = gguf_n_problems(gguf);
	*config = (struct model_config){0};
	int rc = check_kind(gguf, err);
	if (!rc)
		rc = read_arch(gguf, &k.arch, err);
	if (rc || !k.arch)
		return rc;
	config->arch = k.arch;
	/* Each part on its own, so that a checked file shows what is wrong with each; those that follow from what could
	 * not be read are left out. */
	rc = need_count(&k, "block_count", 1, LIMIT_LAYERS, &config->n_layers);
	rc = gguf_problem(gguf, rc, err);
	if (!rc)
		rc = gguf_problem(gguf,
			need_count(&k, "context_length", 1, LIMIT_CONTEXT, &config->n_context),
			err);
	if (!rc)
		rc = gguf_problem(gguf,
			need_count(&k, "embedding_length", 1, LIMIT_EMBEDDING, &config->n_embd),
			err);
	if (!rc && config->n_layers && config->n_embd)
		rc = gguf_problem(gguf, read_attention(&k, config), err);
	if (!rc && config->head_dim >= 2)
		rc = gguf_problem(gguf, read_rope(&k, config), err);
	if (!rc && config->n_layers)
		rc = gguf_problem(gguf, read_feed_forward(&k, config), err);
	if (rc)
		return rc;
	double eps = NAN;
	rc = get_number(&k, "attention.layer_norm_rms_epsilon", 1e-30, 1, &eps);
	if (!rc && isnan(eps))
		rc = missing(&k);
	rc = gguf_problem(gguf, rc, err);
	config->rms_eps = (float)eps;
	if (!rc && gguf_n_problems(gguf) > n_before)
		return error_set(err, ECANCELED,
			"with such hyperparameters the tensors' shapes cannot be checked");
	return rc;
}
