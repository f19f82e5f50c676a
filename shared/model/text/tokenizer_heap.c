#include "shared/model/text/tokenizer_internal.h"

#include <stdlib.h>

int merge_heap_reserve(struct merge_heap *heap, size_t n)
{
	if (n <= heap->capacity)
		return 0;
	size_t capacity = n < 512 ? 512 : n;
	uint64_t *items = realloc(heap->items, capacity * sizeof(*items));
	if (!items)
		return -ENOMEM;
	heap->items = items;
	heap->capacity = capacity;
	return 0;
}

void merge_heap_push(struct merge_heap *heap, uint64_t item)
{
	size_t i = heap->n++;
	while (i > 0 && heap->items[(i - 1) / 2] > item) {
		heap->items[i] = heap->items[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	heap->items[i] = item;
}

uint64_t merge_heap_pop(struct merge_heap *heap)
{
	uint64_t top = heap->items[0], item = heap->items[--heap->n];
	size_t i = 0;
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= heap->n)
			break;
		if (child + 1 < heap->n && heap->items[child + 1] < heap->items[child])
			child++;
		if (heap->items[child] >= item)
			break;
		heap->items[i] = heap->items[child];
		i = child;
	}
	heap->items[i] = item;
	return top;
}
