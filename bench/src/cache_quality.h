/* How good the hints of a trace are, by the same counts as in the expert cache
 * (services/expert-cache/hints/hint_quality.h). */
#pragma once

#include "bench/src/cache_trace.h"
#include "shared/spec/slots.h"

/* Sums over layers; see struct hint_counts. lead_ns: as if no pass waited for experts. */
struct trace_quality {
	uint64_t passes, used, found, hinted, late, lead_ns;
};

/* One entry per source; out[HINT_SOURCES]: all sources together. */
int cache_trace_quality(const struct cache_trace *trace, struct trace_quality out[HINT_SOURCES + 1],
	struct error *err);
