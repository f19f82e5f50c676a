#include "shared/model/arch/head.h"

#include "shared/model/arch/model_config.h"
#include "shared/model/arch/model_internal.h"
#include "shared/model/gguf/gguf_scan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Not in the table of architectures: such a file is no model that generates text. */
static const struct arch eagle3 = {
	.name = "eagle3",
	.mixer = MIX_EAGLE3,
	.ffn_norm = "ffn_norm",
};

bool head_is_eagle3(const struct gguf *gguf)
{
	struct gguf_string name;
	return gguf_get_string(gguf, "general.architecture", &name, NULL) == 0 &&
	       name.bytes == strlen(eagle3.name) && memcmp(name.data, eagle3.name, name.bytes) == 0;
}

/* ---- EAGLE-3 ---- */

static int read_flag(struct keys *k, const char *suffix, bool *out)
{
	int rc = gguf_get_bool(k->gguf, key_name(k, suffix), out, k->err);
	return rc == -ENOENT ? 0 : rc;
}

static int read_taps(struct keys *k, const struct model_config *target, struct head *head)
{
	const char *key = key_name(k, "target_layers");
	enum gguf_value_type type;
	uint64_t n;
	int rc = gguf_get_array(k->gguf, key, &type, &n, k->err);
	if (rc == -ENOENT)
		return missing_key(k);
	if (rc)
		return rc;
	if (type == GGUF_STRING || type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL ||
		n != HEAD_TAPS)
		return error_set(
			k->err, EINVAL, "key %s is not an array of %d integers", key, HEAD_TAPS);
	for (uint32_t i = 0; i < HEAD_TAPS; i++) {
		int64_t layer = gguf_array_i64(k->gguf, key, i);
		if (layer < 0 || layer > target->n_layers)
			return error_set(k->err, EINVAL,
				"key %s has layer %" PRId64 " at index %u; the target has layers 0 "
				"to %u, and %u stands for the end",
				key, layer, i, target->n_layers - 1, target->n_layers);
		head->taps[i] = (uint32_t)layer;
	}
	return 0;
}

static int read_eagle3(
	struct keys *k, const struct model *target, struct model_config *c, struct head *head)
{
	const struct model_config *t = &target->config;
	uint32_t width = 0, vocab = t->n_vocab;
	int rc = model_read_config_as(k->gguf, &eagle3, c, k->err);
	if (!rc && c->n_blocks != 1)
		rc = error_set(k->err, ENOTSUP, "key %s is %u; a head has 1 block",
			key_name(k, "block_count"), c->n_blocks);
	if (!rc)
		rc = need_count(k, "target_hidden_size", 1, LIMIT_EMBEDDING, &width);
	if (!rc && width != t->n_embd)
		rc = error_set(k->err, EINVAL,
			"key %s is %u; the hidden states of the target have %u values", k->key,
			width, t->n_embd);
	if (!rc)
		rc = get_count(k, "vocab_size", 1, LIMIT_VOCAB, &vocab);
	if (!rc && vocab != t->n_vocab)
		rc = error_set(k->err, EINVAL, "key %s is %u; the target has %u tokens", k->key,
			vocab, t->n_vocab);
	if (!rc)
		rc = read_taps(k, t, head);
	if (!rc)
		rc = read_flag(k, "norm_before_residual", &head->residual_normed);
	head->kind = HEAD_EAGLE3;
	head->n_taps = HEAD_TAPS;
	head->n_state = HEAD_TAPS * t->n_embd;
	c->n_vocab = t->n_vocab;
	return rc;
}

/* A matrix that the head has or takes from its target, which then must be as wide. */
static int load_or_borrow(struct loader *l, uint32_t rows, const struct matrix *of_target,
	const struct model_config *target, struct matrix *out)
{
	const uint32_t d = l->model->config.n_embd;
	if (has_tensor(l))
		return load_matrix(l, rows, d, out);
	*out = *of_target;
	if (d == target->n_embd)
		return 0;
	return error_set(l->err, EINVAL,
		"tensor %s is missing, and that of the target has rows of %u values; the head's "
		"states have %u",
		l->name, target->n_embd, d);
}

