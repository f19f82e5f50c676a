#include "shared/spec/utility.h"

#include <stdlib.h>

/* lambda = FORGET / OF. */
enum { FORGET = 1, OF = 10 };

static uint16_t at_least_one(uint32_t boundary)
{
	return (uint16_t)(boundary > 1 ? boundary : 1);
}

int utility_init(struct utility *utility, uint32_t n_ids, uint32_t gamma, struct error *err)
{
	utility->n_ids = n_ids;
	utility->of = calloc(n_ids, sizeof(*utility->of));
	if (utility->of == NULL)
		return error_set(err, ENOMEM, "no memory for the utility of %u experts", n_ids);
	utility_begin(utility, gamma);
	return 0;
}

void utility_exit(struct utility *utility)
{
	free(utility->of);
	utility->of = NULL;
}

uint64_t utility_scale(uint32_t frequency, uint32_t from, uint32_t to)
{
	return (2 * (uint64_t)frequency * to + from) / (2 * (uint64_t)from);
}

static uint32_t bound_of(uint32_t gamma)
{
	return gamma < UTILITY_BOUND ? at_least_one(gamma) : UTILITY_BOUND;
}

void utility_begin(struct utility *utility, uint32_t gamma)
{
	uint16_t boundary = at_least_one(gamma / 2);
	utility->bound = bound_of(gamma);
	for (uint32_t i = 0; i < utility->n_ids; i++)
		utility->of[i] = (struct utility_state){.up = boundary, .down = boundary};
}

void utility_follow(struct utility *utility, uint32_t from, uint32_t to)
{
	uint16_t boundary = at_least_one(to / 2);
	utility->bound = bound_of(to);
	for (uint32_t i = 0; i < utility->n_ids; i++) {
		struct utility_state *state = &utility->of[i];
		uint64_t scaled = utility_scale(state->frequency, from + 1, to + 1);
		state->frequency = (uint16_t)(scaled < UINT16_MAX ? scaled : UINT16_MAX);
		state->up = state->down = boundary;
		if (state->score > utility->bound)
			state->score = (uint8_t)utility->bound;
	}
}

static uint16_t calibrate(uint16_t boundary, uint32_t change)
{
	return at_least_one(((OF - FORGET) * boundary + FORGET * change) / OF);
}

uint8_t utility_step(struct utility *utility, uint32_t id, uint32_t frequency)
{
	struct utility_state *state = &utility->of[id];
	uint16_t now = (uint16_t)(frequency < UINT16_MAX ? frequency : UINT16_MAX);
	int change = (int)now - (int)state->frequency;
	if (change >= state->up)
		state->score = (uint8_t)(state->score + (state->score < utility->bound));
	else if (-change >= state->down)
		state->score = (uint8_t)(state->score - (state->score > 0));
	if (change > 0)
		state->up = calibrate(state->up, (uint32_t)change);
	else if (change < 0)
		state->down = calibrate(state->down, (uint32_t)-change);
	state->frequency = now;
	return state->score;
}
