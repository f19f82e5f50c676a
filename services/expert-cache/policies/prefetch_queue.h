/*
 * A bounded queue of waiting prefetches: at most one per expert, the best score first, equal ones
 * in any order. Obsolete prefetches, whose time has passed or whose layer has run since, are
 * dropped when they are found. Part of a policy.
 */
#pragma once

#include "services/expert-cache/policies/heap.h"
#include "services/expert-cache/policies/policy.h"

struct prefetch_queue {
	uint32_t n, max, n_experts;
	/* ids layer * n_experts + expert, by descending and by ascending score */
	struct heap best, worst;
	struct prefetch_note {
		uint64_t needed_by_ns;
		uint32_t pass; /* pass of its layer when it was added */
		float score;
	} * notes; /* [n_layers][n_experts] for those that wait */
	uint32_t *pass; /* [n_layers] incremented by prefetch_queue_passed */
};

int prefetch_queue_init(struct prefetch_queue *queue, uint32_t n_layers, uint32_t n_experts,
	uint32_t max, struct error *err);
void prefetch_queue_exit(struct prefetch_queue *queue);

/* A second prefetch for an expert keeps the higher score and the later time. A NaN score is
 * ignored. */
void prefetch_queue_add(struct prefetch_queue *queue, const struct cache_prefetch *prefetch);
void prefetch_queue_remove(struct prefetch_queue *queue, uint32_t layer, uint32_t expert);
bool prefetch_queue_has(const struct prefetch_queue *queue, uint32_t layer, uint32_t expert);
/* Call when the layer runs: prefetches that wait for it are obsolete. */
void prefetch_queue_passed(struct prefetch_queue *queue, uint32_t layer);
/* Takes the best prefetch that is not obsolete at now_ns; drops obsolete ones before it. */
bool prefetch_queue_take(struct prefetch_queue *queue, uint64_t now_ns, struct cache_prefetch *out);
