#include "shared/model/model.h"

#include "shared/model/gguf_scan.h"
#include "shared/model/model_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a vector that cannot be used is taken for: the model of a checked file is not run, but the rest is looked at. */
struct ones {
	struct ones *next;
	float x[];
};

/* Loading goes through the tensors a model of this configuration has, in order; what is in the file besides is
 * refused at the end, since leaving out a bias or an expert silently would change the output. */
struct loader {
	struct model *model;
	const struct gguf *gguf;
	struct error *err;
	bool *used; /* [n_tensors] */
	char name[80]; /* of the tensor at hand */
	struct ones *ones; /* of a checked file */
};

static const char *name_tensor(struct loader *l, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static const char *name_tensor(struct loader *l, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(l->name, sizeof(l->name), format,
		args); // NOLINT(clang-analyzer-valist.Uninitialized)
	va_end(args);
	return l->name;
}

static const struct gguf_tensor *find(struct loader *l)
{
	const struct gguf_tensor *t = gguf_tensor_find(l->gguf, l->name);
	if (t)
		l->used[t - gguf_tensor_at(l->gguf, 0)] = true;
	return t;
}

static int missing(struct loader *l)
{
	return error_set(l->err, EINVAL, "tensor %s is missing", l->name);
}

/* {a, b, c} fastest first, as GGUF counts; trailing ones are not dimensions. */
static int check_shape(
	struct loader *l, const struct gguf_tensor *t, uint64_t a, uint64_t b, uint64_t c)
{
	if (t->ne[0] == a && t->ne[1] == b && t->ne[2] == c && t->ne[3] == 1)
		return 0;
	return error_set(l->err, EINVAL,
		"tensor %s has shape {%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
		"}; the metadata make it {%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", 1}",
		l->name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], a, b, c);
}

static int check_aligned(struct loader *l, const struct gguf_tensor *t, uint64_t alignment)
{
	if (t->offset % alignment == 0)
		return 0;
	return error_set(l->err, EINVAL,
		"tensor %s lies at offset %" PRIu64 ", which is not aligned to its %" PRIu64
		"-byte elements",
		l->name, t->offset, alignment);
}

static int read_vector(struct loader *l, uint32_t n, const float **out)
{
	const struct gguf_tensor *t = find(l);
	if (!t)
		return missing(l);
	if (t->type != TENSOR_F32)
		return error_set(l->err, ENOTSUP, "tensor %s is of type %s; F32 is wanted", l->name,
			gguf_tensor_type_name(t->type));
	int rc = check_shape(l, t, n, 1, 1);
	if (!rc)
		rc = check_aligned(l, t, sizeof(float));
	if (rc)
		return rc;
	const float *x = gguf_tensor_data(l->gguf, t);
	for (uint32_t i = 0; i < n; i++) {
		if (!isfinite(x[i]))
			return error_set(l->err, EINVAL, "tensor %s: element %u is %g", l->name, i,
				(double)x[i]);
	}
	*out = x;
	return 0;
}

/* The F32 vector [n] called l->name. */
static int load_vector(struct loader *l, uint32_t n, const float **out)
{
	int rc = read_vector(l, n, out);
	if (!rc)
		return 0;
	rc = gguf_problem(l->gguf, rc, l->err);
	if (rc)
		return rc;
	struct ones *ones = malloc(sizeof(*ones) + n * sizeof(ones->x[0]));
	if (!ones)
		return error_set(l->err, ENOMEM, "no memory for a vector");
	for (uint32_t i = 0; i < n; i++)
		ones->x[i] = 1;
	ones->next = l->ones;
	l->ones = ones;
	*out = ones->x;
	return 0;
}

static int load_bias(struct loader *l, uint32_t n, const float **out)
{
	*out = NULL;
	if (!l->model->config.arch->biases_allowed || !gguf_tensor_find(l->gguf, l->name))
		return 0;
	return load_vector(l, n, out);
}

