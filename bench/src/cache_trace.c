/* A trace in memory. */
#include "bench/src/cache_trace.h"

#include <stdlib.h>
#include <string.h>

void cache_trace_init(struct cache_trace *trace)
{
	memset(trace, 0, sizeof(*trace));
}

void cache_trace_exit(struct cache_trace *trace)
{
	free(trace->passes);
	free(trace->layers);
	free(trace->uses);
	free(trace->hints);
	memset(trace, 0, sizeof(*trace));
}

static void *copied(const void *array, uint32_t n, size_t size)
{
	void *copy = calloc(n + 1u, size);
	if (copy != NULL && n > 0)
		memcpy(copy, array, n * size);
	return copy;
}

int cache_trace_copy(const struct cache_trace *from, struct cache_trace *out, struct error *err)
{
	*out = *from;
	out->passes = copied(from->passes, from->n_passes, sizeof(*from->passes));
	out->layers = copied(from->layers, from->n_layer_runs, sizeof(*from->layers));
	out->uses = copied(from->uses, from->n_uses, sizeof(*from->uses));
	out->hints = copied(from->hints, from->n_hints, sizeof(*from->hints));
	out->passes_max = from->n_passes;
	out->layer_runs_max = from->n_layer_runs;
	out->uses_max = from->n_uses;
	out->hints_max = from->n_hints;
	if (out->passes && out->layers && out->uses && out->hints)
		return 0;
	cache_trace_exit(out);
	return error_set(err, ENOMEM, "no memory for a copy of a trace");
}

/* Room for one more. */
static int grow(void **array, uint32_t n, uint32_t *max, size_t size)
{
	if (n < *max)
		return 0;
	if (*max > UINT32_MAX / 2)
		return -ENOMEM;
	uint32_t more = *max ? 2 * *max : 64;
	void *grown = reallocarray(*array, more, size);
	if (grown == NULL)
		return -ENOMEM;
	*array = grown;
	*max = more;
	return 0;
}

int cache_trace_add_pass(struct cache_trace *trace, const struct trace_pass *pass)
{
	int rc = grow((void **)&trace->passes, trace->n_passes, &trace->passes_max, sizeof(*pass));
	if (rc < 0)
		return rc;
	struct trace_pass *to = &trace->passes[trace->n_passes++];
	*to = *pass;
	to->first_hint = trace->n_hints;
	to->first_layer = trace->n_layer_runs;
	to->n_hints = to->n_layers = 0;
	return 0;
}

int cache_trace_add_layer(struct cache_trace *trace, const struct trace_layer *layer)
{
	int rc = grow((void **)&trace->layers, trace->n_layer_runs, &trace->layer_runs_max,
		sizeof(*layer));
	if (rc < 0)
		return rc;
	struct trace_layer *to = &trace->layers[trace->n_layer_runs++];
	*to = *layer;
	to->first_use = trace->n_uses;
	to->first_hint = trace->n_hints;
	to->n_uses = to->n_hints = 0;
	trace->passes[trace->n_passes - 1].n_layers++;
	return 0;
}

int cache_trace_add_use(struct cache_trace *trace, struct trace_use use)
{
	int rc = grow((void **)&trace->uses, trace->n_uses, &trace->uses_max, sizeof(use));
	if (rc < 0)
		return rc;
	trace->uses[trace->n_uses++] = use;
	trace->layers[trace->n_layer_runs - 1].n_uses++;
	return 0;
}

int cache_trace_add_hint(struct cache_trace *trace, const struct trace_hint *hint)
{
	int rc = grow((void **)&trace->hints, trace->n_hints, &trace->hints_max, sizeof(*hint));
	if (rc < 0)
		return rc;
	struct trace_pass *pass = &trace->passes[trace->n_passes - 1];
	trace->hints[trace->n_hints++] = *hint;
	if (pass->n_layers > 0)
		trace->layers[trace->n_layer_runs - 1].n_hints++;
	else
		pass->n_hints++;
	return 0;
}
