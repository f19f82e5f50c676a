#include "services/drafter/skip.h"

#include "services/drafter/model_engine.h"
#include "services/drafter/model_pass.h"
#include "shared/base/log.h"
#include "shared/model/arch/skip.h"
#include "shared/spec/packed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* The target, with its weights where the verifier has them. */
static int load_target(struct draft_model *m, const struct sessions_header *header,
	const struct region *weights, struct error *err)
{
	struct error why = {""};
	int part = WEIGHTS_DENSE;
	int r = model_load(header->model_path, &m->target, err);
	if (r < 0)
		return r;
	if (m->target->file_fingerprint != header->file_fingerprint)
		return error_set(err, ESTALE, "%s is not the file that the verifier has",
			header->model_path);
	if (weights->header)
		part = packed_use(weights, m->target, &why);
	if (part < 0)
		log_notice("layer-skip reads the model's file, because %s", why.text);
	/* Packed together with the rest, experts are in no cache. */
	if (part != WEIGHTS_ALL)
		m->experts_of = (struct head_experts_of){
			.model = m->target->file_fingerprint,
			.n_cached = m->target->config.n_layers + m->target->n_drafting,
		};
	return 0;
}

/* "1,3-4" */
static void list(const bool *layer, uint32_t n, char *out, size_t bytes)
{
	size_t used = 0;
	out[0] = '\0';
	for (uint32_t i = 0; i < n && used < bytes; i++) {
		uint32_t first = i;
		if (!layer[i])
			continue;
		while (i + 1 < n && layer[i + 1])
			i++;
		int wrote = snprintf(out + used, bytes - used, i > first ? "%s%u-%u" : "%s%u",
			used > 0 ? "," : "", first, i);
		used += (size_t)wrote;
	}
}

static int leave_out(struct draft_model *m, const struct drafter_config *config, struct error *err)
{
	const struct model_config *whole = &m->target->config;
	bool layer[LIMIT_LAYERS];
	struct skip skip;
	char skipped[256];
	int r = skip_parse(config->skip_layers, &skip, err);
	if (r == 0)
		r = skip_choose(&skip, whole, layer, err);
	if (r != 0)
		return error_prefix(err, r, "skip_layers = %s", config->skip_layers);
	r = model_skip(m->target, layer, &m->model, m->experts_of.layer, err);
	if (r != 0)
		return r;
	list(layer, whole->n_layers, skipped, sizeof(skipped));
	log_info("layer-skip drafts with %u of the model's %u layers: without %s",
		m->model->config.n_layers, whole->n_layers, skipped);
	return 0;
}

int draft_skip_open(const struct drafter_config *config, const struct sessions_header *header,
	const struct region *weights, struct draft_session *sessions, uint32_t n_sessions,
	struct hints *hints, struct draft_model **out, struct error *err)
{
	struct draft_model *m = calloc(1, sizeof(*m));
	*out = NULL;
	if (!m)
		return error_set(err, ENOMEM, "no memory for a draft model");
	m->method = DRAFT_LAYER_SKIP;
	m->sessions = sessions;
	m->n_sessions = n_sessions;
	m->hints = hints;
	int r = load_target(m, header, weights, err);
	if (r == 0)
		r = leave_out(m, config, err);
	if (r == 0)
		r = draft_open_target_tokenizer(m, header, err);
	if (r == 0)
		r = draft_engine_open(m, config, err);
	if (r < 0) {
		draft_model_close(&m);
		return r;
	}
	*out = m;
	return 0;
}
