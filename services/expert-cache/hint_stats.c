#include "services/expert-cache/service.h"

#include <stdlib.h>
#include <string.h>

static uint64_t load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Adds the layer's counts. */
static void add(const struct hint_quality *quality, uint32_t layer, unsigned source,
	Outrider__HintQuality *to)
{
	const struct hint_counts *counts = hint_quality_counts(quality, layer, source);
	to->passes += load(&counts->passes);
	to->used += load(&counts->used);
	to->found += load(&counts->found);
	to->hinted += load(&counts->hinted);
	to->late += load(&counts->late);
	to->lead_ns += load(&counts->lead_ns);
}

/* Fills in the counts of layers first..end-1, for each source that has hinted. */
static bool fill(const struct hint_quality *quality, uint32_t first, uint32_t end,
	Outrider__HintQuality ***list, size_t *n)
{
	*n = 0;
	*list = calloc(HINT_SOURCES + 1, sizeof(**list));
	if (*list == NULL)
		return false;
	for (unsigned s = 0; s <= HINT_SOURCES; s++) {
		Outrider__HintQuality sum = OUTRIDER__HINT_QUALITY__INIT;
		for (uint32_t l = first; l < end; l++)
			add(quality, l, s, &sum);
		if (sum.passes == 0 && sum.late == 0)
			continue;
		Outrider__HintQuality *entry = malloc(sizeof(*entry));
		if (entry == NULL)
			return false;
		*entry = sum;
		(*list)[(*n)++] = entry;
		char *source = strdup(hint_source_names[s]);
		if (source == NULL)
			return false;
		entry->source = source;
	}
	return true;
}

bool hint_stats_layer(const struct hint_quality *quality, uint32_t layer, Outrider__CacheLayer *out)
{
	return fill(quality, layer, layer + 1, &out->hint_quality, &out->n_hint_quality);
}

bool hint_stats_all(const struct hint_quality *quality, Outrider__CacheStats *out)
{
	return fill(quality, 0, quality->n_layers, &out->hint_quality, &out->n_hint_quality);
}
