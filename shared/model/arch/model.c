#include "shared/model/gguf/gguf_scan.h"
#include "shared/model/arch/model_config.h"
#include "shared/model/arch/model_internal.h"
#include "shared/model/arch/pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Indexed by layer->mixer. */
static int (*const mixer_loaders[])(struct loader *l, uint32_t i, struct layer *layer) = {
	[MIX_ATTENTION] = load_attention,
	[MIX_MLA] = load_mla,
	[MIX_DELTA_NET] = load_delta_net,
};

int load_layer(struct loader *l, uint32_t i)
{
	const struct model_config *c = &l->model->config;
	struct layer *layer = &l->model->layers[i];
	layer->mixer = c->delta.layer[i] ? MIX_DELTA_NET : c->arch->mixer;
	layer->windowed = c->window && (c->arch->window == WINDOW_ALL || i % 2 == 0);
	int rc = load_norm(l, i, "attn_norm", &layer->attn_norm, &layer->attn_norm_bias);
	if (!rc)
		rc = mixer_loaders[layer->mixer](l, i, layer);
	if (!rc)
		rc = load_norm(l, i, c->arch->ffn_norm, &layer->ffn_norm, &layer->ffn_norm_bias);
	return rc ? rc : load_feed_forward(l, i, layer);
}

/* The embedding has a row for each token of the vocabulary. The tokenizer's list, if there is one,
 * must agree. */
int load_read_vocabulary(struct loader *l)
{
	struct model_config *c = &l->model->config;
	name_tensor(l, "token_embd.weight");
	const struct gguf_tensor *t = find_tensor(l);
	if (!t)
		return missing_tensor(l);
	if (t->ne[1] > LIMIT_VOCAB)
		return error_set(l->err, EINVAL,
			"tensor %s has %" PRIu64 " rows; at most %d are supported", l->name,
			t->ne[1], LIMIT_VOCAB);
	c->n_vocab = (uint32_t)t->ne[1];
	enum gguf_value_type type;
	uint64_t n;
	int rc = gguf_get_array(l->gguf, "tokenizer.ggml.tokens", &type, &n, l->err);
	if (!rc && n != c->n_vocab)
		return error_set(l->err, EINVAL,
			"key tokenizer.ggml.tokens has %" PRIu64 " tokens, tensor %s has %u rows",
			n, l->name, c->n_vocab);
	if (rc && rc != -ENOENT)
		return rc;
	char key[64];
	uint64_t vocab_size;
	snprintf(key, sizeof(key), "%s.vocab_size", c->arch->name);
	rc = gguf_get_u64(l->gguf, key, c->n_vocab, c->n_vocab, &vocab_size, l->err);
	return rc == -ENOENT ? 0 : rc;
}

/* Loads the optional factors of this name; they divide an angle. */
static int load_factors(struct loader *l, const char *name, const float **factors)
{
	uint32_t n = l->model->config.n_rot / 2;
	name_tensor(l, "%s.weight", name);
	int rc = load_part(l, PART_OPTIONAL, n, factors);
	for (uint32_t i = 0; !rc && *factors && i < n; i++) {
		if (!((*factors)[i] > 0))
			rc = error_set(l->err, EINVAL,
				"tensor %s: element %u is %g; it must be positive", l->name, i,
				(double)(*factors)[i]);
	}
	return rc;
}

int load_rope_factors(struct loader *l)
{
	struct rope_config *rope = &l->model->config.rope;
	int rc = load_factors(l, "rope_freqs", &rope->factors);
	if (!rc)
		rc = load_factors(l, "rope_factors_short", &rope->factors_short);
	if (!rc)
		rc = load_factors(l, "rope_factors_long", &rope->factors_long);
	if (rc)
		return rc;
	bool both = rope->factors_short && rope->factors_long;
	/* An architecture that may have longrope, and a file without it. */
	if (rope->scaling == ROPE_LONG && l->model->config.arch->rope_long &&
		!rope->factors_short && !rope->factors_long) {
		rope->scaling = ROPE_LINEAR;
		rope->factor = 1;
		return 0;
	}
	if (rope->scaling == ROPE_LONG ? !both : rope->factors_short || rope->factors_long)
		return error_set(l->err, EINVAL,
			rope->scaling == ROPE_LONG
				? "tensor rope_factors_%s.weight is missing, which longrope needs"
				: "tensor rope_factors_%s.weight is there, but the rope scaling is "
				  "not longrope",
			(rope->scaling == ROPE_LONG) == !rope->factors_short ? "short" : "long");
	return 0;
}

