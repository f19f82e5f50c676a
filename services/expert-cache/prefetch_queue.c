#include "services/expert-cache/prefetch_queue.h"

#include <math.h>
#include <stdlib.h>

static uint32_t *place_of(const struct prefetch_queue *queue, const struct cache_prefetch *prefetch)
{
	return &queue->place[(size_t)prefetch->layer * queue->n_experts + prefetch->expert];
}

int prefetch_queue_init(struct prefetch_queue *queue, uint32_t n_layers, uint32_t n_experts,
	uint32_t max, struct error *err)
{
	*queue = (struct prefetch_queue){.max = max, .n_experts = n_experts};
	queue->heap = calloc(max, sizeof(*queue->heap));
	queue->place = calloc((size_t)n_layers * n_experts, sizeof(*queue->place));
	if (queue->heap != NULL && queue->place != NULL)
		return 0;
	prefetch_queue_exit(queue);
	return error_set(err, ENOMEM, "no memory for %u prefetches", max);
}

void prefetch_queue_exit(struct prefetch_queue *queue)
{
	free(queue->heap);
	free(queue->place);
	queue->heap = NULL;
	queue->place = NULL;
}

static void put(struct prefetch_queue *queue, uint32_t at, const struct cache_prefetch *prefetch)
{
	queue->heap[at] = *prefetch;
	*place_of(queue, prefetch) = at + 1;
}

static void rise(struct prefetch_queue *queue, uint32_t at)
{
	struct cache_prefetch prefetch = queue->heap[at];
	while (at > 0 && queue->heap[(at - 1) / 2].score < prefetch.score) {
		put(queue, at, &queue->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	put(queue, at, &prefetch);
}

static void sink(struct prefetch_queue *queue, uint32_t at)
{
	struct cache_prefetch prefetch = queue->heap[at];
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= queue->n)
			break;
		if (child + 1 < queue->n && queue->heap[child + 1].score > queue->heap[child].score)
			child++;
		if (queue->heap[child].score <= prefetch.score)
			break;
		put(queue, at, &queue->heap[child]);
		at = child;
	}
	put(queue, at, &prefetch);
}

static void remove_at(struct prefetch_queue *queue, uint32_t at)
{
	*place_of(queue, &queue->heap[at]) = 0;
	struct cache_prefetch last = queue->heap[--queue->n];
	if (at == queue->n)
		return;
	put(queue, at, &last);
	rise(queue, at);
	sink(queue, *place_of(queue, &last) - 1);
}

/* The lowest score is among the leaves. */
static uint32_t lowest(const struct prefetch_queue *queue)
{
	uint32_t at = queue->n / 2;
	for (uint32_t i = at + 1; i < queue->n; i++)
		if (queue->heap[i].score < queue->heap[at].score)
			at = i;
	return at;
}

void prefetch_queue_add(struct prefetch_queue *queue, const struct cache_prefetch *prefetch)
{
	if (!isfinite(prefetch->score))
		return;
	uint32_t place = *place_of(queue, prefetch);
	if (place != 0) {
		struct cache_prefetch *old = &queue->heap[place - 1];
		if (old->needed_by_ns != 0 &&
			(prefetch->needed_by_ns == 0 || prefetch->needed_by_ns > old->needed_by_ns))
			old->needed_by_ns = prefetch->needed_by_ns;
		if (prefetch->score > old->score) {
			old->score = prefetch->score;
			rise(queue, place - 1);
		}
		return;
	}
	if (queue->n == queue->max) {
		uint32_t worst = lowest(queue);
		queue->dropped++;
		if (queue->heap[worst].score >= prefetch->score)
			return;
		remove_at(queue, worst);
	}
	queue->heap[queue->n] = *prefetch;
	rise(queue, queue->n++);
}

void prefetch_queue_remove(struct prefetch_queue *queue, uint32_t layer, uint32_t expert)
{
	struct cache_prefetch key = {.layer = layer, .expert = expert};
	uint32_t place = *place_of(queue, &key);
	if (place != 0)
		remove_at(queue, place - 1);
}

bool prefetch_queue_take(struct prefetch_queue *queue, uint64_t now_ns, struct cache_prefetch *out)
{
	while (queue->n > 0) {
		*out = queue->heap[0];
		remove_at(queue, 0);
		if (out->needed_by_ns == 0 || out->needed_by_ns > now_ns)
			return true;
		queue->dropped++;
	}
	return false;
}
