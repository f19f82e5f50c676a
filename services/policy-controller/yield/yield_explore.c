/* yield: what a session that does not draft, or drafts less, could find out by a trial. */
#include "services/policy-controller/yield/yield_plan.h"

#include <math.h>

#define HOPELESS_EVERY 2048u
#define TRUST_PRIOR 3.0 /* iterations, added to both what was promised and what was brought */
#define TRUST_LEFT (1 - 1.0 / 8192)
#define WORST_SHARE 0.3 /* weight of a trial that brings nothing, in the cost of a trial */

/* sd (phi(z) + z Phi(z)) for a mean that lies `behind` below the best. */
static double improvement(double behind, double sd)
{
	double z = -behind / sd;
	if (!(sd > 0) || z < -6)
		return 0;
	double density = exp(-0.5 * z * z) * 0.3989422804014327;
	return sd * (density + z * 0.5 * erfc(-z * 0.7071067811865476));
}

double yield_change_worth(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, bool waits)
{
	static const double acceptances[] = {0.15, 0.5, 0.9};
	const size_t n = sizeof(acceptances) / sizeof(*acceptances);
	uint32_t k_max = (uint32_t)p->states[index]->settings.k_max;
	double worth = 0, before = p->others + c->other_extra, takes[LIMIT_DRAFT_DEPTH + 1];
	double base = passes_at(p->passes, before);
	for (uint32_t k = 1; k <= k_max; k++) {
		double wait = yield_max(c->other_wait, waits ? plan_wait_of(p, index, k) : 0);
		double pass = passes_at(p->passes, before + k);
		/* Passes may be shorter now than when they last took this long. */
		pass *= exp(-plan_cost_doubt(p, c->other_extra + k, pass / base));
		takes[k] = pass + wait;
	}
	for (size_t i = 0; i < n; i++) {
		double chance = 1, gained = 0, most = 0;
		for (uint32_t k = 1; k <= k_max; k++) {
			chance *= acceptances[i];
			gained += chance;
			double rate = (p->sessions + c->other_gain + gained) / takes[k];
			most = yield_max(most, rate / c->rate[0] - 1);
		}
		worth += most / (double)n;
	}
	return worth;
}

/* Begins with one change in `phase` iterations. */
double yield_change_rate(const struct policy_state *s)
{
	return (1.0 + yield_of(s)->acceptance.n_alarms) /
	       (double)(s->settings.phase + (int64_t)yield_of(s)->iterations);
}

double yield_trust(const struct yield_shared *shared)
{
	return (TRUST_PRIOR + shared->brought) / (TRUST_PRIOR + shared->promised);
}

void yield_trust_promised(struct yield_shared *shared, const struct yield_view *view, uint32_t k)
{
	/* What the trial costs will be subtracted from its measured gains, so it is added here. */
	shared->promised += (double)view->brings[k] / yield_trust(shared);
	shared->brought = fmin(shared->brought + (double)view->costs[k], shared->promised);
}

void yield_trust_won(struct yield_shared *shared, double won)
{
	shared->brought = fmin(fmax(shared->brought + won, 0), shared->promised);
}

void yield_trust_fade(struct yield_shared *shared)
{
	shared->promised *= TRUST_LEFT;
	shared->brought *= TRUST_LEFT;
}

double yield_trial_loss(
	const struct yield_plan_pass *p, uint32_t index, const struct yield_choice *c, uint32_t k)
{
	const struct policy_state *s = p->states[index];
	/* A drafter with confidences drafts only what is worth it, judging by the last drafts. */
	double extra = acceptance_informed(&yield_of(s)->acceptance)
			       ? p->shared->options[index].extra[k]
			       : k;
	double others = p->others + c->other_extra;
	double pass = passes_at(p->passes, others + extra) + plan_wait_of(p, index, k);
	return p->sessions * (pass / passes_at(p->passes, others) - 1);
}

/* The cost of a trial of k from K = 0, in iterations at K = 0: a weighted mean of what it is
 * believed to lose, for as long as its pass takes, and of what it loses when nothing is accepted;
 * and the extra wait for a first draft. */
static double trial_costs(const struct yield_plan_pass *p, uint32_t index,
	const struct yield_choice *c, double behind, double loss, uint32_t k)
{
	const struct policy_state *s = p->states[index];
	double first = cost_draft_first(&p->passes->cost, yield_method(s));
	double base = passes_at(p->passes, p->others + c->other_extra);
	double longer = yield_max(loss, 0) / p->sessions;
	double beyond = yield_max(first - plan_wait_of(p, index, k), 0);
	return WORST_SHARE * fmax(behind, loss) + (1 - WORST_SHARE) * behind * (1 + longer) +
	       p->sessions * beyond / base;
}

uint32_t yield_explore(const struct yield_plan_pass *p, uint32_t index,
	const struct yield_choice *c, uint32_t best)
{
	const struct policy_state *s = p->states[index];
	struct yield_view *view = &yield_own(p->states[index])->view;
	uint32_t chosen = best;
	double most = 0, rate = yield_change_rate(s), changed = 0;
	/* A K that cannot pay at any acceptance is tried again only in case the costs have changed.
	 */
	if (best == 0 && !(c->hope > 0) && (p->shared->hopeless += p->n_passes) < HOPELESS_EVERY)
		return best;
	if (best == 0)
		p->shared->hopeless = 0;
	double horizon =
		s->settings.horizon > 0 ? 1 / (1.0 / (double)s->settings.horizon + rate) : 0;
	double purse = yield_of(s)->purse * (best == 0 ? YIELD_TRIAL_SHARE : 1);
	if (best == 0 && yield_of(s)->unseen > 0)
		changed = (1 - exp(-rate * yield_of(s)->unseen)) * c->hope;
	for (uint32_t k = 0; k <= (uint32_t)s->settings.k_max; k++) {
		/* A share of the pass's rate. Times the number of sessions it becomes iterations of
		 * a session. */
		double behind = 1 - c->rate[k] / c->rate[best];
		double loss = yield_trial_loss(p, index, c, k);
		if (k == best || (k > best && loss > purse) ||
			c->late[k] > yield_max(c->late[best], 1))
			continue;
		/* While it drafts, every K learns about acceptance alike; only what passes take has
		 * to be tried. */
		double sd = best == 0 ? c->sd[k] : c->sd_cost[k];
		double found = changed * (1 - ldexp(1, -(int)k));
		double brings = p->sessions * horizon * (improvement(behind, sd) + found);
		if (best == 0)
			brings *= yield_trust(p->shared);
		double costs = p->sessions * behind;
		if (best == 0)
			costs = trial_costs(p, index, c, costs, loss, k);
		double value = brings - costs;
		view->weighed |= UINT64_C(1) << k;
		view->brings[k] = (float)brings;
		view->costs[k] = (float)costs;
		if (value > most) {
			most = value;
			chosen = k;
		}
	}
	return chosen;
}
