/* Decodes the prompts of a workload one after the other, greedily, with the engine alone, and
 * records what its routers chose. */
#include "bench/src/cache_record.h"

#include "bench/src/prompts_file.h"
#include "shared/spec/slots.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- Prompts. ---- */

static int record_line(void *arg, const json_t *line, uint32_t session, struct error *err)
{
	struct recorder *r = arg;
	const struct cache_record_options *o = r->options;
	int32_t *ids = NULL;
	size_t n = 0;
	int rc = prompt_encode(&r->target, line, &ids, &n, err);
	json_int_t own = json_integer_value(json_object_get(line, "max_tokens"));
	uint32_t most = own > 0 && own < o->max_tokens ? (uint32_t)own : o->max_tokens;
	uint32_t room = r->target.n_context;
	if (rc == 0 && (n == 0 || n + most + LIMIT_DRAFT_DEPTH + 1 > room))
		rc = error_set(err, EINVAL,
			"a prompt of %zu tokens and %u more do not fit the context of %u", n, most,
			room);
	if (rc == 0) {
		memcpy(r->tokens, ids, n * sizeof(*ids));
		r->n_prompt = (uint32_t)n;
	}
	free(ids);
	if (rc == 0 && o->drafter == CACHE_DRAFT_REPLAY) {
		r->silent = true;
		rc = record_answer(r, session, 0, most, err);
		r->silent = false;
		r->n_recorded = r->n - r->n_prompt;
		memcpy(r->recorded, r->tokens + r->n_prompt, r->n_recorded * sizeof(*r->recorded));
	}
	return rc == 0 ? record_answer(r, session, o->k, most, err) : rc;
}

/* ---- Setting up. ---- */

static int open_engine(struct recorder *r, struct engine *e, const char *model, struct error *err)
{
	const struct decoding_options options = {.model = model,
		.threads = r->options->threads,
		.chunk = RECORD_CHUNK,
		.quiet = e == &r->draft}; /* so that notices are printed once */

	return decoding_open(e, &options, err);
}

static int check_draft(const struct recorder *r, struct error *err)
{
	const struct model_config *target = &r->target.model->config;
	const struct model_config *draft = &r->draft.model->config;
	if (draft->n_embd != target->n_embd || draft->n_layers != target->n_layers ||
		draft->n_vocab != target->n_vocab)
		return error_set(err, EINVAL,
			"%s: %u layers of %u and %u tokens; for hints it takes the target's %u of "
			"%u and %u",
			r->options->draft, draft->n_layers, draft->n_embd, draft->n_vocab,
			target->n_layers, target->n_embd, target->n_vocab);
	return 0;
}

static void describe(struct recorder *r)
{
	const struct cache_record_options *o = r->options;
	const struct model *model = r->target.model;
	struct cache_trace *trace = &r->trace;
	struct slots_geometry geometry;
	slots_geometry_init(&geometry, model);
	trace->n_layers = model->config.n_layers;
	trace->n_experts = model->config.n_experts;
	trace->n_experts_used = model->config.n_experts_used;
	trace->k = o->drafter == CACHE_DRAFT_NONE ? 0 : o->k;
	for (uint32_t l = 0; l < trace->n_layers; l++) {
		uint64_t bytes = 0;
		trace->moe[l] = geometry.layers[l].moe;
		for (int p = 0; trace->moe[l] && p < EXPERT_PARTS; p++)
			bytes += geometry.layers[l].part[p].bytes;
		if (bytes > trace->expert_bytes)
			trace->expert_bytes = bytes;
	}
	const char *slash = strrchr(o->workload, '/');
	static const char *const drafters[] = {"no drafter", "model", "replay", "ngram"};
	snprintf(trace->name, sizeof(trace->name), "%.60s, %s, K %u",
		slash ? slash + 1 : o->workload, drafters[o->drafter], trace->k);
}

static int open_all(struct recorder *r, struct error *err)
{
	const struct cache_record_options *o = r->options;
	int rc = open_engine(r, &r->target, o->model, err);
	if (rc < 0)
		return rc;
	if (r->target.model->config.n_experts == 0)
		return error_set(err, EINVAL, "%s has no experts", o->model);
	describe(r);
	if (o->drafter == CACHE_DRAFT_MODEL) {
		rc = open_engine(r, &r->draft, o->draft, err);
		if (rc == 0)
			rc = check_draft(r, err);
	}
	uint32_t n_experts = r->trace.n_experts;
	r->tokens = calloc(DECODING_TOKENS_MAX, sizeof(*r->tokens));
	r->recorded = calloc(DECODING_TOKENS_MAX, sizeof(*r->recorded));
	r->tokens_of = calloc(n_experts, sizeof(*r->tokens_of));
	r->told = calloc((size_t)r->trace.n_layers * n_experts, sizeof(*r->told));
	r->scores = calloc(n_experts, sizeof(*r->scores));
	if (rc == 0 && !(r->tokens && r->recorded && r->tokens_of && r->told && r->scores))
		rc = error_set(err, ENOMEM, "no memory to record");
	if (rc == 0)
		rc = moe_router_init(
			&r->router, r->target.model, r->target.backend, RECORD_CHUNK, err);
	r->router.q = rc == 0 ? forward_queue(r->target.forward) : NULL;
	if (rc == 0)
		rc = cache_history_init(&r->history, r->target.model, RECORD_CHUNK, err);
	if (rc < 0)
		return rc;
	record_set_hooks(r);
	return 0;
}

int cache_record(const struct cache_record_options *options, struct error *err)
{
	struct recorder *r = calloc(1, sizeof(*r));
	if (!r)
		return error_set(err, ENOMEM, "no memory to record");
	r->options = options;
	cache_trace_init(&r->trace);
	int rc = open_all(r, err);
	if (rc == 0)
		rc = prompts_each(options->workload, options->limit, record_line, r, err);
	if (rc == 0)
		rc = cache_trace_write(&r->trace, options->out, err);
	if (rc == 0)
		printf("%s: %s: %u passes, %u runs of a layer, %u experts used, %u hints\n",
			options->out, r->trace.name, r->trace.n_passes, r->trace.n_layer_runs,
			r->trace.n_uses, r->trace.n_hints);
	cache_trace_exit(&r->trace);
	moe_router_exit(&r->router);
	cache_history_exit(&r->history);
	ngram_exit(&r->ngram);
	engine_close(&r->target);
	if (options->drafter == CACHE_DRAFT_MODEL)
		engine_close(&r->draft);
	free(r->tokens);
	free(r->recorded);
	free(r->tokens_of);
	free(r->told);
	free(r->scores);
	free(r);
	return rc;
}
