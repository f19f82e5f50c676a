/* Which expert each slot holds, and where each expert is: a policy's own records, from what it is
 * told. */
#pragma once

#include "services/expert-cache/policies/policy.h"

struct residents {
	uint32_t n, n_slots, n_experts;
	uint32_t *expert; /* [n_slots] layer * n_experts + expert + 1; 0: empty */
	uint32_t *slot; /* [n_layers][n_experts] slot + 1; 0: not resident */
};

int residents_init(
	struct residents *residents, const struct cache_policy_shape *shape, struct error *err);
void residents_exit(struct residents *residents);

static inline uint32_t residents_id(
	const struct residents *residents, uint32_t layer, uint32_t expert)
{
	return layer * residents->n_experts + expert;
}
/* id: from residents_id. SLOT_NONE when not resident. */
static inline uint32_t residents_slot(const struct residents *residents, uint32_t id)
{
	return residents->slot[id] == 0 ? SLOT_NONE : residents->slot[id] - 1;
}
static inline bool residents_holds(const struct residents *residents, uint32_t slot)
{
	return residents->expert[slot] != 0;
}
/* The id in a slot that is not empty. */
static inline uint32_t residents_at(const struct residents *residents, uint32_t slot)
{
	return residents->expert[slot] - 1;
}
/* False when the slot is out of range or not empty, or the expert is in another slot. */
bool residents_add(struct residents *residents, uint32_t slot, uint32_t layer, uint32_t expert);
/* False when the slot was empty. */
bool residents_remove(struct residents *residents, uint32_t slot);

/* Passes the caller's question "may this slot be evicted?" to heap_least, which asks it about the
 * experts of one layer. */
struct residents_question {
	const struct residents *residents;
	uint32_t layer;
	bool (*may)(void *arg, uint32_t slot);
	void *arg;
};
/* question: a struct residents_question; expert: a resident expert of its layer. */
bool residents_may(void *question, uint32_t expert);
