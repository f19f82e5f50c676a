#include "shared/model/arch/model_config.h"

enum { LIMIT_SHARED = 64 };

/* Only experts of some groups may be chosen (DeepSeek-V2, arXiv 2405.04434, section 2.2.2). */
static int read_groups(struct keys *k, struct model_config *c)
{
	struct routing_config *r = &c->routing;
	r->n_groups = r->n_groups_used = 1;
	int rc = get_count(k, "expert_group_used_count", 0, c->n_experts, &r->n_groups_used);
	if (!rc)
		rc = get_count(k, "expert_group_count", 0, c->n_experts, &r->n_groups);
	if (rc)
		return rc;
	if (r->n_groups <= 1) {
		r->n_groups = r->n_groups_used = 1;
		return 0;
	}
	uint32_t size = c->n_experts / r->n_groups;
	if (c->n_experts % r->n_groups || size < 2)
		return error_set(k->err, EINVAL,
			"key %s is %u, which makes no groups of two or more of the %u experts",
			k->key, r->n_groups, c->n_experts);
	key_name(k, "expert_group_used_count");
	if (r->n_groups_used == 0 || r->n_groups_used > r->n_groups)
		return error_set(k->err, EINVAL, "key %s is %u; there are %u groups", k->key,
			r->n_groups_used, r->n_groups);
	if (r->n_groups_used * size < c->n_experts_used)
		return error_set(k->err, EINVAL,
			"key %s is %u: that many groups of %u experts do not have the %u of "
			"expert_used_count",
			k->key, r->n_groups_used, size, c->n_experts_used);
	return 0;
}

static int read_routing(struct keys *k, struct model_config *c)
{
	struct routing_config *r = &c->routing;
	double scale = 1;
	uint32_t gating = 0;
	int rc = 0;
	*r = (struct routing_config){.gating = k->arch->gating, .norm = k->arch->norm_topk};
	if (k->arch->routing_keys) {
		rc = get_number(k, "expert_weights_scale", 0, 1e6, &scale);
		if (!rc)
			rc = gguf_get_bool(
				k->gguf, key_name(k, "expert_weights_norm"), &r->norm, k->err);
		rc = rc == -ENOENT ? 0 : rc;
		if (!rc)
			rc = get_count(k, "expert_gating_func", 0, GATING_TOP_SOFTMAX, &gating);
		if (gating)
			r->gating = (enum gating)gating;
	}
	r->scale = scale > 0 ? (float)scale : 1;
	if (!rc && r->gating == GATING_SPARSEMIXER && c->n_experts_used != 2) {
		key_name(k, "expert_used_count");
		return error_set(k->err, ENOTSUP,
			"key %s is %u; the routing of architecture %s chooses 2", k->key,
			c->n_experts_used, k->arch->name);
	}
	return rc ? rc : read_groups(k, c);
}

static int read_shared(struct keys *k, struct model_config *c, uint32_t width)
{
	uint32_t n = 0;
	int rc = 0;
	if (k->arch->shared == SHARED_COUNT) {
		rc = get_count(k, "expert_shared_count", 0, LIMIT_SHARED, &n);
		c->n_shared_ff = n * c->n_expert_ff;
	} else if (k->arch->shared == SHARED_WIDTH) {
		c->n_shared_ff = width;
		rc = get_count(k, "expert_shared_feed_forward_length", 1, LIMIT_FEED_FORWARD,
			&c->n_shared_ff);
		if (!rc && c->n_shared_ff == 0)
			return missing_key(k);
	}
	if (!rc && c->n_shared_ff > LIMIT_FEED_FORWARD)
		rc = error_set(k->err, EINVAL,
			"key %s is %u: shared experts of width %u altogether; at most %d are "
			"supported",
			k->key, n, c->n_shared_ff, LIMIT_FEED_FORWARD);
	return rc;
}

/* The architecture decides which key has the experts' width; some files have the sum over the used
 * experts as the dense width. */
static int read_expert_width(struct keys *k, struct model_config *c, uint32_t width)
{
	if (!k->arch->expert_ffn_key) {
		c->n_expert_ff = width;
		key_name(k, "feed_forward_length");
		return width ? 0 : missing_key(k);
	}
	int rc = get_layered(k, "expert_feed_forward_length", LIMIT_FEED_FORWARD, &c->n_expert_ff);
	if (!rc && c->n_expert_ff == 0) {
		if (width == 0 || width % c->n_experts_used)
			return missing_key(k);
		c->n_expert_ff = width / c->n_experts_used;
	}
	return rc;
}

static int read_experts(struct keys *k, struct model_config *c)
{
	uint32_t max = c->n_experts < LIMIT_EXPERTS_USED ? c->n_experts : LIMIT_EXPERTS_USED;
	uint32_t width = 0;
	int rc = need_count(k, "expert_used_count", 1, max, &c->n_experts_used);
	if (!rc)
		rc = get_count(k, "leading_dense_block_count", 0, c->n_layers, &c->n_dense);
	if (!rc)
		rc = get_count(k, "interleave_moe_layer_step", 1, c->n_layers, &c->moe_step);
	for (uint32_t i = 0; i < c->n_layers; i++) {
		if (!width || c->dense_ff[i] > width)
			width = c->dense_ff[i];
	}
	if (!rc)
		rc = read_expert_width(k, c, width);
	if (!rc)
		rc = read_shared(k, c, width);
	return rc ? rc : read_routing(k, c);
}

bool model_config_moe(const struct model_config *c, uint32_t layer)
{
	return c->n_experts && layer >= c->n_dense && (layer + 1) % c->moe_step == 0;
}

int read_feed_forward(struct keys *k, struct model_config *c)
{
	int rc = get_layers(k, "feed_forward_length", 0, LIMIT_FEED_FORWARD, c->dense_ff);
	if (!rc)
		rc = get_count(k, "expert_count", 0, LIMIT_EXPERTS, &c->n_experts);
	if (rc)
		return rc;
	if (c->n_experts ? !k->arch->moe_allowed : k->arch->moe_required)
		return error_set(k->err, EINVAL, "key %s is %s, but architecture %s is %s", k->key,
			c->n_experts ? "not 0" : "0 or missing", k->arch->name,
			c->n_experts ? "dense" : "a mixture of experts");
	c->moe_step = 1;
	if (c->n_experts)
		rc = read_experts(k, c);
	key_name(k, "feed_forward_length");
	for (uint32_t i = 0; !rc && i < c->n_layers; i++) {
		if (model_config_moe(c, i))
			continue;
		if (c->dense_ff[i] == 0)
			return gguf_has(k->gguf, k->key)
				       ? error_set(k->err, EINVAL,
						 "key %s is 0 for block %u, which has no experts",
						 k->key, i)
				       : missing_key(k);
		c->n_ff = c->dense_ff[i] > c->n_ff ? c->dense_ff[i] : c->n_ff;
	}
	return rc;
}
