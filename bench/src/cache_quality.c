#include "bench/src/cache_quality.h"

#include "services/expert-cache/hints/hint_quality.h"

#include <string.h>

/* The trace on a time axis without waits for experts. */
struct reader {
	const struct cache_trace *trace;
	struct hint_quality *quality;
	uint64_t now_ns, iteration; /* of the layer that ran last */
};

/* The iteration in which the pass, whose first layer has `first`, reaches a layer; 0: it does not.
 */
static uint64_t reaches(
	const struct reader *r, const struct trace_pass *pass, uint64_t first, uint32_t layer)
{
	for (uint32_t i = 0; i < pass->n_layers; i++)
		if (r->trace->layers[pass->first_layer + i].layer == layer)
			return first + i;
	return 0;
}

static void take_hints(struct reader *r, const struct trace_pass *pass, uint64_t first,
	uint32_t first_hint, uint32_t n, uint64_t span_ns)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct trace_hint *from = &r->trace->hints[first_hint + i];
		struct slot_hint hint = {.layer = from->layer,
			.expert = from->expert,
			.source = from->source,
			.made_ns = r->now_ns + (from->at_ns < span_ns ? from->at_ns : span_ns),
			.iteration = reaches(r, pass, first, from->layer)};
		if (hint.iteration != 0)
			hint_quality_hinted(r->quality, &hint);
	}
}

static void read_pass(struct reader *r, const struct trace_pass *pass)
{
	uint64_t first = r->iteration + 1;
	take_hints(r, pass, first, pass->first_hint, pass->n_hints, pass->draft_ns);
	r->now_ns += pass->draft_ns;
	for (uint32_t i = 0; i < pass->n_layers; i++) {
		const struct trace_layer *layer = &r->trace->layers[pass->first_layer + i];
		r->now_ns += layer->before_ns;
		r->iteration++;
		for (uint32_t u = 0; u < layer->n_uses; u++)
			hint_quality_used(r->quality, layer->layer,
				r->trace->uses[layer->first_use + u].expert, r->iteration,
				r->now_ns);
		take_hints(r, pass, first, layer->first_hint, layer->n_hints, 0);
		r->now_ns += layer->after_ns;
	}
}

/* Passes are counted when newer ones have replaced them. */
static void close_passes(struct reader *r)
{
	for (uint32_t l = 0; l < r->trace->n_layers; l++)
		for (uint32_t i = 0; i < HINT_PASSES; i++)
			hint_quality_used(r->quality, l, 0, ++r->iteration, r->now_ns);
}

int cache_trace_quality(const struct cache_trace *trace, struct trace_quality out[HINT_SOURCES + 1],
	struct error *err)
{
	struct hint_quality quality;
	struct reader r = {.trace = trace, .quality = &quality, .now_ns = 1};
	memset(out, 0, (HINT_SOURCES + 1) * sizeof(*out));
	int rc = hint_quality_init(&quality, trace->n_layers, trace->n_experts, err);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < trace->n_passes; i++)
		read_pass(&r, &trace->passes[i]);
	close_passes(&r);
	for (uint32_t l = 0; l < trace->n_layers; l++)
		for (unsigned s = 0; s <= HINT_SOURCES; s++) {
			const struct hint_counts *c = hint_quality_counts(&quality, l, s);
			out[s].passes += atomic_load(&c->passes);
			out[s].used += atomic_load(&c->used);
			out[s].found += atomic_load(&c->found);
			out[s].hinted += atomic_load(&c->hinted);
			out[s].late += atomic_load(&c->late);
			out[s].lead_ns += atomic_load(&c->lead_ns);
		}
	hint_quality_exit(&quality);
	return 0;
}
