#include "shared/model/arch/model_config.h"

#include <string.h>

#define YARN_BASE_MIN 1.001

/* Architectures that always have longrope have no key that says so. */
static int read_type(struct keys *k, enum rope_scaling *scaling, bool *scaled)
{
	static const char *const names[] = {
		[ROPE_LINEAR] = "linear", [ROPE_YARN] = "yarn", [ROPE_LONG] = "longrope"};
	struct gguf_string type;
	*scaled = true;
	*scaling = k->arch->rope_long ? ROPE_LONG : ROPE_LINEAR;
	int rc = gguf_get_string(k->gguf, key_name(k, "rope.scaling.type"), &type, k->err);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	struct gguf_name_text text = gguf_name_text(type);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		*scaling = (enum rope_scaling)i;
		if (strcmp(text.text, names[i]) == 0)
			return 0;
	}
	*scaling = ROPE_LINEAR;
	*scaled = false;
	if (strcmp(text.text, "none") == 0)
		return 0;
	return error_set(k->err, ENOTSUP,
		"key %s is \"%s\"; none, linear, yarn and longrope are supported", k->key,
		text.text);
}

static int read_yarn(struct keys *k, struct rope_config *rope)
{
	double ext = 1;
	rope->beta_fast = 32;
	rope->beta_slow = 1;
	int rc = get_number(k, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &rope->beta_fast);
	if (!rc)
		rc = get_number(k, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &rope->beta_slow);
	if (!rc && rope->beta_slow > rope->beta_fast)
		return error_set(k->err, EINVAL, "key %s is %g, more than yarn_beta_fast, %g",
			k->key, rope->beta_slow, rope->beta_fast);
	if (!rc)
		rc = get_number(
			k, "rope.scaling.yarn_log_multiplier", 0, 10, &rope->yarn_log_multiplier);
	/* The configuration's attention_factor, which replaces 1 + 0.1 ln(factor). */
	if (!rc)
		rc = get_number(
			k, "rope.scaling.yarn_attn_factor", 1e-3, 1e3, &rope->yarn_attn_factor);
	if (!rc)
		rc = get_number(k, "rope.scaling.yarn_ext_factor", -1e6, 1e6, &ext);
	/* Negative values mean the usual. */
	if (!rc && ext >= 0 && ext != 1)
		rc = error_set(k->err, ENOTSUP, "key %s is %g; only 1 is supported", k->key, ext);
	return rc;
}

/* Converters write sqrt(1 + ln 32 / ln 4096) = 1.19024 for Phi-3.5-MoE, whose own configuration
 * says 1.24316 for short and long contexts. Only these three numbers show that the file is wrong.
 */
static void correct_phi(struct rope_config *rope, uint32_t n_context)
{
	double off = rope->attn_factor - 1.1902380714238083;
	if (rope->original_context == 4096 && n_context == 131072 && off * off < 1e-8)
		rope->attn_factor = 1.243163121016122;
}

static int read_scaling(struct keys *k, struct model_config *c)
{
	struct rope_config *rope = &c->rope;
	bool scaled;
	int rc = read_type(k, &rope->scaling, &scaled);
	/* Files older than rope.scaling.* have rope.scale_linear. */
	rope->factor = 1;
	if (!rc)
		rc = get_number(k, "rope.scale_linear", 1e-3, 1e6, &rope->factor);
	if (!rc)
		rc = get_number(k, "rope.scaling.factor", 1e-3, 1e6, &rope->factor);
	if (!scaled)
		rope->factor = 1;
	uint32_t original = c->n_context;
	if (!rc && rope->scaling == ROPE_LONG &&
		!gguf_has(k->gguf, key_name(k, "rope.scaling.original_context_length")))
		return missing_key(k);
	if (!rc)
		rc = get_count(
			k, "rope.scaling.original_context_length", 1, LIMIT_CONTEXT, &original);
	rope->original_context = original;
	rope->attn_factor = 1;
	if (!rc)
		rc = get_number(k, "rope.scaling.attn_factor", 1e-3, 1e3, &rope->attn_factor);
	if (!rc && rope->scaling == ROPE_LINEAR && rope->attn_factor != 1)
		rc = error_set(k->err, ENOTSUP,
			"key %s is %g, which is not supported without yarn or longrope", k->key,
			rope->attn_factor);
	if (k->arch->rope_long)
		correct_phi(rope, c->n_context);
	return rc || rope->scaling != ROPE_YARN ? rc : read_yarn(k, rope);
}

int read_rope(struct keys *k, struct model_config *c)
{
	if (c->n_rot == 0)
		c->n_rot = c->head_dim;
	int rc = get_count(k, "rope.dimension_count", 2, c->n_rot, &c->n_rot);
	if (rc)
		return rc;
	if (c->n_rot % 2)
		return error_set(k->err, EINVAL, "key %s is %u; it must be even", k->key, c->n_rot);
	c->rope.base = 10000;
	rc = get_number(k, "rope.freq_base", 1, 1e15, &c->rope.base);
	if (!rc)
		rc = read_scaling(k, c);
	/* YaRN divides by the logarithm of the base. */
	if (!rc && c->rope.scaling == ROPE_YARN && c->rope.base < YARN_BASE_MIN)
		rc = error_set(k->err, EINVAL, "key %s is %g; with yarn it must be at least %g",
			key_name(k, "rope.freq_base"), c->rope.base, YARN_BASE_MIN);
	return rc;
}
