/*
 * What this process was doing, and when: spans that `outriderctl trace` collects from all processes
 * into one picture. The timeline is off until somebody asks for it, and switches itself off again;
 * a span then costs one load. While on, a span costs two clock readings and some stores into a ring
 * in this process's own memory: no lock, no system call. Any thread. Times are clock_ns, which is
 * one clock for all processes of the machine.
 */
#pragma once

#include "shared/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

enum timeline_kind {
	/* verifier: the engine's thread */
	TIMELINE_ITERATION, /* values: sessions, tokens of the batch */
	TIMELINE_DRAFT_WAIT, /* tokens drafted */
	TIMELINE_FORWARD, /* tokens of the batch, distinct experts over all layers */
	TIMELINE_SAMPLE, /* tokens emitted */
	TIMELINE_EXPERT_WAIT, /* layer, experts missing */
	TIMELINE_DEVICE_WAIT, /* the host has queued the pass, and waits for the device's kernels */
	/* drafter: the draft thread */
	TIMELINE_DRAFT, /* requests of the round, tokens drafted */
	TIMELINE_DRAFT_IDLE, /* work that nobody waits for: reading new tokens, drafting ahead */
	/* expert-cache: one lane for each load in flight */
	TIMELINE_LOAD_DEMAND, /* layer, expert */
	TIMELINE_LOAD_PREFETCH,
	TIMELINE_LOAD_PRELOAD,
	TIMELINE_PACK, /* layer, expert */
	/* the same: one lane for each copy to a device, from TIMELINE_DEVICE_LANE on */
	TIMELINE_COPY_DEMAND, /* layer, expert */
	TIMELINE_COPY_PREFETCH,
	TIMELINE_COPY_PRELOAD,
	/* policy-controller */
	TIMELINE_DECISION, /* K before, K now */
	/* verifier, and drafter: the queue of a pass on a device, in lane TIMELINE_DEVICE_LANE */
	TIMELINE_DEVICE_EMBED,
	TIMELINE_DEVICE_ATTENTION, /* layer; or what the layer has in its place */
	TIMELINE_DEVICE_ROUTER, /* layer */
	TIMELINE_DEVICE_DENSE, /* layer; the shared expert, too */
	TIMELINE_DEVICE_EXPERTS, /* layer */
	TIMELINE_DEVICE_LOGITS,
	TIMELINE_DEVICE_PICK,
	TIMELINE_DEVICE_FLAG, /* layer: the queue waits for copies of experts */
	TIMELINE_DEVICE_COPY,
	TIMELINE_KINDS
};

enum { TIMELINE_DEVICE_LANE = 128 };

struct timeline_span {
	uint64_t start_ns, end_ns; /* equal: a point in time */
	uint64_t session; /* 0: none, or several */
	uint32_t kind; /* enum timeline_kind */
	uint32_t lane; /* spans in one lane are nested or disjoint */
	uint64_t value[2];
};

/* The name of a kind and of its values (NULL: no such value). NULL: no such kind. */
struct timeline_info {
	const char *name;
	const char *value[2];
};
const struct timeline_info *timeline_info(uint32_t kind);

/* Keeps spans from now until until_ns. After several calls the latest time counts. */
void timeline_enable(uint64_t until_ns);
bool timeline_on(void);
/* The start of a span, 0 when the timeline is off. timeline_add ignores a span that starts at 0. */
static inline uint64_t timeline_start(void)
{
	return timeline_on() ? clock_ns() : 0;
}
void timeline_add(const struct timeline_span *span);
/* Adds a span of lane 0 that ends now. */
void timeline_end(uint64_t start_ns, enum timeline_kind kind, uint64_t session, uint64_t value0,
	uint64_t value1);

/* Reads up to max spans, numbered from 0, from *next on. *next: the number to continue with. *lost
 * grows by the number of spans that newer ones have overwritten. Any thread. */
uint32_t timeline_read(uint64_t *next, struct timeline_span *out, uint32_t max, uint64_t *lost);
