/* cascade's search for the best K: where a test begins, what it tries next, and when it ends. */
#include "services/policy-controller/policy.h"

#include <math.h>

uint32_t cascade_allowed(const struct policy_state *s, uint32_t k)
{
	return k < (uint32_t)s->settings.k_max ? k : (uint32_t)s->settings.k_max;
}

void cascade_remember(struct cascade *c, uint32_t k, double utility)
{
	c->history[c->n_history++ % CASCADE_HISTORY] = (struct cascade_result){k, (float)utility};
}

/* K_start (section 5.3): the non-zero K of recent history with the highest utility; of equals
 * the newest. */
uint32_t cascade_start_k(const struct policy_state *s)
{
	const struct cascade *c = &s->cascade;
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

/* On in the direction that raised utility, else back (section 5.6); below the threshold only downwards, K = 1 being the most
 * cautious (section 5.4). Values are tried once per test. */
uint32_t cascade_next_k(const struct policy_state *s, float utility)
{
	const struct cascade *c = &s->cascade;
	bool up = (s->k > c->prev_k) == (utility > c->prev_utility);
	if (utility < (float)s->settings.threshold)
		up = false;
	uint32_t k = s->k;
	do
		k = up ? k + 1 : k - 1;
	while (k > 0 && k <= LIMIT_DRAFT && (c->tested >> k & 1));
	return k;
}

const char *cascade_early_exit(const struct policy_state *s, float utility, uint32_t next)
{
	const struct cascade *c = &s->cascade;
	if (s->k == 1 && utility < (float)s->settings.threshold)
		return "K = 1 does not pay";
	if (c->trial > 1 && c->falls >= (uint32_t)s->settings.falls)
		return "utility fell in successive trials";
	if (c->trial > 1 &&
		fabsf(utility - c->prev_utility) <= (float)s->settings.converge * c->prev_utility)
		return "successive utilities are close";
	if (c->trial >= (uint32_t)s->settings.trials)
		return "all trials made";
	if (next == 0)
		return "K reached 0";
	return next > (uint32_t)s->settings.k_max ? "K reached k_max" : NULL;
}
