#include "services/expert-cache/hints/hint_worth.h"

/* A read in vain costs as much as a used one saves: a load that somebody waits for. */
static bool pays(const struct hint_worth *worth)
{
	/* Making hints costs something as well: fewer than one saved load in this many passes does
	 * not count. */
	return worth->used > worth->vain && worth->used - worth->vain >= HINT_WORTH_TRIAL / 8;
}

void hint_worth_read(struct hint_worth *worth, bool used)
{
	if (used)
		worth->used++;
	else
		worth->vain++;
}

bool hint_worth_pass(struct hint_worth *worth)
{
	uint32_t most = worth->resting ? HINT_WORTH_REST : HINT_WORTH_TRIAL;
	if (++worth->passes <= most)
		return !worth->resting;
	*worth = (struct hint_worth){.resting = !worth->resting && !pays(worth), .passes = 1};
	return !worth->resting;
}
