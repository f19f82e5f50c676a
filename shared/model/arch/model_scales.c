/*
 * NAME.scale for NAME.weight: one factor for all its products, or one for each expert. NVFP4's
 * blocks reach only from 2^-10 to 224, so files with that type, which come from checkpoints with a
 * scale for the tensor, have such factors; other types may have them too. NAME.input_scale is for
 * activations of four bits, which nothing here uses: it is skipped.
 */
#include "shared/model/arch/model_internal.h"

#include <stddef.h>

/* The matrices of a layer that may have a scale, by name. One name may stand for several matrices
 * in one tensor. The parts of a fused tensor may each have kept a scale. */
static const struct scaled {
	const char *name;
	size_t matrix; /* offset in struct layer */
	/* the tensor that may have the matrix's rows as well; NULL: only its own has them */
	const char *fused;
} matrices[] = {
	{"attn_q", offsetof(struct layer, q), "attn_qkv"},
	{"attn_k", offsetof(struct layer, k), "attn_qkv"},
	{"attn_v", offsetof(struct layer, v), "attn_qkv"},
	{"attn_qkv", offsetof(struct layer, q), NULL},
	{"attn_qkv", offsetof(struct layer, k), NULL},
	{"attn_qkv", offsetof(struct layer, v), NULL},
	{"attn_output", offsetof(struct layer, o), NULL},
	{"attn_qkv", offsetof(struct layer, delta.qkv), NULL},
	{"attn_gate", offsetof(struct layer, delta.z), NULL},
	{"ssm_in", offsetof(struct layer, delta.mixed), NULL},
	{"ssm_ba", offsetof(struct layer, delta.ba), NULL},
	{"ssm_beta", offsetof(struct layer, delta.beta), NULL},
	{"ssm_alpha", offsetof(struct layer, delta.alpha), NULL},
	{"ssm_out", offsetof(struct layer, delta.out), NULL},
	{"ffn_gate_up", offsetof(struct layer, ffn_gate), NULL},
	{"ffn_gate_up", offsetof(struct layer, ffn_up), NULL},
	{"ffn_gate", offsetof(struct layer, ffn_gate), "ffn_gate_up"},
	{"ffn_up", offsetof(struct layer, ffn_up), "ffn_gate_up"},
	{"ffn_down", offsetof(struct layer, ffn_down), NULL},
	{"ffn_gate_up_shexp", offsetof(struct layer, shared_gate), NULL},
	{"ffn_gate_up_shexp", offsetof(struct layer, shared_up), NULL},
	{"ffn_gate_shexp", offsetof(struct layer, shared_gate), "ffn_gate_up_shexp"},
	{"ffn_up_shexp", offsetof(struct layer, shared_up), "ffn_gate_up_shexp"},
	{"ffn_down_shexp", offsetof(struct layer, shared_down), NULL},
};
static const struct scaled experts[] = {
	{"ffn_gate_up_exps", offsetof(struct layer, gate), NULL},
	{"ffn_gate_up_exps", offsetof(struct layer, up), NULL},
	{"ffn_gate_exps", offsetof(struct layer, gate), NULL},
	{"ffn_up_exps", offsetof(struct layer, up), NULL},
	{"ffn_down_exps", offsetof(struct layer, down), NULL},
};
/* For files with a tensor for each expert. */
static const struct scaled singles[] = {
	{"ffn_gate_up", offsetof(struct layer, gate), NULL},
	{"ffn_gate_up", offsetof(struct layer, up), NULL},
	{"ffn_gate", offsetof(struct layer, gate), NULL},
	{"ffn_up", offsetof(struct layer, up), NULL},
	{"ffn_down", offsetof(struct layer, down), NULL},
};
/* Tensors that may have the gate's rows as well, if the gate has no tensor. */
static const struct {
	const char *up, *gate;
} holds_gate[] = {{"ffn_up", "ffn_gate"}, {"ffn_up_shexp", "ffn_gate_shexp"},
	{"ffn_up_exps", "ffn_gate_exps"}};

/* l->name is the name of the scale. */
static int load_scale(struct loader *l, struct matrix *matrix)
{
	const float *scale;
	int rc = load_vector(l, 1, &scale);
	if (rc)
		return rc;
	matrix->scaled = true;
	matrix->scale = *scale;
	return 0;
}

static void pass_over_input(struct loader *l, uint32_t layer, const char *name)
{
	name_tensor(l, "blk.%u.%s.input_scale", layer, name);
	(void)find_tensor(l);
}

