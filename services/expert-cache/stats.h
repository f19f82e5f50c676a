/* What the expert-cache tells about itself: admin replies, made in the loop thread from counters that the worker, the
 * verifier and the drafter go on writing: a picture, not a moment. All of a reply is from malloc: protobuf-c frees it, half
 * filled ones too; false: no memory. */
#pragma once

#include "proto/envelope.pb-c.h"
#include "services/expert-cache/service.h"

bool stats_fill(struct service *service, bool per_layer, Outrider__Envelope *reply);
/* The n experts (0: a number that fits a screen) that were used most. */
bool stats_fill_hot(struct service *service, uint32_t n, Outrider__Envelope *reply);

struct census {
	uint32_t resident, pinned, packed;
};
/* What the slots hold now; residents per layer into layers[n_layers] (may be NULL). */
struct census stats_census(const struct slots *slots, uint32_t *layers);

static inline uint64_t stats_load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}