static int read_matrices(
	struct loader *l, uint32_t rows, uint32_t cols, uint32_t n, struct matrix *out)
{
	const struct gguf_tensor *t = find(l);
	if (!t)
		return missing(l);
	const struct tensor_type_info *type = tensor_type_info(t->type);
	if (!type)
		return error_set(l->err, ENOTSUP,
			"tensor %s is of type %s, which the engine does not compute with (F32, "
			"F16, "
			"BF16, Q8_0, Q4_0 and Q4_1 are supported)",
			l->name, gguf_tensor_type_name(t->type));
	int rc = check_shape(l, t, cols, rows, n);
	if (!rc && !type->quantised)
		rc = check_aligned(l, t, type->block_bytes);
	if (rc)
		return rc;
	*out = (struct matrix){
		.type = type->type,
		.rows = rows,
		.cols = cols,
		.row_bytes = (size_t)(cols / type->block_weights) * type->block_bytes,
		.data = gguf_tensor_data(l->gguf, t),
	};
	return 0;
}

/* Matrices {cols, rows} of l->name, n of them. data is the first. */
static int load_matrices(
	struct loader *l, uint32_t rows, uint32_t cols, uint32_t n, struct matrix *out)
{
	int rc = read_matrices(l, rows, cols, n, out);
	return rc ? gguf_problem(l->gguf, rc, l->err) : 0;
}

static int load_matrix(struct loader *l, uint32_t rows, uint32_t cols, struct matrix *out)
{
	return load_matrices(l, rows, cols, 1, out);
}

static int load_experts(struct loader *l, uint32_t layer, const char *kind, uint32_t rows,
	uint32_t cols, struct expert_tensor *out)
{
	uint32_t n = l->model->config.n_experts;
	name_tensor(l, "blk.%u.ffn_%s_exps.weight", layer, kind);
	int rc = load_matrices(l, rows, cols, n, &out->shape);
	if (rc)
		return rc;
	out->file_offset =
		(uint64_t)((const char *)out->shape.data - (const char *)gguf_data(l->gguf));
	out->expert_bytes = (uint64_t)out->shape.row_bytes * rows;
	l->model->expert_bytes_total += out->expert_bytes * n;
	return 0;
}

static int load_attention(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim,
		       d = c->n_embd;
	const struct {
		const char *name;
		uint32_t rows, cols;
		struct matrix *weight;
		const float **bias;
	} parts[] = {
		{"attn_q", q, d, &layer->q, &layer->q_bias},
		{"attn_k", kv, d, &layer->k, &layer->k_bias},
		{"attn_v", kv, d, &layer->v, &layer->v_bias},
		{"attn_output", d, q, &layer->o, &layer->o_bias},
	};
	name_tensor(l, "blk.%u.attn_norm.weight", i);
	int rc = load_vector(l, d, &layer->attn_norm);
	for (size_t p = 0; !rc && p < sizeof(parts) / sizeof(parts[0]); p++) {
		name_tensor(l, "blk.%u.%s.weight", i, parts[p].name);
		rc = load_matrix(l, parts[p].rows, parts[p].cols, parts[p].weight);
		name_tensor(l, "blk.%u.%s.bias", i, parts[p].name);
		if (!rc)
			rc = load_bias(l, parts[p].rows, parts[p].bias);
	}
	if (rc || !c->arch->qk_norm)
		return rc;
	name_tensor(l, "blk.%u.attn_q_norm.weight", i);
	rc = load_vector(l, c->head_dim, &layer->q_norm);
	if (rc)
		return rc;
	name_tensor(l, "blk.%u.attn_k_norm.weight", i);
	return load_vector(l, c->head_dim, &layer->k_norm);
}

static int load_dense(struct loader *l, uint32_t i, struct layer *layer)
{
	const uint32_t d = l->model->config.n_embd, f = l->model->config.n_ff;
	name_tensor(l, "blk.%u.ffn_gate.weight", i);
	int rc = load_matrix(l, f, d, &layer->ffn_gate);
	name_tensor(l, "blk.%u.ffn_up.weight", i);
	if (!rc)
		rc = load_matrix(l, f, d, &layer->ffn_up);
	name_tensor(l, "blk.%u.ffn_down.weight", i);
	return rc ? rc : load_matrix(l, d, f, &layer->ffn_down);
}