static bool is_there(struct loader *l, uint32_t i, const struct scaled *scaled)
{
	name_tensor(l, "blk.%u.%s.weight", i, scaled->name);
	if (has_tensor(l) || !scaled->fused)
		return has_tensor(l);
	name_tensor(l, "blk.%u.%s.weight", i, scaled->fused);
	return has_tensor(l);
}

static struct expert_tensor *expert_tensor_of(struct layer *layer, const struct scaled *scaled)
{
	return (struct expert_tensor *)(void *)((char *)layer + scaled->matrix);
}

/* Loads BLK.NAME.E.scale, for every expert or for none. */
static int load_single_scales(
	struct loader *l, uint32_t i, const struct scaled *scaled, struct expert_tensor *tensor)
{
	const uint32_t n = l->model->config.n_experts;
	float *scales = NULL;
	int rc = 0;
	for (uint32_t e = 0; !rc && e < n; e++) {
		const float *one;
		name_tensor(l, "blk.%u.%s.%u.input_scale", i, scaled->name, e);
		(void)find_tensor(l);
		name_tensor(l, "blk.%u.%s.%u.scale", i, scaled->name, e);
		if (e == 0 && !has_tensor(l))
			return 0;
		if (!scales && !(scales = keep(l, n, sizeof(*scales))))
			return -ENOMEM;
		rc = load_vector(l, 1, &one);
		if (!rc)
			scales[e] = *one;
	}
	tensor->scales = scales;
	return rc;
}

static int load_expert_scales(struct loader *l, uint32_t i, struct layer *layer)
{
	int rc = 0;
	for (size_t e = 0; !rc && e < sizeof(experts) / sizeof(experts[0]); e++) {
		struct expert_tensor *tensor = expert_tensor_of(layer, &experts[e]);
		pass_over_input(l, i, experts[e].name);
		name_tensor(l, "blk.%u.%s.scale", i, experts[e].name);
		if (has_tensor(l))
			rc = load_vector(l, l->model->config.n_experts, &tensor->scales);
	}
	for (size_t e = 0; !rc && e < sizeof(singles) / sizeof(singles[0]); e++) {
		struct expert_tensor *tensor = expert_tensor_of(layer, &singles[e]);
		if (!tensor->scales)
			rc = load_single_scales(l, i, &singles[e], tensor);
	}
	return rc;
}

/* A scale of a tensor that has both gate and up in this form would also be the gate's. No file with
 * one is known. */
static int refuse_scaled_pairs(struct loader *l, uint32_t i)
{
	for (size_t h = 0; h < sizeof(holds_gate) / sizeof(holds_gate[0]); h++) {
		name_tensor(l, "blk.%u.%s.weight", i, holds_gate[h].gate);
		bool gate = has_tensor(l);
		name_tensor(l, "blk.%u.%s.weight", i, holds_gate[h].up);
		bool up = has_tensor(l);
		name_tensor(l, "blk.%u.%s.scale", i, holds_gate[h].up);
		if (up && !gate && has_tensor(l))
			return error_set(l->err, ENOTSUP,
				"tensor %s: a scale is not supported where %s.weight holds the "
				"gate's rows, too",
				l->name, holds_gate[h].up);
	}
	return 0;
}

int load_layer_scales(struct loader *l, uint32_t i)
{
	struct layer *layer = &l->model->layers[i];
	int rc = refuse_scaled_pairs(l, i);
	for (size_t m = 0; !rc && m < sizeof(matrices) / sizeof(matrices[0]); m++) {
		struct matrix *matrix =
			(struct matrix *)(void *)((char *)layer + matrices[m].matrix);
		if (!matrix->data || matrix->scaled || !is_there(l, i, &matrices[m]))
			continue;
		pass_over_input(l, i, matrices[m].name);
		name_tensor(l, "blk.%u.%s.scale", i, matrices[m].name);
		if (has_tensor(l))
			rc = load_scale(l, matrix);
	}
	return !rc && layer->moe ? load_expert_scales(l, i, layer) : rc;
}

int load_scales(struct loader *l)
{
	struct model *m = l->model;
	int rc = 0;
	for (uint32_t i = 0; !rc && i < m->config.n_layers; i++)
		rc = load_layer_scales(l, i);
	name_tensor(l, "output.input_scale");
	(void)find_tensor(l);
	name_tensor(l, "output.scale");
	return rc || !has_tensor(l) ? rc : load_scale(l, &m->output);
}
