#include "shared/model/arch/adapter.h"

#include "shared/model/arch/head.h"
#include "shared/model/arch/model_config.h"
#include "shared/model/arch/model_internal.h"
#include "shared/model/gguf/gguf_scan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an adapter is loaded with: l.model is the shell of the file. */
struct adapting {
	struct loader l;
	const struct model *target;
	struct adapter *adapter;
	double alpha;
};

/* ---- Keys. ---- */

static int need_text(struct adapting *a, const char *key, const char *wanted)
{
	struct gguf_string text;
	int rc = gguf_get_string(a->l.gguf, key, &text, a->l.err);
	if (rc == -ENOENT)
		return error_set(a->l.err, EINVAL, "key %s is missing", key);
	if (rc)
		return rc;
	if (text.bytes == strlen(wanted) && memcmp(text.data, wanted, text.bytes) == 0)
		return 0;
	return error_set(a->l.err, EINVAL, "key %s is \"%s\"; \"%s\" is wanted", key,
		gguf_name_text(text).text, wanted);
}

/* The target must be of the architecture for which the adapter was made, and its layers must attend
 * to keys and values: a recurrent state would go through the masks. */
static int check_target(struct adapting *a)
{
	const struct model_config *c = &a->target->config;
	int rc = need_text(a, "general.architecture", c->arch->name);
	if (!rc && c->delta.n_layers > 0)
		return error_set(a->l.err, ENOTSUP,
			"a model of architecture %s has recurrent layers, whose state cannot leave "
			"masks out again",
			c->arch->name);
	if (!rc && c->arch->mixer != MIX_ATTENTION)
		return error_set(a->l.err, ENOTSUP,
			"a model of architecture %s has latent attention, which takes no adapter",
			c->arch->name);
	return rc;
}

static int read_keys(struct adapting *a)
{
	const struct gguf *g = a->l.gguf;
	struct error *err = a->l.err;
	struct adapter *adapter = a->adapter;
	uint64_t k = 0;
	bool gated = false;
	double skip = 0;
	int rc = need_text(a, "general.type", "adapter");
	if (rc && head_is_eagle3(g))
		return error_set(err, EINVAL,
			"this is not an adapter but an EAGLE-3 head; give it as --draft");
	if (!rc)
		rc = check_target(a);
	if (!rc)
		rc = need_text(a, "adapter.type", "lora");
	if (rc)
		return rc;
	rc = gguf_get_bool(g, "adapter.mtp.gated", &gated, err);
	if (rc == -ENOENT || (!rc && !gated))
		return error_set(err, EINVAL,
			"key adapter.mtp.gated is not true: without gates the adapter would change "
			"the model's answers");
	if (!rc)
		rc = gguf_get_u64(g, "adapter.mtp.draft_length", 1, LIMIT_MTP_DRAFT, &k, err);
	if (rc == -ENOENT)
		return error_set(err, EINVAL, "key adapter.mtp.draft_length is missing");
	if (!rc)
		rc = gguf_get_f64(g, "adapter.lora.alpha", &a->alpha, err);
	if (rc == -ENOENT)
		return error_set(err, EINVAL, "key adapter.lora.alpha is missing");
	if (!rc && !(fabs(a->alpha) <= 1e6))
		return error_set(err, EINVAL,
			"key adapter.lora.alpha is %g; -1e6 to 1e6 are allowed", a->alpha);
	if (!rc)
		rc = gguf_get_f64(g, "adapter.mtp.sampler_skip", &skip, err);
	if (rc == -ENOENT)
		rc = 0;
	if (!rc && !(fabs(skip) <= 1e6))
		return error_set(err, EINVAL,
			"key adapter.mtp.sampler_skip is %g; -1e6 to 1e6 are allowed", skip);
	adapter->draft_length = (uint32_t)k;
	adapter->skip = (float)skip;
	return rc;
}

/* ---- Tensors. ---- */

