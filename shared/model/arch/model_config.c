#include "shared/model/arch/model_config.h"
#include "shared/model/arch/head.h"
#include "shared/model/arch/pack.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int read_arch(const struct gguf *gguf, const struct arch **arch, struct error *err)
{
	struct gguf_string name;
	int rc = pack_architecture(gguf, &name, err);
	const char *key = pack_is(gguf) ? PACK_KEY_ARCHITECTURE : "general.architecture";
	if (rc == -ENOENT)
		return error_set(err, EINVAL, "key %s is missing", key);
	if (rc)
		return rc;
	*arch = arch_find(name.data, name.bytes);
	if (*arch)
		return 0;
	if (head_is_eagle3(gguf))
		return error_set(err, ENOTSUP,
			"key %s is \"%s\": a draft head reads the hidden states of another model, "
			"and cannot be run as a model",
			key, gguf_name_text(name).text);
	char known[256] = "";
	size_t used = 0;
	for (size_t i = 0; arch_at(i) && used < sizeof(known); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "",
			arch_at(i)->name);
	return error_set(err, ENOTSUP, "key %s is \"%s\", which is not supported (supported: %s)",
		key, gguf_name_text(name).text, known);
}

/* Checks that the file is a model, not an adapter or a projector. (gguf.c has checked its parts.)
 */
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

/* Blocks behind the last layer that predict further tokens are blocks, but not layers. */
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

/* Reads each part separately, so that checking a file shows what is wrong in each. Parts that
 * depend on something unreadable are left out. */
static int read_parts(struct keys *k, struct model_config *c)
{
	const struct gguf *gguf = k->gguf;
	int rc = gguf_problem(gguf, read_blocks(k, c), k->err);
	if (!rc)
		rc = gguf_problem(gguf,
			need_count(k, "context_length", 1, LIMIT_CONTEXT, &c->n_context), k->err);
	if (!rc)
		rc = gguf_problem(gguf,
			need_count(k, "embedding_length", 1, LIMIT_EMBEDDING, &c->n_embd), k->err);
	if (!rc && c->n_layers && c->n_embd)
		rc = gguf_problem(gguf,
			k->arch->mixer == MIX_MLA ? read_mla(k, c) : read_attention(k, c), k->err);
	if (!rc)
		rc = gguf_problem(gguf, read_window(k, c), k->err);
	if (!rc && c->head_dim >= 2)
		rc = gguf_problem(gguf, read_rope(k, c), k->err);
	if (!rc && c->n_layers)
		rc = gguf_problem(gguf, read_feed_forward(k, c), k->err);
	if (!rc && c->n_layers)
		rc = gguf_problem(gguf, read_delta(k, c), k->err);
	return rc;
}

int model_read_config(const struct gguf *gguf, struct model_config *config, struct error *err)
{
	const struct arch *arch = NULL;
	*config = (struct model_config){0};
	int rc = check_kind(gguf, err);
	if (!rc)
		rc = read_arch(gguf, &arch, err);
	return rc || !arch ? rc : model_read_config_as(gguf, arch, config, err);
}

int model_read_config_as(const struct gguf *gguf, const struct arch *arch,
	struct model_config *config, struct error *err)
{
	struct keys k = {.gguf = gguf, .arch = arch, .err = err};
	const uint64_t n_before = gguf_n_problems(gguf);
	*config = (struct model_config){.arch = arch};
	int rc = read_parts(&k, config);
	if (rc)
		return rc;
	if (k.arch->mixer == MIX_MLA)
		finish_mla(&k, config);
	double eps = NAN;
	rc = get_number(&k, "attention.layer_norm_rms_epsilon", 1e-30, 1, &eps);
	if (!rc && isnan(eps))
		rc = missing_key(&k);
	rc = gguf_problem(gguf, rc, err);
	config->rms_eps = (float)eps;
	if (!rc && gguf_n_problems(gguf) > n_before)
		return error_set(err, ECANCELED,
			"with such hyperparameters the tensors' shapes cannot be checked");
	return rc;
}
