/* cascade's search for the best K: where a test begins, which K it tries next, and when it ends. */
#include "services/policy-controller/published/cascade.h"

#include <math.h>

uint32_t cascade_allowed(const struct policy_state *s, uint32_t k)
{
	return k < (uint32_t)s->settings.k_max ? k : (uint32_t)s->settings.k_max;
}

void cascade_remember(struct cascade *c, uint32_t k, double utility)
{
	c->history[c->n_history++ % CASCADE_HISTORY] = (struct cascade_result){k, (float)utility};
}

/* K_start (section 5.3): the non-zero K with the highest utility in recent history; among equals
 * the newest. */
uint32_t cascade_start_k(const struct policy_state *s)
{
	const struct cascade *c = cascade_of(s);
	uint32_t kept = (uint32_t)s->settings.history;
	uint32_t n = c->n_history < kept ? c->n_history : kept;
	uint32_t best = cascade_allowed(s, (uint32_t)s->settings.k_start);
	float best_utility = -1;
	for (uint32_t i = 0; i < n; i++) {
		const struct cascade_result *r =
			&c->history[(c->n_history - n + i) % CASCADE_HISTORY];
		if (r->k > 0 && r->k <= s->settings.k_max && r->utility >= best_utility) {
			best = r->k;
			best_utility = r->utility;
		}
	}
	return best;
}

/* Continues in the direction that raised utility, otherwise turns back (section 5.6). Below the
 * threshold it only goes downwards: K = 1 is the most cautious (section 5.4). */
static bool goes_up(const struct policy_state *s, float utility)
{
	const struct cascade *c = cascade_of(s);
	return utility >= (float)s->settings.threshold &&
	       (s->k > c->prev_k) == (utility > c->prev_utility);
}

/* The next K, from k in this direction, that was not tried in this test; 0: none is left. */
static uint32_t untried(const struct policy_state *s, uint32_t k, bool up)
{
	do
		k = up ? k + 1 : k - 1;
	while (k > 0 && k <= (uint32_t)s->settings.k_max && (cascade_of(s)->tested >> k & 1));
	return k <= (uint32_t)s->settings.k_max ? k : 0;
}

/* If the direction leads out of 1 to k_max, it may be wrong. The direction of the first trial comes
 * from K = 0, which may lie far below and beyond the best K, so the climb turns to the neighbour on
 * the other side. Directions of later trials lie between two K that were tried; on the other side
 * utility fell, or it was tried. */
uint32_t cascade_next_k(const struct policy_state *s, float utility)
{
	bool up = goes_up(s, utility);
	uint32_t k = untried(s, s->k, up);
	if (k == 0 && cascade_of(s)->trial == 1 && utility >= (float)s->settings.threshold)
		k = untried(s, s->k, !up);
	return k;
}

const char *cascade_early_exit(const struct policy_state *s, float utility, uint32_t next)
{
	const struct cascade *c = cascade_of(s);
	if (s->k == 1 && utility < (float)s->settings.threshold)
		return "K = 1 does not pay";
	if (c->trial > 1 && c->falls >= (uint32_t)s->settings.falls)
		return "utility fell in successive trials";
	if (c->trial > 1 &&
		fabsf(utility - c->prev_utility) <= (float)s->settings.converge * c->prev_utility)
		return "successive utilities are close";
	if (c->trial >= (uint32_t)s->settings.trials)
		return "all trials were made";
	if (next > 0)
		return NULL;
	return goes_up(s, utility) ? "no higher K up to k_max is left" : "no lower K is left";
}
