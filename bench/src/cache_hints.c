/* The same trace with other hints. */
#include "bench/src/cache.h"

#include "shared/spec/slots.h"

/* Hints for everything that the pass will use, at the time when its drafting begins. */
static int foresee(
	const struct cache_trace *trace, const struct trace_pass *pass, struct cache_trace *out)
{
	int rc = 0;
	for (uint32_t i = 0; i < pass->n_layers; i++) {
		const struct trace_layer *layer = &trace->layers[pass->first_layer + i];
		for (uint32_t u = 0; rc == 0 && u < layer->n_uses; u++) {
			struct trace_hint hint = {.layer = (uint16_t)layer->layer,
				.expert = trace->uses[layer->first_use + u].expert,
				.source = HINT_DRAFT,
				.score = 1};
			rc = cache_trace_add_hint(out, &hint);
		}
	}
	return rc;
}

static int copy_layer(
	const struct cache_trace *trace, const struct trace_layer *layer, struct cache_trace *out)
{
	int rc = cache_trace_add_layer(out, layer);
	for (uint32_t u = 0; rc == 0 && u < layer->n_uses; u++)
		rc = cache_trace_add_use(out, trace->uses[layer->first_use + u]);
	return rc;
}

int cache_trace_rehint(struct cache_trace *trace, bool perfect, struct error *err)
{
	struct cache_trace out = *trace;
	out.passes = NULL;
	out.layers = NULL;
	out.uses = NULL;
	out.hints = NULL;
	out.n_passes = out.n_layer_runs = out.n_uses = out.n_hints = 0;
	out.passes_max = out.layer_runs_max = out.uses_max = out.hints_max = 0;
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < trace->n_passes; i++) {
		const struct trace_pass *pass = &trace->passes[i];
		rc = cache_trace_add_pass(&out, pass);
		if (rc == 0 && perfect && !pass->prefill)
			rc = foresee(trace, pass, &out);
		for (uint32_t l = 0; rc == 0 && l < pass->n_layers; l++)
			rc = copy_layer(trace, &trace->layers[pass->first_layer + l], &out);
	}
	if (rc < 0) {
		cache_trace_exit(&out);
		return error_set(err, -rc, "no memory for a trace's other hints");
	}
	cache_trace_exit(trace);
	*trace = out;
	return 0;
}
