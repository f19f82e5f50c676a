#include "services/expert-cache/policies/heap.h"

#include <stdlib.h>

int heap_init(struct heap *heap, uint32_t n_ids, struct error *err)
{
	*heap = (struct heap){.n_ids = n_ids};
	heap->id = calloc(n_ids, sizeof(*heap->id));
	heap->place = calloc(n_ids, sizeof(*heap->place));
	heap->key = calloc(n_ids, sizeof(*heap->key));
	if (heap->id != NULL && heap->place != NULL && heap->key != NULL)
		return 0;
	heap_exit(heap);
	return error_set(err, ENOMEM, "no memory to keep %u experts in order", n_ids);
}

void heap_exit(struct heap *heap)
{
	free(heap->id);
	free(heap->place);
	free(heap->key);
	*heap = (struct heap){0};
}

static void put(struct heap *heap, uint32_t at, uint32_t id)
{
	heap->id[at] = id;
	heap->place[id] = at + 1;
}

static void rise(struct heap *heap, uint32_t at)
{
	uint32_t id = heap->id[at];
	while (at > 0 && heap->key[heap->id[(at - 1) / 2]] > heap->key[id]) {
		put(heap, at, heap->id[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	put(heap, at, id);
}

static void sink(struct heap *heap, uint32_t at)
{
	uint32_t id = heap->id[at];
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= heap->n)
			break;
		if (child + 1 < heap->n &&
			heap->key[heap->id[child + 1]] < heap->key[heap->id[child]])
			child++;
		if (heap->key[heap->id[child]] >= heap->key[id])
			break;
		put(heap, at, heap->id[child]);
		at = child;
	}
	put(heap, at, id);
}

void heap_set(struct heap *heap, uint32_t id, double key)
{
	heap->key[id] = key;
	if (heap->place[id] == 0)
		put(heap, heap->n++, id);
	rise(heap, heap->place[id] - 1);
	sink(heap, heap->place[id] - 1);
}

void heap_remove(struct heap *heap, uint32_t id)
{
	if (heap->place[id] == 0)
		return;
	uint32_t at = heap->place[id] - 1, last = heap->id[--heap->n];
	heap->place[id] = 0;
	if (last == id)
		return;
	put(heap, at, last);
	rise(heap, at);
	sink(heap, heap->place[last] - 1);
}

uint32_t heap_top(const struct heap *heap)
{
	return heap->n > 0 ? heap->id[0] : HEAP_NONE;
}

uint32_t heap_least(
	const struct heap *heap, double bound, bool (*may)(void *arg, uint32_t id), void *arg)
{
	uint32_t best = HEAP_NONE;
	/* Depth first: the stack holds at most one sibling for each level. */
	uint32_t stack[40], n = 0;
	if (heap->n > 0)
		stack[n++] = 0;
	while (n > 0) {
		uint32_t at = stack[--n], id = heap->id[at];
		if (heap->key[id] >= bound)
			continue;
		if (may(arg, id)) {
			best = id;
			bound = heap->key[id];
			continue;
		}
		for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < heap->n; child++)
			stack[n++] = child;
	}
	return best;
}
