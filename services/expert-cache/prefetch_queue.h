/*
 * Prefetches that wait, bounded: one per expert, the best score first. Obsolete ones (their time has passed) are dropped when
 * met. Part of a policy.
 */
#pragma once

#include "services/expert-cache/policy.h"

struct prefetch_queue {
	uint32_t n, max, n_experts;
	uint64_t dropped; /* for want of room, or too late */
	struct cache_prefetch *heap; /* [max] by falling score */
	uint32_t *place; /* [n_layers][n_experts] place in heap + 1; 0 = none */
};

int prefetch_queue_init(struct prefetch_queue *queue, uint32_t n_layers, uint32_t n_experts,
	uint32_t max, struct error *err);
void prefetch_queue_exit(struct prefetch_queue *queue);

/* A second one for an expert keeps the higher score and the later time. */
void prefetch_queue_add(struct prefetch_queue *queue, const struct cache_prefetch *prefetch);
void prefetch_queue_remove(struct prefetch_queue *queue, uint32_t layer, uint32_t expert);
/* Takes the best that is not obsolete at now_ns. */
bool prefetch_queue_take(struct prefetch_queue *queue, uint64_t now_ns, struct cache_prefetch *out);
