/* Which expert each slot holds, and where each expert is: a policy's own account, from what it is told. */
#pragma once

#include "services/expert-cache/policies/policy.h"

struct residents {
	uint32_t n, n_slots, n_experts;
	uint32_t *expert; /* [n_slots] layer * n_experts + expert + 1; 0 = nothing */
	uint32_t *slot; /* [n_layers][n_experts] slot + 1; 0 = not resident */
};

int residents_init(
	struct residents *residents, const struct cache_policy_shape *shape, struct error *err);
void residents_exit(struct residents *residents);

static inline uint32_t residents_id(
	const struct residents *residents, uint32_t layer, uint32_t expert)
{
	return layer * residents->n_experts + expert;
}
/* By residents_id; SLOT_NONE when it is not resident. */
static inline uint32_t residents_slot(const struct residents *residents, uint32_t id)
{
	return residents->slot[id] == 0 ? SLOT_NONE : residents->slot[id] - 1;
}
static inline bool residents_holds(const struct residents *residents, uint32_t slot)
{
	return residents->expert[slot] != 0;
}
/* What a slot that holds something holds. */
static inline uint32_t residents_at(const struct residents *residents, uint32_t slot)
{
	return residents->expert[slot] - 1;
}
/* False when the slot is none of the shape's, or holds something already, or the expert is elsewhere. */
bool residents_add(struct residents *residents, uint32_t slot, uint32_t layer, uint32_t expert);
/* False when it held nothing. */
bool residents_remove(struct residents *residents, uint32_t slot);

/* A policy's question to its caller, may this slot go, as heap_least asks it of the experts of one layer. */
struct residents_question {
	const struct residents *residents;
	uint32_t layer;
	bool (*may)(void *arg, uint32_t slot);
	void *arg;
};
/* question: a struct residents_question; expert: resident, of its layer. */
bool residents_may(void *question, uint32_t expert);
