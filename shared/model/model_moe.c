#include "shared/model/model_config.h"
#include "shared/model/model_internal.h"

/* The three matrices of a feed-forward of width f: blk.I.ffn_{gate,up,down}SUFFIX.weight. */
static int load_three(struct loader *l, uint32_t i, const char *suffix, uint32_t f,
	struct matrix *gate, struct matrix *up, struct matrix *down)
{
	const uint32_t d = l->model->config.n_embd;
	name_tensor(l, "blk.%u.ffn_gate%s.weight", i, suffix);
	int rc = load_matrix(l, f, d, gate);
	name_tensor(l, "blk.%u.ffn_up%s.weight", i, suffix);
	if (!rc)
		rc = load_matrix(l, f, d, up);
	name_tensor(l, "blk.%u.ffn_down%s.weight", i, suffix);
	return rc ? rc : load_matrix(l, d, f, down);
}

static int load_shared(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	if (c->n_shared_ff == 0)
		return 0;
	int rc = load_three(l, i, "_shexp", c->n_shared_ff, &layer->shared_gate, &layer->shared_up,
		&layer->shared_down);
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
		rc = load_part(l, c->arch->router_bias, c->n_experts, &layer->router_bias);
	name_tensor(l, "blk.%u.exp_probs_b.bias", i);
	if (!rc)
		rc = load_part(l, c->arch->selection_bias, c->n_experts, &layer->selection_bias);
	return rc;
}

static int load_expert_biases(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const struct {
		const char *name;
		uint32_t n;
		const float **out;
	} biases[] = {
		{"gate", c->n_expert_ff, &layer->gate_bias},
		{"up", c->n_expert_ff, &layer->up_bias},
		{"down", c->n_embd, &layer->down_bias},
	};
	int rc = 0;
	for (size_t b = 0; !rc && b < sizeof(biases) / sizeof(biases[0]); b++) {
		name_tensor(l, "blk.%u.ffn_%s_exps.bias", i, biases[b].name);
		if (c->arch->expert_bias == PART_NEEDED ||
			(c->arch->expert_bias == PART_OPTIONAL && has_tensor(l)))
			rc = load_table(l, c->n_experts, biases[b].n, biases[b].out);
	}
	return rc;
}

static int load_three_experts(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const uint32_t d = c->n_embd, f = c->n_expert_ff;
	int rc = load_experts(l, i, "gate", f, d, &layer->gate);
	if (!rc)
		rc = load_experts(l, i, "up", f, d, &layer->up);
	return rc ? rc : load_experts(l, i, "down", d, f, &layer->down);
}

static int load_moe(struct loader *l, uint32_t i, struct layer *layer)
{
	layer->moe = true;
	name_tensor(l, "blk.%u.ffn_gate.0.weight", i);
	if (has_tensor(l))
		return error_set(l->err, ENOTSUP,
			"tensor %s holds one expert: files with separate expert tensors (Mixtral "
			"files of "
			"early 2024 and before) are not supported, convert the model again",
			l->name);
	int rc = load_router(l, i, layer);
	if (!rc)
		rc = l->model->packed ? load_packed_experts(l, i, layer)
				      : load_three_experts(l, i, layer);
	if (!rc)
		rc = load_expert_biases(l, i, layer);
	return rc ? rc : load_shared(l, i, layer);
}

/* Whether a layer that no key calls dense is (mlp_only_layers of the Qwen models): it has no router, but a gate. Only where the
 * widths of both have keys of their own. */
static bool dense_by_tensors(struct loader *l, uint32_t i)
{
	name_tensor(l, "blk.%u.ffn_gate_inp.weight", i);
	bool router = has_tensor(l);
	name_tensor(l, "blk.%u.ffn_gate.weight", i);
	const struct model_config *c = &l->model->config;
	return !router && has_tensor(l) && c->arch->expert_ffn_key && c->dense_ff[i];
}

int load_feed_forward(struct loader *l, uint32_t i, struct layer *layer)
{
	struct model_config *c = &l->model->config;
	if (model_config_moe(c, i) && !dense_by_tensors(l, i))
		return load_moe(l, i, layer);
	c->n_ff = c->dense_ff[i] > c->n_ff ? c->dense_ff[i] : c->n_ff;
	return load_three(
		l, i, "", c->dense_ff[i], &layer->ffn_gate, &layer->ffn_up, &layer->ffn_down);
}
