#include "shared/measure/floor.h"

#include "kernels/cpu/simd.h"

static void add(struct floor *f, const struct peaks *peaks, double bytes, double ops, double gop_s)
{
	double read = bytes / 1e9 / peaks->read_gb_s, compute = ops / 1e9 / gop_s;

	f->bytes += bytes;
	f->roofline_s += read > compute ? read : compute;
}

static double matrix_bytes(const struct matrix *w)
{
	const struct tensor_type_info *type = tensor_type_info(w->type);

	return (double)w->rows * w->cols / type->block_weights * type->block_bytes;
}

/* One matrix times the rows of n tokens; nothing for a matrix the model does not have. */
static void add_matrix(struct floor *f, const struct peaks *peaks, const struct matrix *w, double n)
{
	const struct tensor_type_info *type = tensor_type_info(w->type);
	double ops = 2.0 * w->rows * w->cols * n;

	if (!w->data || n <= 0)
		return;
	add(f, peaks, matrix_bytes(w), ops, peaks_gop_s(peaks, type));
	if (type->quantised)
		f->int8_ops += ops;
}

static void add_experts(struct floor *f, const struct peaks *peaks, const struct layer *layer,
	const uint16_t *chosen, uint32_t n_experts)
{
	const struct matrix *const kinds[] = {
		&layer->gate.shape, &layer->up.shape, &layer->down.shape};

	for (uint32_t e = 0; e < n_experts; e++) {
		if (!chosen[e])
			continue;
		f->experts++;
		for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
			add_matrix(f, peaks, kinds[i], chosen[e]);
			f->expert_bytes += kinds[i]->data ? matrix_bytes(kinds[i]) : 0;
		}
	}
}

/* Every committed cell that the tokens attend to is read once, and their own cells. */
static void add_attention(struct floor *f, const struct model *model, const struct kv_layout *kv,
	const struct peaks *peaks, const struct floor_pass *pass, bool windowed)
{
	const struct model_config *c = &model->config;
	double cell = (double)kv_vector_bytes(kv->type, kv->k_dim), cells = 0;
	uint32_t depth = windowed && pass->depth > c->window ? c->window : pass->depth;
	double v_dim = kv->v_dim ? kv->v_dim : kv->k_dim;

	if (kv->v_dim)
		cell += (double)kv_vector_bytes(kv->type, kv->v_dim);
	for (uint32_t i = 0; i < pass->n; i++) {
		uint32_t seen = pass->depth + i + 1;
		cells += windowed && seen > c->window ? c->window : seen;
	}
	double bytes = (depth + pass->n) * cell * kv->n_kv_heads;
	f->kv_bytes += bytes;
	add(f, peaks, bytes, 2 * cells * c->n_heads * (kv->k_dim + v_dim),
		peaks_attention_gop_s(peaks, kv->type, kv->k_dim, v_dim));
}

static void add_layer(struct floor *f, const struct peaks *peaks, const struct layer *l,
	uint32_t n_heads, double n)
{
	struct matrix *all[LAYER_MATRICES];

	/* They are looked at only. */
	model_layer_matrices((struct layer *)l, all);
	for (size_t i = 0; i < LAYER_MATRICES; i++)
		add_matrix(f, peaks, all[i], n);
	for (uint32_t head = 0; head < n_heads && l->mixer == MIX_MLA; head++) {
		add_matrix(f, peaks, &l->mla.k_b, n);
		add_matrix(f, peaks, &l->mla.v_b, n);
	}
}

void floor_of(const struct model *model, const struct kv_layout *kv, const struct peaks *peaks,
	const struct floor_pass *pass, struct floor *out)
{
	const struct model_config *c = &model->config;

	*out = (struct floor){0};
	for (uint32_t i = 0; i < c->n_layers; i++) {
		const struct layer *layer = &model->layers[i];

		add_layer(out, peaks, layer, c->n_heads, pass->n);
		if (layer->moe)
			add_experts(out, peaks, layer, pass->chosen + (size_t)i * c->n_experts,
				c->n_experts);
		if (layer->mixer != MIX_DELTA_NET)
			add_attention(out, model, kv, peaks, pass, layer->windowed);
	}
	add_matrix(out, peaks, &model->output, pass->logits);
	out->bytes_s = out->bytes / 1e9 / peaks->read_gb_s;
	out->kv_s = out->kv_bytes / 1e9 / peaks->read_gb_s;
	out->expert_s = out->expert_bytes / 1e9 / peaks->read_gb_s;
}
