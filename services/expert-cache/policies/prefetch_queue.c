#include "services/expert-cache/policies/prefetch_queue.h"

#include <math.h>
#include <stdlib.h>

int prefetch_queue_init(struct prefetch_queue *queue, uint32_t n_layers, uint32_t n_experts,
	uint32_t max, struct error *err)
{
	*queue = (struct prefetch_queue){.max = max, .n_experts = n_experts};
	uint32_t n_ids = n_layers * n_experts;
	int status = heap_init(&queue->best, n_ids, err);
	if (status == 0)
		status = heap_init(&queue->worst, n_ids, err);
	queue->notes = calloc(n_ids, sizeof(*queue->notes));
	queue->pass = calloc(n_layers, sizeof(*queue->pass));
	if (status == 0 && queue->notes != NULL && queue->pass != NULL)
		return 0;
	prefetch_queue_exit(queue);
	return error_set(err, ENOMEM, "no memory for %u prefetches", max);
}

void prefetch_queue_exit(struct prefetch_queue *queue)
{
	heap_exit(&queue->best);
	heap_exit(&queue->worst);
	free(queue->notes);
	free(queue->pass);
	queue->notes = NULL;
	queue->pass = NULL;
}

static void set_score(struct prefetch_queue *queue, uint32_t id, float score)
{
	queue->notes[id].score = score;
	heap_set(&queue->best, id, -(double)score);
	heap_set(&queue->worst, id, (double)score);
	queue->n = queue->best.n;
}

static void remove_id(struct prefetch_queue *queue, uint32_t id)
{
	heap_remove(&queue->best, id);
	heap_remove(&queue->worst, id);
	queue->n = queue->best.n;
}

static bool obsolete(const struct prefetch_queue *queue, uint32_t id, uint64_t now_ns)
{
	const struct prefetch_note *note = &queue->notes[id];
	return note->pass != queue->pass[id / queue->n_experts] ||
	       (note->needed_by_ns != 0 && note->needed_by_ns <= now_ns);
}

void prefetch_queue_add(struct prefetch_queue *queue, const struct cache_prefetch *prefetch)
{
	if (!isfinite(prefetch->score))
		return;
	uint32_t id = prefetch->layer * queue->n_experts + prefetch->expert;
	struct prefetch_note *note = &queue->notes[id];
	float score = prefetch->score;
	if (heap_has(&queue->best, id)) {
		if (note->needed_by_ns != 0 && (prefetch->needed_by_ns == 0 ||
						       prefetch->needed_by_ns > note->needed_by_ns))
			note->needed_by_ns = prefetch->needed_by_ns;
		if (note->pass == queue->pass[prefetch->layer] && note->score > score)
			score = note->score;
	} else {
		if (queue->n == queue->max) {
			uint32_t worst = heap_top(&queue->worst);
			if (worst == HEAP_NONE || queue->notes[worst].score >= score)
				return;
			remove_id(queue, worst);
		}
		note->needed_by_ns = prefetch->needed_by_ns;
	}
	note->pass = queue->pass[prefetch->layer];
	set_score(queue, id, score);
}

void prefetch_queue_remove(struct prefetch_queue *queue, uint32_t layer, uint32_t expert)
{
	remove_id(queue, layer * queue->n_experts + expert);
}

bool prefetch_queue_has(const struct prefetch_queue *queue, uint32_t layer, uint32_t expert)
{
	return heap_has(&queue->best, layer * queue->n_experts + expert);
}

void prefetch_queue_passed(struct prefetch_queue *queue, uint32_t layer)
{
	queue->pass[layer]++;
}

static bool peek(struct prefetch_queue *queue, uint64_t now_ns, struct cache_prefetch *out)
{
	uint32_t id;
	while ((id = heap_top(&queue->best)) != HEAP_NONE) {
		if (obsolete(queue, id, now_ns)) {
			remove_id(queue, id);
			continue;
		}
		*out = (struct cache_prefetch){.layer = id / queue->n_experts,
			.expert = id % queue->n_experts,
			.score = queue->notes[id].score,
			.needed_by_ns = queue->notes[id].needed_by_ns};
		return true;
	}
	return false;
}

bool prefetch_queue_take(struct prefetch_queue *queue, uint64_t now_ns, struct cache_prefetch *out)
{
	if (!peek(queue, now_ns, out))
		return false;
	prefetch_queue_remove(queue, out->layer, out->expert);
	return true;
}
