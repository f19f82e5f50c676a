/*
 * What this process was doing, and when: spans that `outriderctl trace` collects from all processes into one picture. Off
 * until somebody asks, and off again by itself; then a span costs one load. On, it costs two clock readings and some
 * stores into a ring of this process's own memory: no lock, no system call, any thread. Times are clock_ns, which
 * is one clock for all processes of the machine.
 */
#pragma once

#include "shared/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

enum timeline_kind {
	/* verifier: the thread of the passes */
	TIMELINE_ITERATION, /* values: sessions, tokens of the batch */
	TIMELINE_DRAFT_WAIT, /* tokens drafted */
	TIMELINE_FORWARD, /* tokens of the batch, distinct experts over all layers */
	TIMELINE_SAMPLE, /* tokens emitted */
	TIMELINE_EXPERT_WAIT, /* layer, experts missing */
	/* drafter: the draft thread */
	TIMELINE_DRAFT, /* requests of the round, tokens drafted */
	TIMELINE_DRAFT_IDLE, /* work nobody waits for: reading up, drafting ahead */
	/* expert-cache: a lane for each load in flight */
	TIMELINE_LOAD_DEMAND, /* layer, expert */
	TIMELINE_LOAD_PREFETCH,
	TIMELINE_LOAD_PRELOAD,
	TIMELINE_PACK, /* layer, expert */
	/* policy-controller */
	TIMELINE_DECISION, /* K before, K now */
	TIMELINE_KINDS
};

struct timeline_span {
	uint64_t start_ns, end_ns; /* equal: an instant */
	uint64_t session; /* 0: of none, or of several */
	uint32_t kind; /* enum timeline_kind */
	uint32_t lane; /* spans of one lane are nested or apart */
	uint64_t value[2];
};

/* What a kind is called; value names are NULL where there is none. NULL: no such kind. */
struct timeline_info {
	const char *name;
	const char *value[2];
};
const struct timeline_info *timeline_info(uint32_t kind);

/* Spans are kept from now until until_ns. Asked again, the later time counts. */
void timeline_enable(uint64_t until_ns);
bool timeline_on(void);
/* The start of a span, 0 when nobody wants it; timeline_add ignores a span that starts at 0. */
static inline uint64_t timeline_start(void)
{
	return timeline_on() ? clock_ns() : 0;
}
void timeline_add(const struct timeline_span *span);
/* A span of lane 0 that ends now. */
void timeline_end(uint64_t start_ns, enum timeline_kind kind, uint64_t session, uint64_t value0,
	uint64_t value1);

/* Up to max spans with numbers from *next on (they count from 0); *next: where to go on; *lost grows by those that newer
 * ones have overwritten. Any thread. */
uint32_t timeline_read(uint64_t *next, struct timeline_span *out, uint32_t max, uint64_t *lost);
