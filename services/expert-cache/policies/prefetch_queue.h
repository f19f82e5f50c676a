/*
 * Prefetches that wait, bounded: one per expert, the best score first, of equal ones any. Obsolete ones (their time has
 * passed, or their layer has run since) are dropped when met. Part of a policy.
 */
#pragma once

#include "services/expert-cache/policies/heap.h"
#include "services/expert-cache/policies/policy.h"

struct prefetch_queue {
	uint32_t n, max, n_experts;
	struct heap best, worst; /* of layer * n_experts + expert, by falling and by rising score */
	struct prefetch_note {
		uint64_t needed_by_ns;
		uint32_t pass; /* of its layer when it came */
		float score;
	} * notes; /* [n_layers][n_experts] of those that wait */
	uint32_t *pass; /* [n_layers] grows with prefetch_queue_passed */
};

int prefetch_queue_init(struct prefetch_queue *queue, uint32_t n_layers, uint32_t n_experts,
	uint32_t max, struct error *err);
void prefetch_queue_exit(struct prefetch_queue *queue);

/* A second one for an expert keeps the higher score and the later time. A score that is no number is left out. */
void prefetch_queue_add(struct prefetch_queue *queue, const struct cache_prefetch *prefetch);
void prefetch_queue_remove(struct prefetch_queue *queue, uint32_t layer, uint32_t expert);
bool prefetch_queue_has(const struct prefetch_queue *queue, uint32_t layer, uint32_t expert);
/* The layer runs: what waits for it is obsolete. */
void prefetch_queue_passed(struct prefetch_queue *queue, uint32_t layer);
/* The best that is not obsolete at now_ns; drops those in front of it. */
bool prefetch_queue_take(struct prefetch_queue *queue, uint64_t now_ns, struct cache_prefetch *out);
