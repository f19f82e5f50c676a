/* What the expert-cache tells about itself: admin replies, made in the loop thread from counters
 * that the worker, the verifier and the drafter keep changing, so the numbers are not from one
 * instant. All of a reply is malloc'd; protobuf-c frees it, even when it is only half filled.
 * False: no memory. */
#pragma once

#include "proto/envelope.pb-c.h"
#include "services/expert-cache/service.h"

bool stats_fill(struct service *service, bool per_layer, Outrider__Envelope *reply);
/* Lists the n experts that were used most; n = 0: a number that fits a screen. */
bool stats_fill_hot(struct service *service, uint32_t n, Outrider__Envelope *reply);

struct census {
	uint32_t resident, pinned, packed;
};
/* Counts what the slots hold now. layers: [n_layers] residents of each layer; may be NULL. */
struct census stats_census(const struct slots *slots, uint32_t *layers);

static inline uint64_t stats_load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}