static int load_moe(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const uint32_t d = c->n_embd, f = c->n_expert_ff;
	layer->moe = true;
	name_tensor(l, "blk.%u.ffn_gate.0.weight", i);
	if (gguf_tensor_find(l->gguf, l->name))
		return error_set(l->err, ENOTSUP,
			"tensor %s holds one expert: files with separate expert tensors (Mixtral "
			"files of "
			"early 2024 and before) are not supported, convert the model again",
			l->name);
	name_tensor(l, "blk.%u.ffn_gate_inp.weight", i);
	int rc = load_matrix(l, c->n_experts, d, &layer->router);
	if (!rc && layer->router.type != TENSOR_F32)
		rc = error_set(l->err, ENOTSUP, "tensor %s is of type %s; a router must be F32",
			l->name, gguf_tensor_type_name(layer->router.type));
	if (!rc)
		rc = load_experts(l, i, "gate", f, d, &layer->gate);
	if (!rc)
		rc = load_experts(l, i, "up", f, d, &layer->up);
	return rc ? rc : load_experts(l, i, "down", d, f, &layer->down);
}

static int load_layer(struct loader *l, uint32_t i)
{
	struct layer *layer = &l->model->layers[i];
	int rc = load_attention(l, i, layer);
	if (rc)
		return rc;
	name_tensor(l, "blk.%u.ffn_norm.weight", i);
	rc = load_vector(l, l->model->config.n_embd, &layer->ffn_norm);
	if (rc)
		return rc;
	return l->model->config.n_experts ? load_moe(l, i, layer) : load_dense(l, i, layer);
}

/* The rows of the embedding are the vocabulary; the tokenizer's list, where there is one, must agree. */
static int read_vocabulary(struct loader *l)
{
	struct model_config *c = &l->model->config;
	name_tensor(l, "token_embd.weight");
	const struct gguf_tensor *t = find(l);
	if (!t)
		return missing(l);
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

static int load_rope_factors(struct loader *l)
{
	struct model_config *c = &l->model->config;
	name_tensor(l, "rope_freqs.weight");
	if (!gguf_tensor_find(l->gguf, l->name))
		return 0;
	int rc = load_vector(l, c->n_rot / 2, &c->rope_factors);
	for (uint32_t i = 0; !rc && i < c->n_rot / 2; i++) {
		if (!(c->rope_factors[i] > 0))
			rc = error_set(l->err, EINVAL,
				"tensor %s: element %u is %g; it must be positive", l->name, i,
				(double)c->rope_factors[i]);
	}
	return rc;
}

static int check_unused(struct loader *l)
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

static int load_tensors(struct loader *l)
{
	struct model *m = l->model;
	struct model_config *c = &m->config;
	int rc = gguf_problem(l->gguf, read_vocabulary(l), l->err);
	if (!rc)
		rc = load_matrix(l, c->n_vocab, c->n_embd, &m->embedding);
	if (!rc)
		rc = load_rope_factors(l);
	name_tensor(l, "output_norm.weight");
	if (!rc)
		rc = load_vector(l, c->n_embd, &m->output_norm);
	if (rc)
		return rc;
	name_tensor(l, "output.weight");
	if (gguf_tensor_find(l->gguf, l->name))
		rc = load_matrix(l, c->n_vocab, c->n_embd, &m->output);
	else
		m->output = m->embedding;
	m->layers = calloc(c->n_layers, sizeof(*m->layers));
	if (!rc && !m->layers)
		rc = error_set(l->err, ENOMEM, "no memory for %u layers", c->n_layers);
	for (uint32_t i = 0; !rc && i < c->n_layers; i++)
		rc = load_layer(l, i);
	return rc ? rc : check_unused(l);
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
	gguf_expect_scattered(m->gguf, true);
	if (!rc)
		rc = load_tensors(&l);
	gguf_expect_scattered(m->gguf, false);
	for (struct ones *next; l.ones; l.ones = next) {
		next = l.ones->next;
		free(l.ones);
	}
	if (!rc && gguf_n_problems(m->gguf) > 0)
		rc = error_set(err, ECANCELED, "%s", ""); /* all was said */
	if (!rc)
		rc = gguf_scan_small(m->gguf, err);
	free(used);
	if (rc) {
		model_free(&m);
		return rc;
	}
	m->fingerprint = gguf_fingerprint(m->gguf);
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
	free(m->layers);
	gguf_close(&m->gguf);
	free(m);
	*model = NULL;
}

uint64_t model_expert_bytes(const struct model *model, uint32_t layer)
{
	const struct layer *l = &model->layers[layer];
	return l->gate.expert_bytes + l->up.expert_bytes + l->down.expert_bytes;
}
