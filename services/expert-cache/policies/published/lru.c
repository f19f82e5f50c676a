#include "services/expert-cache/policies/published/lru.h"

int lru_init(struct lru *lru, const struct cache_policy_shape *shape, struct error *err)
{
	*lru = (struct lru){.order = {.link = NULL}};
	int status = id_lists_init(&lru->order, shape->n_slots, 1, err);
	if (status == 0)
		status = prefetch_queue_init(
			&lru->queue, shape->n_layers, shape->n_experts, shape->queue_max, err);
	if (status != 0)
		lru_exit(lru);
	return status;
}

void lru_exit(struct lru *lru)
{
	prefetch_queue_exit(&lru->queue);
	id_lists_exit(&lru->order);
}

void lru_touch(struct lru *lru, uint32_t slot)
{
	if (slot < lru->order.n_ids)
		id_lists_append(&lru->order, 0, slot);
}

void lru_load(void *policy, uint32_t slot, uint32_t layer, uint32_t expert, enum load_reason why)
{
	(void)layer;
	(void)expert;
	(void)why;
	lru_touch(policy, slot);
}

void lru_evict(void *policy, uint32_t slot)
{
	struct lru *lru = policy;
	id_lists_remove(&lru->order, slot);
}

void lru_demand(void *policy, const struct cache_use *use)
{
	struct lru *lru = policy;
	prefetch_queue_remove(&lru->queue, use->layer, use->expert);
	lru_touch(lru, use->slot);
}

void lru_use(void *policy, const struct cache_use *use)
{
	lru_touch(policy, use->slot);
}

/* A hint for a resident expert says that it will be used. */
void lru_hint(void *policy, const struct cache_hint *hint, uint32_t slot)
{
	struct lru *lru = policy;
	struct cache_prefetch prefetch = {
		hint->layer, hint->expert, hint->score, hint->needed_by_ns};
	if (slot != SLOT_NONE)
		lru_touch(lru, slot);
	else if (!hint->coming)
		prefetch_queue_add(&lru->queue, &prefetch);
}

bool lru_next(void *policy, uint64_t now_ns, struct cache_prefetch *out)
{
	struct lru *lru = policy;
	return prefetch_queue_take(&lru->queue, now_ns, out);
}

void lru_put_back(void *policy, const struct cache_prefetch *prefetch)
{
	struct lru *lru = policy;
	prefetch_queue_add(&lru->queue, prefetch);
}

uint32_t lru_queued(const void *policy)
{
	const struct lru *lru = policy;
	return lru->queue.n;
}

uint32_t lru_victim(void *policy, const struct cache_prefetch *want, enum load_reason why,
	bool (*may)(void *arg, uint32_t slot), void *arg)
{
	const struct lru *lru = policy;
	(void)want;
	(void)why;
	for (uint32_t slot = id_lists_first(&lru->order, 0); slot != ID_NONE;
		slot = id_lists_next(&lru->order, slot))
		if (may(arg, slot))
			return slot;
	return SLOT_NONE;
}
