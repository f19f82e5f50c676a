/*
 * Weights that a device has copies of, which both runtimes keep: a list in ascending order of the
 * host's addresses. A tensor may be placed several times, and then has one copy. Any thread; a
 * look-up takes a fraction of a microsecond.
 */
#pragma once

#include "kernels/gpu/runtime.h"

#include <pthread.h>

struct placed {
	const unsigned char *host;
	size_t bytes;
	unsigned char *device;
	unsigned times;
};

struct placed_list {
	pthread_mutex_t mutex;
	struct placed *of; /* [n] ascending by host, then by bytes */
	size_t n, capacity;
};

static inline void placed_init(struct placed_list *list)
{
	*list = {};
	pthread_mutex_init(&list->mutex, nullptr);
}

static inline void placed_exit(struct placed_list *list)
{
	pthread_mutex_destroy(&list->mutex);
	free(list->of);
}

/* The number of entries that come before (at, bytes). Call with the mutex held. */
static inline size_t placed_before(
	const struct placed_list *list, const unsigned char *at, size_t bytes)
{
	size_t first = 0, end = list->n;

	while (first < end) {
		size_t middle = first + (end - first) / 2;
		const struct placed *p = &list->of[middle];

		if (p->host < at || (p->host == at && p->bytes < bytes))
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

/* The entry of exactly these bytes, or null. Call with the mutex held. */
static inline struct placed *placed_exactly(struct placed_list *list, const void *at, size_t bytes)
{
	const unsigned char *host = static_cast<const unsigned char *>(at);
	size_t i = placed_before(list, host, bytes);

	return i < list->n && list->of[i].host == host && list->of[i].bytes == bytes ? &list->of[i]
										     : nullptr;
}

/* Adds an entry. -ENOMEM. Call with the mutex held. */
static inline int placed_add(struct placed_list *list, const void *at, size_t bytes, void *device)
{
	const unsigned char *host = static_cast<const unsigned char *>(at);

	if (list->n == list->capacity) {
		size_t capacity = list->capacity ? 2 * list->capacity : 256;
		void *of = realloc(list->of, capacity * sizeof(*list->of));

		if (!of)
			return -ENOMEM;
		list->of = static_cast<struct placed *>(of);
		list->capacity = capacity;
	}
	size_t i = placed_before(list, host, bytes);
	memmove(&list->of[i + 1], &list->of[i], (list->n - i) * sizeof(*list->of));
	list->of[i] = {host, bytes, static_cast<unsigned char *>(device), 1};
	list->n++;
	return 0;
}

/* Call with the mutex held. */
static inline void placed_remove(struct placed_list *list, struct placed *p)
{
	size_t i = static_cast<size_t>(p - list->of);

	memmove(p, p + 1, (list->n - i - 1) * sizeof(*p));
	list->n--;
}

/* Where the device has bytes [at, at + bytes), or null. */
static inline const void *placed_find(struct placed_list *list, const void *at, size_t bytes)
{
	const unsigned char *host = static_cast<const unsigned char *>(at);
	const void *found = nullptr;

	pthread_mutex_lock(&list->mutex);
	/* Entries may overlap, but hardly ever do: the first that is looked at has it. */
	for (size_t i = placed_before(list, host, SIZE_MAX); i-- > 0 && !found;) {
		const struct placed *p = &list->of[i];
		size_t from = static_cast<size_t>(host - p->host);

		if (from <= p->bytes && bytes <= p->bytes - from)
			found = p->device + from;
	}
	pthread_mutex_unlock(&list->mutex);
	return found;
}
