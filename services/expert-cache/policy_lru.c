/*
 * Least recently used, by activation: the policy of Mixtral-Offloading (Eliseev and Mazur, arXiv 2312.17238, section 3.1),
 * over all layers at once. A doubly linked list by slot index; what is loaded or used goes to its young end.
 */
#include "services/expert-cache/policy.h"
#include "shared/spec/slots.h"

#include <stdlib.h>

struct lru {
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

static void lru_use(void *policy, uint32_t layer, uint32_t expert, uint32_t slot, uint32_t tokens,
	uint64_t iteration)
{
	(void)layer;
	(void)expert;
	(void)tokens;
	(void)iteration;
	lru_touch(policy, slot);
}

/* A hint for what is resident says that it will be used. */
static void lru_hint(void *policy, uint32_t layer, uint32_t expert, uint32_t slot, float score,
	uint64_t needed_by_ns)
{
	(void)layer;
	(void)expert;
	(void)score;
	(void)needed_by_ns;
	lru_touch(policy, slot);
}

static uint32_t lru_victim(void *policy, bool (*may)(void *arg, uint32_t slot), void *arg)
{
	const struct lru *lru = policy;
	for (uint32_t slot = lru->link[lru->n_slots].next; slot != lru->n_slots;
		slot = lru->link[slot].next)
		if (may(arg, slot))
			return slot;
	return SLOT_NONE;
}

const struct cache_policy_ops policy_lru = {
	.name = "lru",
	.create = lru_create,
	.destroy = free,
	.on_load = lru_load,
	.on_evict = lru_evict,
	.on_demand = lru_use,
	.on_activation = lru_use,
	.on_hint = lru_hint,
	.victim = lru_victim,
};