/* Loads n matrices one after the other, of a plain type. */
static int load_plain(
	struct adapting *a, uint32_t rows, uint32_t cols, uint32_t n, struct matrix *out)
{
	int rc = load_matrices(&a->l, rows, cols, n, out);
	if (rc || !matrix_quantised(out))
		return rc;
	return error_set(a->l.err, ENOTSUP,
		"tensor %s is of type %s; the matrices of an adapter must be F32, F16 or BF16",
		a->l.name, gguf_tensor_type_name((uint32_t)out->type));
}

/* The rank of a pair, from the file's lora_a, which l.name names. */
static int read_rank(struct adapting *a, uint32_t *rank)
{
	const struct gguf_tensor *t = gguf_tensor_find(a->l.gguf, a->l.name);
	if (!t)
		return missing_tensor(&a->l);
	*rank = (uint32_t)t->ne[1];
	if (t->ne[1] >= 1 && t->ne[1] <= LIMIT_LORA_RANK)
		return 0;
	return error_set(a->l.err, EINVAL, "tensor %s has rank %" PRIu64 "; 1 to %d are allowed",
		a->l.name, t->ne[1], LIMIT_LORA_RANK);
}

/* Loads the pair of blk.LAYER.NAME.weight, of n matrices like w; none if the file has neither of
 * the two. */
static int load_pair(struct adapting *a, uint32_t layer, const char *name, const struct matrix *w,
	uint32_t n, struct low_rank *out)
{
	struct loader *l = &a->l;
	uint32_t rank = 0;
	name_tensor(l, "blk.%u.%s.weight.lora_b", layer, name);
	bool any = has_tensor(l);
	name_tensor(l, "blk.%u.%s.weight.lora_a", layer, name);
	if (!any && !has_tensor(l))
		return 0;
	if (w->rows == 0)
		return error_set(l->err, EINVAL,
			"tensor %s belongs to blk.%u.%s.weight, which the model does not have",
			l->name, layer, name);
	int rc = read_rank(a, &rank);
	if (!rc)
		rc = load_plain(a, rank, w->cols, n, &out->a);
	name_tensor(l, "blk.%u.%s.weight.lora_b", layer, name);
	if (!rc)
		rc = load_plain(a, w->rows, rank, n, &out->b);
	if (rc)
		return rc;
	out->scale = (float)(a->alpha / rank);
	a->adapter->rank = rank > a->adapter->rank ? rank : a->adapter->rank;
	return 0;
}

/* The three pairs of a feed-forward whose tensors have this suffix. */
static int load_ffn(struct adapting *a, uint32_t layer, const char *suffix,
	const struct matrix *const w[3], uint32_t n, struct ffn_adapt *out)
{
	static const char *const names[] = {"gate", "up", "down"};
	struct low_rank *const pairs[] = {&out->gate, &out->up, &out->down};
	int rc = 0;
	for (int p = 0; !rc && p < 3; p++) {
		char name[32];
		snprintf(name, sizeof(name), "ffn_%s%s", names[p], suffix);
		rc = load_pair(a, layer, name, w[p], n, pairs[p]);
	}
	a->adapter->in_down |= out->down.a.data != NULL;
	return rc;
}

static int load_adapter_layer(struct adapting *a, uint32_t i)
{
	const struct layer *w = &a->target->layers[i];
	struct adapter_layer *out = &a->adapter->layers[i];
	const struct matrix *const dense[] = {&w->ffn_gate, &w->ffn_up, &w->ffn_down};
	const struct matrix *const experts[] = {&w->gate.shape, &w->up.shape, &w->down.shape};
	const struct matrix *const shared[] = {&w->shared_gate, &w->shared_up, &w->shared_down};
	int rc = load_pair(a, i, "attn_q", &w->q, 1, &out->q);
	if (!rc)
		rc = load_pair(a, i, "attn_k", &w->k, 1, &out->k);
	if (!rc)
		rc = load_pair(a, i, "attn_v", &w->v, 1, &out->v);
	if (!rc)
		rc = load_pair(a, i, "attn_output", &w->o, 1, &out->o);
	if (!rc)
		rc = load_ffn(a, i, "", dense, 1, &out->dense);
	if (!rc)
		rc = load_ffn(a, i, "_exps", experts, a->target->config.n_experts, &out->experts);
	return rc ? rc : load_ffn(a, i, "_shexp", shared, 1, &out->shared);
}

