/*
 * A binary heap of ids by key, the least first, that knows where each id is: any id can be moved or
 * removed in O(log n). Part of a policy; nothing is allocated after heap_init.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define HEAP_NONE UINT32_MAX

struct heap {
	uint32_t n, n_ids;
	uint32_t *id; /* [n_ids]; the first n entries are the heap */
	uint32_t *place; /* [n_ids] index in id + 1; 0: not in the heap */
	double *key; /* [n_ids] keys of the ids in the heap */
};

/* For ids 0..n_ids-1. */
int heap_init(struct heap *heap, uint32_t n_ids, struct error *err);
void heap_exit(struct heap *heap);

static inline bool heap_has(const struct heap *heap, uint32_t id)
{
	return heap->place[id] != 0;
}
/* Inserts an id or moves it. key must not be NaN. */
void heap_set(struct heap *heap, uint32_t id, double key);
/* Does nothing for an id that is not in the heap. */
void heap_remove(struct heap *heap, uint32_t id);
/* The id with the least key, or HEAP_NONE. */
uint32_t heap_top(const struct heap *heap);
/* The id with the least key below `bound` among the ids that may() allows, or HEAP_NONE. Examines
 * only ids that may() refuses and their children. */
uint32_t heap_least(
	const struct heap *heap, double bound, bool (*may)(void *arg, uint32_t id), void *arg);