/* The map from the head's tokens to the target's: absolute, each at most once. */
static int load_map(struct loader *l, uint32_t n, uint32_t n_vocab, struct head *head)
{
	name_tensor(l, "d2t");
	const struct gguf_tensor *t = find_tensor(l);
	if (!t && n == n_vocab)
		return 0;
	if (!t)
		return error_set(l->err, EINVAL,
			"tensor d2t is missing: the head drafts %u tokens of the target's %u", n,
			n_vocab);
	const char *type = gguf_tensor_type_name(t->type);
	if (!type || strcmp(type, "I64") != 0 || t->ne[0] != n || t->ne[1] != 1 || t->ne[2] != 1 ||
		t->ne[3] != 1)
		return error_set(l->err, EINVAL,
			"tensor d2t must have %u elements of type I64, one for each row of the "
			"output",
			n);
	const unsigned char *from = gguf_tensor_data(l->gguf, t);
	int32_t *to = keep(l, n, sizeof(*to));
	uint32_t *seen = calloc(n_vocab, sizeof(*seen)); /* 1 + index */
	int rc = 0;
	if (!to || !seen) {
		free(seen);
		return error_set(l->err, ENOMEM, "no memory for a map of %u tokens", n);
	}
	for (uint32_t i = 0; !rc && i < n; i++) {
		int64_t token;
		memcpy(&token, from + i * sizeof(token), sizeof(token));
		if (token < 0 || token >= n_vocab)
			rc = error_set(l->err, EINVAL,
				"tensor d2t: element %u is %" PRId64 "; the target has tokens 0 to "
				"%u",
				i, token, n_vocab - 1);
		else if (seen[token])
			rc = error_set(l->err, EINVAL,
				"tensor d2t: elements %u and %u are both token %" PRId64,
				seen[token] - 1, i, token);
		if (rc)
			break;
		seen[token] = i + 1;
		to[i] = (int32_t)token;
	}
	free(seen);
	head->tokens = to;
	return rc;
}

/* How many tokens the head drafts: the rows of its output. */
static int count_drafted(struct loader *l, uint32_t n_vocab, uint32_t *n)
{
	name_tensor(l, "output.weight");
	const struct gguf_tensor *t = find_tensor(l);
	*n = t ? (uint32_t)t->ne[1] : n_vocab;
	if (t && (t->ne[1] == 0 || t->ne[1] > n_vocab))
		return error_set(l->err, EINVAL,
			"tensor %s has %" PRIu64 " rows; the target has %u tokens", l->name,
			t->ne[1], n_vocab);
	return 0;
}

static int load_eagle3_layer(struct loader *l, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const uint32_t d = c->n_embd, q = c->n_heads * c->head_dim,
		       kv = c->n_kv_heads * c->head_dim;
	struct head *head = l->model->head;
	layer->mixer = MIX_EAGLE3;
	name_tensor(l, "blk.0.attn_norm.weight");
	int rc = load_vector(l, d, &head->token_norm);
	name_tensor(l, "blk.0.attn_norm_2.weight");
	if (!rc)
		rc = load_vector(l, d, &head->state_norm);
	if (!rc)
		rc = load_linear(l, 0, "attn_q", q, 2 * d, &layer->q, &layer->q_bias);
	if (!rc)
		rc = load_linear(l, 0, "attn_k", kv, 2 * d, &layer->k, &layer->k_bias);
	if (!rc)
		rc = load_linear(l, 0, "attn_v", kv, 2 * d, &layer->v, &layer->v_bias);
	if (!rc)
		rc = load_linear(l, 0, "attn_output", d, q, &layer->o, &layer->o_bias);
	if (!rc)
		rc = load_norm(l, 0, c->arch->ffn_norm, &layer->ffn_norm, &layer->ffn_norm_bias);
	return rc ? rc : load_feed_forward(l, 0, layer);
}