/* Blocks behind the last layer predict tokens beyond the next one. Only their experts are looked at. */
static void skip_prediction_blocks(struct loader *l)
{
	const struct model_config *c = &l->model->config;
	load_drafting_experts(l);
	for (uint32_t i = c->n_layers; i < c->n_blocks; i++) {
		char prefix[32];
		int bytes = snprintf(prefix, sizeof(prefix), "blk.%u.", i);
		for (size_t t = 0; t < gguf_n_tensors(l->gguf); t++) {
			struct gguf_string name = gguf_tensor_at(l->gguf, t)->name;
			if (name.bytes >= (size_t)bytes &&
				memcmp(name.data, prefix, (size_t)bytes) == 0)
				l->used[t] = true;
		}
	}
}

int load_check_unused(struct loader *l)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < gguf_n_tensors(l->gguf); i++) {
		if (!l->used[i])
			rc = error_set(l->err, ENOTSUP,
				"tensor %s is not one that a model of architecture %s with these "
				"hyperparameters has; leaving it out would change the output",
				gguf_name_text(gguf_tensor_at(l->gguf, i)->name).text,
				l->model->config.arch->name);
		rc = gguf_problem(l->gguf, rc, l->err);
	}
	return rc;
}

void model_number_kv_layers(struct model *m)
{
	uint32_t n = 0;
	for (int windowed = 0; windowed < 2 && m->layers; windowed++) {
		for (uint32_t i = 0; i < m->config.n_layers; i++) {
			if (m->layers[i].windowed == windowed && !m->config.delta.layer[i])
				m->layers[i].kv_layer = n++;
		}
	}
}

static int load_tensors(struct loader *l)
{
	struct model *m = l->model;
	struct model_config *c = &m->config;
	int rc = gguf_problem(l->gguf, load_read_vocabulary(l), l->err);
	if (!rc)
		rc = load_matrix(l, c->n_vocab, c->n_embd, &m->embedding);
	if (!rc)
		rc = load_rope_factors(l);
	name_tensor(l, "output_norm.weight");
	if (!rc)
		rc = load_vector(l, c->n_embd, &m->output_norm);
	name_tensor(l, "output_norm.bias");
	if (!rc)
		rc = load_part(l, c->arch->layer_norm ? PART_NEEDED : PART_NONE, c->n_embd,
			&m->output_norm_bias);
	if (rc)
		return rc;
	name_tensor(l, "output.weight");
	if (has_tensor(l))
		rc = load_matrix(l, c->n_vocab, c->n_embd, &m->output);
	else
		m->output = m->embedding;
	name_tensor(l, "output.bias");
	if (!rc)
		rc = load_part(l, PART_OPTIONAL, c->n_vocab, &m->output_bias);
	m->layers = calloc(c->n_layers, sizeof(*m->layers));
	if (!rc && !m->layers)
		rc = error_set(l->err, ENOMEM, "no memory for %u layers", c->n_layers);
	for (uint32_t i = 0; !rc && i < c->n_layers; i++)
		rc = load_layer(l, i);
	model_number_kv_layers(m);
	skip_prediction_blocks(l);
	if (!rc)
		rc = load_scales(l);
	return rc ? rc : load_check_unused(l);
}

