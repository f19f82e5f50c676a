#include "services/expert-cache/policies/residents.h"

#include <stdlib.h>

int residents_init(
	struct residents *residents, const struct cache_policy_shape *shape, struct error *err)
{
	*residents = (struct residents){.n_slots = shape->n_slots, .n_experts = shape->n_experts};
	residents->expert = calloc(shape->n_slots, sizeof(*residents->expert));
	residents->slot =
		calloc((size_t)shape->n_layers * shape->n_experts, sizeof(*residents->slot));
	if (residents->expert != NULL && residents->slot != NULL)
		return 0;
	residents_exit(residents);
	return error_set(err, ENOMEM, "no memory to know what %u slots hold", shape->n_slots);
}

void residents_exit(struct residents *residents)
{
	free(residents->expert);
	free(residents->slot);
	*residents = (struct residents){0};
}

bool residents_add(struct residents *residents, uint32_t slot, uint32_t layer, uint32_t expert)
{
	uint32_t id = residents_id(residents, layer, expert);
	if (slot >= residents->n_slots || residents->expert[slot] != 0 || residents->slot[id] != 0)
		return false;
	residents->expert[slot] = id + 1;
	residents->slot[id] = slot + 1;
	residents->n++;
	return true;
}

bool residents_remove(struct residents *residents, uint32_t slot)
{
	if (slot >= residents->n_slots || residents->expert[slot] == 0)
		return false;
	residents->slot[residents->expert[slot] - 1] = 0;
	residents->expert[slot] = 0;
	residents->n--;
	return true;
}

bool residents_may(void *question, uint32_t expert)
{
	const struct residents_question *q = question;
	uint32_t id = residents_id(q->residents, q->layer, expert);
	return q->may(q->arg, residents_slot(q->residents, id));
}
