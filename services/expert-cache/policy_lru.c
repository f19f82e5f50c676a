/*
 * Least recently used, by activation: the policy of Mixtral-Offloading (Eliseev and Mazur, arXiv 2312.17238, section 3.1),
 * over all layers at once. A doubly linked list by slot index; what is loaded or used goes to its young end.
 */
#include "services/expert-cache/prefetch_queue.h"

#include <stdlib.h>

struct lru {
	struct prefetch_queue queue; /* hints of experts that are not resident */
	uint32_t n_slots;
	/* Entry n_slots is the list's head: its next is the oldest slot, its previous the youngest. A slot outside the
	 * list points at itself. */
	struct {
		uint32_t previous, next;
	} link[];
};

static int lru_create(const struct cache_policy_shape *shape, void **out, struct error *err)
{
	struct lru *lru =
		malloc(sizeof(*lru) + ((size_t)shape->n_slots + 1) * sizeof(lru->link[0]));
	if (lru == NULL)
		return error_set(
			err, ENOMEM, "no memory for the order of %u slots", shape->n_slots);
	lru->n_slots = shape->n_slots;
	for (uint32_t i = 0; i <= shape->n_slots; i++)
		lru->link[i].previous = lru->link[i].next = i;
	int status = prefetch_queue_init(
		&lru->queue, shape->n_layers, shape->n_experts, shape->queue_max, err);
	if (status != 0) {
		free(lru);
		return status;
	}
	*out = lru;
	return 0;
}

static void unlink_slot(struct lru *lru, uint32_t slot)
{
	uint32_t previous = lru->link[slot].previous, next = lru->link[slot].next;
	lru->link[previous].next = next;
	lru->link[next].previous = previous;
	lru->link[slot].previous = lru->link[slot].next = slot;
}

static void make_youngest(struct lru *lru, uint32_t slot)
{
	uint32_t head = lru->n_slots, youngest = lru->link[head].previous;
	lru->link[slot].previous = youngest;
	lru->link[slot].next = head;
	lru->link[youngest].next = slot;
	lru->link[head].previous = slot;
}

static void lru_touch(struct lru *lru, uint32_t slot)
{
	if (slot >= lru->n_slots)
		return;
	unlink_slot(lru, slot);
	make_youngest(lru, slot);
}

static void lru_load(
	void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why)
{
	(void)layer;
	(void)expert;
	(void)why;
	lru_touch(policy, slot);
}

static void lru_evict(void *policy, uint32_t slot)
{
	unlink_slot(policy, slot);
}

static void lru_demand(void *policy, const struct cache_use *use)
{
	struct lru *lru = policy;
	prefetch_queue_remove(&lru->queue, use->layer, use->expert);
	lru_touch(lru, use->slot);
}

static void lru_use(void *policy, const struct cache_use *use)
{
	lru_touch(policy, use->slot);
}

/* A hint for what is resident says that it will be used. */
static void lru_hint(void *policy, const struct cache_hint *hint, uint32_t slot)
{
	struct lru *lru = policy;
	struct cache_prefetch prefetch = {
		hint->layer, hint->expert, hint->score, hint->needed_by_ns};
	if (slot != SLOT_NONE)
		lru_touch(lru, slot);
	else
		prefetch_queue_add(&lru->queue, &prefetch);
}

static bool lru_next(void *policy, uint64_t now_ns, struct cache_prefetch *out)
{
	struct lru *lru = policy;
	return prefetch_queue_take(&lru->queue, now_ns, out);
}

static void lru_put_back(void *policy, const struct cache_prefetch *prefetch)
{
	struct lru *lru = policy;
	prefetch_queue_add(&lru->queue, prefetch);
}

static uint32_t lru_queued(const void *policy)
{
	const struct lru *lru = policy;
	return lru->queue.n;
}

static uint32_t lru_victim(void *policy, const struct cache_prefetch *want, enum load_reason why,
	bool (*may)(void *arg, uint32_t slot), void *arg)
{
	const struct lru *lru = policy;
	(void)want;
	(void)why;
	for (uint32_t slot = lru->link[lru->n_slots].next; slot != lru->n_slots;
		slot = lru->link[slot].next)
		if (may(arg, slot))
			return slot;
	return SLOT_NONE;
}

static void lru_destroy(void *policy)
{
	struct lru *lru = policy;
	prefetch_queue_exit(&lru->queue);
	free(lru);
}

const struct cache_policy_ops policy_lru = {
	.name = "lru",
	.help = "least recently used (Mixtral-Offloading); prefetches every hint",
	.create = lru_create,
	.destroy = lru_destroy,
	.on_load = lru_load,
	.on_evict = lru_evict,
	.on_demand = lru_demand,
	.on_activation = lru_use,
	.on_hint = lru_hint,
	.next = lru_next,
	.put_back = lru_put_back,
	.queued = lru_queued,
	.victim = lru_victim,
};