static int load_eagle3(struct loader *l, struct keys *k, const struct model *target)
{
	struct model *m = l->model;
	struct head *head = m->head;
	uint32_t n_drafted = 0;
	bool normed = false;
	int rc = read_eagle3(k, target, &m->config, head);
	const uint32_t d = m->config.n_embd, v = target->config.n_vocab;
	name_tensor(l, "token_embd.weight");
	if (!rc)
		rc = load_or_borrow(l, v, &target->embedding, &target->config, &m->embedding);
	if (!rc)
		rc = load_rope_factors(l);
	name_tensor(l, "fc.weight");
	if (!rc)
		rc = load_matrix(l, d, head->n_state, &head->project);
	if (!rc)
		rc = read_flag(k, "norm_before_fc", &normed);
	name_tensor(l, "enc.output_norm.weight");
	if (!rc && normed)
		rc = load_vector(l, head->n_state, &head->taps_norm);
	name_tensor(l, "output_norm.weight");
	if (!rc)
		rc = load_vector(l, d, &m->output_norm);
	if (!rc)
		rc = count_drafted(l, v, &n_drafted);
	name_tensor(l, "output.weight");
	if (!rc)
		rc = load_or_borrow(l, n_drafted, &target->output, &target->config, &m->output);
	if (!rc)
		rc = load_map(l, n_drafted, v, head);
	if (!rc)
		rc = load_eagle3_layer(l, m->layers);
	return rc ? rc : load_check_unused(l);
}

/* ---- nextn ---- */

/* The layer's config is the target's, reduced to the one block. */
static void reduce_config(struct model_config *c)
{
	c->n_layers = c->n_blocks = c->n_kv_layers = 1;
	c->delta = (struct delta_config){0};
}

/* NAME of the block if it is there, else that of the whole model. */
static void name_either(struct loader *l, uint32_t block, const char *name, const char *other)
{
	name_tensor(l, "blk.%u.nextn.%s.weight", block, name);
	if (!has_tensor(l))
		name_tensor(l, "%s.weight", other);
}

static int load_nextn_output(struct loader *l, uint32_t block)
{
	struct model *m = l->model;
	const struct model_config *c = &m->config;
	name_either(l, block, "shared_head_norm", "output_norm");
	int rc = load_vector(l, c->n_embd, &m->output_norm);
	name_either(l, block, "shared_head_head", "output");
	if (!has_tensor(l))
		name_tensor(l, "token_embd.weight");
	return rc ? rc : load_matrix(l, c->n_vocab, c->n_embd, &m->output);
}

static int load_nextn(struct loader *l, uint32_t block, struct layer *layers)
{
	struct model *m = l->model;
	struct model_config *c = &m->config;
	struct head *head = m->head;
	const uint32_t d = c->n_embd;
	head->kind = HEAD_NEXTN;
	head->n_state = d;
	head->n_taps = 1;
	head->taps[0] = c->n_layers;
	head->n_blocks = c->n_blocks - c->n_layers;
	int rc = load_read_vocabulary(l);
	name_tensor(l, "output_norm.weight");
	if (!rc)
		rc = load_vector(l, d, &head->taps_norm);
	name_either(l, block, "embed_tokens", "token_embd");
	if (!rc)
		rc = load_matrix(l, c->n_vocab, d, &m->embedding);
	if (!rc)
		rc = load_rope_factors(l);
	name_tensor(l, "blk.%u.nextn.eh_proj.weight", block);
	if (!rc)
		rc = load_matrix(l, d, 2 * d, &head->project);
	name_tensor(l, "blk.%u.nextn.enorm.weight", block);
	if (!rc)
		rc = load_vector(l, d, &head->token_norm);
	name_tensor(l, "blk.%u.nextn.hnorm.weight", block);
	if (!rc)
		rc = load_vector(l, d, &head->state_norm);
	if (!rc)
		rc = load_nextn_output(l, block);
	/* The loaders of a layer find it by its number. */
	m->layers = layers;
	if (!rc)
		rc = load_layer(l, block);
	if (!rc)
		rc = load_layer_scales(l, block);
	/* Of the others only how many there are. */
	const uint64_t own_bytes = m->expert_bytes_total;
	load_drafting_experts(l);
	m->expert_bytes_total = own_bytes;
	head->n_drafting = m->n_drafting;
	m->n_drafting = 0;
	layers[0] = layers[block];
	layers[0].kv_layer = 0;
	reduce_config(c);
	return rc;
}

