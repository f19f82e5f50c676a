/*
 * A binary heap of ids by key, the least first, that knows where each id is: any of them can be moved or taken out in
 * O(log n). Part of a policy; nothing is allocated after heap_init.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define HEAP_NONE UINT32_MAX

struct heap {
	uint32_t n, n_ids;
	uint32_t *id; /* [n_ids] the first n are the heap */
	uint32_t *place; /* [n_ids] place in id + 1; 0 = not in the heap */
	double *key; /* [n_ids] of those in the heap */
};

/* For ids 0..n_ids-1. */
int heap_init(struct heap *heap, uint32_t n_ids, struct error *err);
void heap_exit(struct heap *heap);

static inline bool heap_has(const struct heap *heap, uint32_t id)
{
	return heap->place[id] != 0;
}
/* Puts it in or moves it. The key is a number. */
void heap_set(struct heap *heap, uint32_t id, double key);
/* An id that is not in the heap stays out. */
void heap_remove(struct heap *heap, uint32_t id);
/* The id of the least key, or HEAP_NONE. */
uint32_t heap_top(const struct heap *heap);
/* The id of the least key below `bound` among those may() allows, or HEAP_NONE. Looks at those it does not allow and
 * their children only. */
uint32_t heap_least(
	const struct heap *heap, double bound, bool (*may)(void *arg, uint32_t id), void *arg);