/* Like gguf_scan_small, for what a packed file hides from it. */
static int scan_packed(const struct model *m, struct error *err)
{
	int rc = 0;
	for (uint32_t i = 0;
		!rc && gguf_bytes(m->gguf) <= GGUF_SCAN_BYTES && i < m->config.n_layers; i++)
		for (int p = 0; !rc && m->layers[i].moe && p < PACK_PARTS; p++) {
			struct gguf_scan scan;
			uint32_t expert = 0;
			if (pack_scan(m, i, p, true, &scan, &expert, &rc) && !rc && scan.n)
				rc = error_set(err, EINVAL,
					"tensor blk.%u.ffn_exps.packed: %s at column %llu of row "
					"%llu of expert %u's %s matrix is %s",
					i, scan.what, (unsigned long long)scan.column,
					(unsigned long long)scan.row, expert, pack_part_name(p),
					scan.value);
		}
	return rc;
}

int model_load_gguf(struct gguf **gguf, struct model **out, struct error *err)
{
	*out = NULL;
	struct model *m = calloc(1, sizeof(*m));
	bool *used = calloc(gguf_n_tensors(*gguf) + 1, sizeof(*used));
	if (!m || !used) {
		free(m);
		free(used);
		gguf_close(gguf);
		return error_set(err, ENOMEM, "no memory for a model");
	}
	m->gguf = *gguf;
	*gguf = NULL;
	struct loader l = {.model = m, .gguf = m->gguf, .err = err, .used = used};
	int rc = model_read_config(m->gguf, &m->config, err);
	m->packed = pack_is(m->gguf);
	m->expert_layout = m->packed ? LAYOUT_TILES : LAYOUT_ROWS;
	if (!rc && m->packed)
		rc = pack_check(m->gguf, m->config.n_layers, err);
	gguf_expect_scattered(m->gguf, true);
	if (!rc)
		rc = load_tensors(&l);
	gguf_expect_scattered(m->gguf, false);
	if (!rc && gguf_n_problems(m->gguf) > 0)
		rc = error_set(err, ECANCELED, "%s", ""); /* everything was reported already */
	if (!rc)
		rc = gguf_scan_small(m->gguf, err);
	if (!rc && m->packed)
		rc = scan_packed(m, err);
	free(used);
	if (rc) {
		model_free(&m);
		return rc;
	}
	m->file_fingerprint = gguf_fingerprint(m->gguf);
	m->fingerprint = m->packed ? pack_fingerprint(m->gguf) : m->file_fingerprint;
	*out = m;
	return 0;
}

int model_load(const char *path, struct model **out, struct error *err)
{
	struct gguf *gguf;
	*out = NULL;
	int rc = gguf_open(path, &gguf, err);
	if (rc)
		return rc;
	rc = model_load_gguf(&gguf, out, err);
	return rc ? gguf_error_prefix(err, rc, path) : 0;
}

void model_free(struct model **model)
{
	struct model *m = *model;
	if (!m)
		return;
	for (struct model_memory *next; m->memory; m->memory = next) {
		next = m->memory->next;
		free(m->memory);
	}
	free(m->layers);
	free(m->head);
	gguf_close(&m->gguf);
	free(m);
	*model = NULL;
}

void model_layer_matrices(struct layer *layer, struct matrix *out[static LAYER_MATRICES])
{
	struct matrix *const all[LAYER_MATRICES] = {&layer->q, &layer->k, &layer->v, &layer->o,
		&layer->mla.q_a, &layer->mla.kv_a, &layer->delta.qkv, &layer->delta.z,
		&layer->delta.mixed, &layer->delta.ba, &layer->delta.beta, &layer->delta.alpha,
		&layer->delta.out, &layer->ffn_gate, &layer->ffn_up, &layer->ffn_down,
		&layer->router, &layer->shared_gate, &layer->shared_up, &layer->shared_down,
		&layer->shared_weight};
	memcpy(out, all, sizeof(all));
}

uint64_t model_expert_bytes(const struct model *model, uint32_t layer)
{
	const struct layer *l = &model->layers[layer];
	return l->gate.expert_bytes + l->up.expert_bytes + l->down.expert_bytes;
}
