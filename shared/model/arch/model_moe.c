#include "shared/model/arch/model_config.h"
#include "shared/model/arch/model_internal.h"

/* The group of gate and up, of width f: one tensor, or two. */
static struct group gate_up(const struct loader *l, const char *suffix, uint32_t f)
{
	return (struct group){
		.fused = "ffn_gate_up",
		.suffix = suffix,
		.last_holds_all = true,
		.cols = l->model->config.n_embd,
		.n = 2,
		.part = {{"ffn_gate", f}, {"ffn_up", f}},
	};
}

static int load_shared(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	if (c->n_shared_ff == 0)
		return 0;
	const struct group group = gate_up(l, "_shexp", c->n_shared_ff);
	int rc = load_group(l, i, &group,
		(struct matrix *[]){&layer->shared_gate, &layer->shared_up},
		(const float **[]){&layer->shared_gate_bias, &layer->shared_up_bias});
	if (!rc)
		rc = load_linear(l, i, "ffn_down_shexp", c->n_embd, c->n_shared_ff,
			&layer->shared_down, &layer->shared_down_bias);
	if (rc || c->arch->shared != SHARED_WIDTH)
		return rc;
	name_tensor(l, "blk.%u.ffn_gate_inp_shexp.weight", i);
	return load_matrix(l, 1, c->n_embd, &layer->shared_weight);
}

static int load_router(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	name_tensor(l, "blk.%u.ffn_gate_inp.weight", i);
	int rc = load_matrix(l, c->n_experts, c->n_embd, &layer->router);
	name_tensor(l, "blk.%u.ffn_gate_inp.bias", i);
	if (!rc)
		rc = load_part(l, c->arch->expert_biases ? PART_NEEDED : PART_OPTIONAL,
			c->n_experts, &layer->router_bias);
	name_tensor(l, "blk.%u.exp_probs_b.bias", i);
	if (!rc)
		rc = load_part(l, c->arch->selection_bias, c->n_experts, &layer->selection_bias);
	return rc;
}

/* In a packed file the weights lie as in pack.h; biases are unchanged. */
static int load_experts(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const bool needed = c->arch->expert_biases, packed = l->model->packed;
	struct group inner = gate_up(l, "_exps", c->n_expert_ff);
	inner.n_experts = c->n_experts;
	const struct group outer = {
		.suffix = "_exps",
		.n_experts = c->n_experts,
		.cols = c->n_expert_ff,
		.n = 1,
		.part = {{"ffn_down", c->n_embd}},
	};
	int rc = packed ? load_packed_experts(l, i, layer)
			: load_expert_group(l, i, &inner,
				  (struct expert_tensor *[]){&layer->gate, &layer->up});
	if (!rc && !packed)
		rc = load_expert_group(l, i, &outer, (struct expert_tensor *[]){&layer->down});
	if (!rc)
		rc = load_expert_biases(l, i, &inner, needed,
			(struct expert_bias *[]){&layer->gate_bias, &layer->up_bias});
	return rc ? rc
		  : load_expert_biases(
			    l, i, &outer, needed, (struct expert_bias *[]){&layer->down_bias});
}

/* False: the block has no experts. */
static bool load_drafting_block(struct loader *l, uint32_t i, struct layer *layer)
{
	/* What is wrong with the block is said where it is used: without it nothing is lost. */
	struct error unused;
	struct loader own = *l;
	own.err = &unused;
	name_tensor(&own, "blk.%u.ffn_gate_inp.weight", i);
	if (i + 1 >= LIMIT_LAYERS || !has_tensor(&own))
		return false;
	layer->moe = load_experts(&own, i, layer) == 0;
	if (!layer->moe)
		*layer = (struct layer){0};
	return layer->moe;
}

void load_drafting_experts(struct loader *l)
{
	struct model *m = l->model;
	const struct model_config *c = &m->config;
	m->n_drafting = 0;
	if (m->packed || c->n_experts == 0)
		return;
	while (m->n_drafting < LIMIT_DRAFT_BLOCKS && c->n_layers + m->n_drafting < c->n_blocks &&
		load_drafting_block(l, c->n_layers + m->n_drafting, &m->drafting[m->n_drafting]))
		m->n_drafting++;
}

static int load_moe(struct loader *l, uint32_t i, struct layer *layer)
{
	layer->moe = true;
	int rc = load_router(l, i, layer);
	if (!rc)
		rc = load_experts(l, i, layer);
	return rc ? rc : load_shared(l, i, layer);
}

/* True when a layer that no key calls dense is dense (mlp_only_layers of the Qwen models): it has
 * no router, and its down matrix belongs to no expert. Only where both widths have keys of their
 * own. */
static bool dense_by_tensors(struct loader *l, uint32_t i)
{
	name_tensor(l, "blk.%u.ffn_gate_inp.weight", i);
	bool router = has_tensor(l);
	name_tensor(l, "blk.%u.ffn_down.weight", i);
	const struct model_config *c = &l->model->config;
	return !router && has_tensor(l) && c->arch->expert_ffn_key && c->dense_ff[i];
}

static int load_dense(struct loader *l, uint32_t i, struct layer *layer)
{
	struct model_config *c = &l->model->config;
	const uint32_t f = c->dense_ff[i];
	const struct group group = gate_up(l, "", f);
	c->n_ff = f > c->n_ff ? f : c->n_ff;
	int rc = load_group(l, i, &group, (struct matrix *[]){&layer->ffn_gate, &layer->ffn_up},
		(const float **[]){&layer->ffn_gate_bias, &layer->ffn_up_bias});
	return rc ? rc
		  : load_linear(l, i, "ffn_down", c->n_embd, f, &layer->ffn_down,
			    &layer->ffn_down_bias);
}

int load_feed_forward(struct loader *l, uint32_t i, struct layer *layer)
{
	if (model_config_moe(&l->model->config, i) && !dense_by_tensors(l, i))
		return load_moe(l, i, layer);
	return load_dense(l, i, layer);
}