static int load_masks(struct adapting *a)
{
	struct loader *l = &a->l;
	struct adapter *adapter = a->adapter;
	name_tensor(l, "mtp.mask_embd.weight");
	const struct gguf_tensor *t = gguf_tensor_find(l->gguf, l->name);
	adapter->n_masks = t && t->ne[1] == 1 ? 1 : adapter->draft_length;
	return load_table(l, adapter->n_masks, a->target->config.n_embd, &adapter->masks);
}

static int load_sampler(struct adapting *a)
{
	const uint32_t d = a->target->config.n_embd;
	bool any = false;
	int rc = 0;
	for (uint32_t i = 0; i < 2; i++) {
		name_tensor(&a->l, "mtp.sampler.%u.weight", i);
		any |= has_tensor(&a->l);
	}
	for (uint32_t i = 0; any && i < 2; i++) {
		name_tensor(&a->l, "mtp.sampler.%u.weight", i);
		if (!rc)
			rc = load_plain(a, d, i == 0 ? 2 * d : d, 1, &a->adapter->sampler[i]);
		name_tensor(&a->l, "mtp.sampler.%u.norm.weight", i);
		if (!rc)
			rc = load_vector(&a->l, d, &a->adapter->sampler_norm[i]);
	}
	return rc;
}

static int check_unused(struct adapting *a)
{
	for (size_t i = 0; i < gguf_n_tensors(a->l.gguf); i++) {
		if (!a->l.used[i])
			return error_set(a->l.err, EINVAL,
				"tensor %s belongs to no matrix of the model that an adapter may "
				"have",
				gguf_name_text(gguf_tensor_at(a->l.gguf, i)->name).text);
	}
	return 0;
}

static int load(struct adapting *a)
{
	int rc = read_keys(a);
	for (uint32_t i = 0; !rc && i < a->target->config.n_layers; i++)
		rc = load_adapter_layer(a, i);
	if (!rc)
		rc = load_masks(a);
	if (!rc)
		rc = load_sampler(a);
	if (!rc)
		rc = check_unused(a);
	return rc ? rc : gguf_scan_small(a->l.gguf, a->l.err);
}

int adapter_load_gguf(
	struct gguf **gguf, const struct model *target, struct adapter **out, struct error *err)
{
	struct adapter *adapter = calloc(1, sizeof(*adapter));
	bool *used = calloc(gguf_n_tensors(*gguf) + 1, sizeof(*used));
	struct model *file = calloc(1, sizeof(*file));
	*out = NULL;
	if (adapter)
		adapter->layers = calloc(target->config.n_layers, sizeof(*adapter->layers));
	if (!adapter || !used || !file || !adapter->layers) {
		gguf_close(gguf);
		free(file);
		free(used);
		adapter_free(&adapter);
		return error_set(err, ENOMEM, "no memory for an adapter");
	}
	adapter->file = file;
	file->gguf = *gguf;
	*gguf = NULL;
	struct adapting a = {
		.l = {.model = file, .gguf = file->gguf, .err = err, .used = used},
		.target = target,
		.adapter = adapter,
	};
	int rc = load(&a);
	free(used);
	adapter->bytes = gguf_bytes(file->gguf);
	if (rc)
		adapter_free(&adapter);
	*out = adapter;
	return rc;
}

int adapter_load(
	const char *path, const struct model *target, struct adapter **out, struct error *err)
{
	struct gguf *gguf;
	*out = NULL;
	int rc = gguf_open(path, &gguf, err);
	if (rc)
		return rc;
	rc = adapter_load_gguf(&gguf, target, out, err);
	return rc ? gguf_error_prefix(err, rc, path) : 0;
}

void adapter_free(struct adapter **adapter)
{
	if (!*adapter)
		return;
	if ((*adapter)->file)
		model_free(&(*adapter)->file);
	free((*adapter)->layers);
	free(*adapter);
	*adapter = NULL;
}
