/*
 * The graphs of a stream, which both runtimes keep: by key, with the memory of the arrays that their
 * kernels read. When the memory or the list is full, all of them go, and are recorded again.
 */
#pragma once

#include "kernels/gpu/runtime.h"

#include <cassert>

enum {
	GRAPHS_MAX = 1024,
	GRAPH_ARGS_BYTES = 2 << 20,
	GRAPH_ARGS_ONE = 128 << 10, /* for one graph, at most */
};

struct graph_entry {
	uint64_t key;
	void *graph; /* the runtime's */
};

struct graph_list {
	struct graph_entry of[GRAPHS_MAX]; /* [n] ascending by key */
	unsigned n;
	unsigned char *memory; /* GRAPH_ARGS_BYTES */
	size_t used;
};

static inline unsigned graph_list_before(const struct graph_list *list, uint64_t key)
{
	unsigned first = 0, end = list->n;

	while (first < end) {
		unsigned middle = first + (end - first) / 2;

		if (list->of[middle].key < key)
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

/* The graph of this key, or null. */
static inline void *graph_list_find(const struct graph_list *list, uint64_t key)
{
	unsigned i = graph_list_before(list, key);

	return i < list->n && list->of[i].key == key ? list->of[i].graph : nullptr;
}

/* True when there is no room for another graph. */
static inline bool graph_list_full(const struct graph_list *list)
{
	return list->n == GRAPHS_MAX || list->used + GRAPH_ARGS_ONE > GRAPH_ARGS_BYTES;
}

static inline void graph_list_add(struct graph_list *list, uint64_t key, void *graph)
{
	unsigned i = graph_list_before(list, key);

	assert(list->n < GRAPHS_MAX);
	memmove(&list->of[i + 1], &list->of[i], (list->n - i) * sizeof(*list->of));
	list->of[i] = {key, graph};
	list->n++;
}

/* Memory of the graph that is being recorded. */
static inline void *graph_list_take(struct graph_list *list, size_t bytes)
{
	size_t all = (bytes + 63) / 64 * 64;

	assert(list->used + all <= GRAPH_ARGS_BYTES);
	void *at = list->memory + list->used;
	list->used += all;
	return at;
}