/* ---- both ---- */

/* A model that owns *gguf, with a head and n_layers layers. */
static struct model *begin(struct gguf **gguf, uint32_t n_layers, struct error *err)
{
	struct model *m = calloc(1, sizeof(*m));
	if (m) {
		m->gguf = *gguf;
		m->head = calloc(1, sizeof(*m->head));
		m->layers = calloc(n_layers, sizeof(*m->layers));
		m->expert_layout = LAYOUT_ROWS;
	}
	if (m && m->head && m->layers)
		return m;
	error_set(err, ENOMEM, "no memory for a draft head");
	if (m)
		model_free(&m);
	else
		gguf_close(gguf);
	return NULL;
}

static int end(struct model *m, int rc, struct model **out, struct error *err)
{
	if (!rc)
		rc = gguf_scan_small(m->gguf, err);
	if (rc) {
		model_free(&m);
		return rc;
	}
	m->fingerprint = m->file_fingerprint = gguf_fingerprint(m->gguf);
	*out = m;
	return 0;
}

static int open_file(const char *path, struct gguf **gguf, bool **used, struct error *err)
{
	int rc = gguf_open(path, gguf, err);
	*used = rc ? NULL : calloc(gguf_n_tensors(*gguf) + 1, sizeof(**used));
	if (!rc && !*used) {
		gguf_close(gguf);
		return error_set(err, ENOMEM, "no memory for a draft head");
	}
	return rc;
}

int head_load_eagle3(
	const char *path, const struct model *target, struct model **out, struct error *err)
{
	struct gguf *gguf;
	bool *used;
	*out = NULL;
	int rc = open_file(path, &gguf, &used, err);
	if (rc)
		return rc;
	struct model *m = begin(&gguf, 1, err);
	if (!m) {
		free(used);
		return -ENOMEM;
	}
	struct loader l = {.model = m, .gguf = m->gguf, .err = err, .used = used};
	struct keys k = {.gguf = m->gguf, .arch = &eagle3, .err = err};
	if (!head_is_eagle3(m->gguf))
		rc = error_set(err, EINVAL, "key general.architecture is not \"%s\"", eagle3.name);
	if (!rc)
		rc = load_eagle3(&l, &k, target);
	free(used);
	rc = end(m, rc, out, err);
	return rc ? gguf_error_prefix(err, rc, path) : 0;
}

int head_load_nextn(const char *path, uint32_t index, struct model **out, struct error *err)
{
	struct gguf *gguf;
	bool *used;
	*out = NULL;
	int rc = open_file(path, &gguf, &used, err);
	if (rc)
		return rc;
	struct model *m = begin(&gguf, LIMIT_LAYERS, err);
	if (!m) {
		free(used);
		return -ENOMEM;
	}
	struct loader l = {.model = m, .gguf = m->gguf, .err = err, .used = used};
	rc = model_read_config(m->gguf, &m->config, err);
	uint32_t block = m->config.n_layers + index;
	name_tensor(&l, "blk.%u.nextn.eh_proj.weight", block);
	if (!rc && (block >= m->config.n_blocks || block >= LIMIT_LAYERS || !has_tensor(&l))) {
		free(used);
		model_free(&m);
		return error_set(err, ENODATA, "%s: the model has no layer that drafts", path);
	}
	if (!rc)
		rc = load_nextn(&l, block, m->layers);
	free(used);
	rc = end(m, rc, out, err);
	return rc ? gguf_error_prefix(err, rc, path) : 0;
}
