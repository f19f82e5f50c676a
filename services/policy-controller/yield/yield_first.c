/* yield: the purse and the K with which a session begins, from what earlier sessions left. */
#include "services/policy-controller/yield/yield_plan.h"

#include <math.h>

#define FIRST_SHARE 0.25 /* of a purse: every session begins with at least this share */
/* of a purse: sessions begin with K > 0 while those before leave more than this */
#define CREDIT_SHARE 0.5
#define MORE_MAX 2.0 /* purses */
#define FIRST_EVERY 16u /* plans */
#define FIRST_TOKENS 24.0 /* tokens that must have been reached in first drafts */
#define FIRST_GAIN 1.02 /* a K must promise this many times the rate at K = 0 */

double yield_grant(const struct policy_state *s)
{
	double purse = s->settings.purse, credit = yield_shared(s)->credit;
	if (isnan(credit))
		return purse;
	double more =
		fmin(fmax(credit - purse, 0) / fmax(s->passes->sessions, 1), purse * MORE_MAX);
	return fmax(fmin(credit, purse) + more, purse * FIRST_SHARE);
}

/* Uses only the first drafts of sessions: later ones come from those sessions where drafting went
 * on paying. */
void yield_choose_first(const struct yield_plan_pass *p)
{
	struct yield_shared *shared = p->shared;
	const struct policy_state *s = p->states[0];
	const struct acceptance *firsts = &shared->firsts[shared->method];
	struct acceptance_drafts drafts;
	double drafted[LIMIT_DRAFT_DEPTH], accepted[LIMIT_DRAFT_DEPTH], gained = 0, extra = 0;
	if (shared->n_plans++ % FIRST_EVERY != 0)
		return;
	shared->first_k = 0;
	/* false also while credit is NAN: no session has drafted */
	if (!(shared->credit > s->settings.purse * CREDIT_SHARE) ||
		(double)firsts->tried < FIRST_TOKENS ||
		cost_draft_evidence(&p->passes->cost, shared->method) < YIELD_WARM_DRAFTS)
		return;
	acceptance_drafts(firsts, NULL, (uint32_t)s->settings.k_max, &drafts);
	acceptance_predict(&drafts, (uint32_t)s->settings.k_max, NULL, drafted, accepted);
	double most = plan_rate_of(p, 0, 0, 0) * fmax(FIRST_GAIN, s->settings.threshold);
	for (uint32_t k = 1; k <= (uint32_t)s->settings.k_max; k++) {
		gained += accepted[k - 1];
		extra += drafted[k - 1];
		double rate = plan_rate_of(p, gained, extra, plan_wait_of(p, 0, k));
		if (rate > most) {
			most = rate;
			shared->first_k = k;
		}
	}
}
