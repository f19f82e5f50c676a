#include "services/expert-cache/hints/hint_worth.h"

/* One read in vain costs what one of use saves: a load that somebody waits for. */
static bool pays(const struct hint_worth *worth)
{
	/* And the making costs something: less than one saved in so many passes is nothing. */
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
