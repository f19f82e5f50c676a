/*
 * yield: whether drafts are trees. Nodes that do not pay are left out by the verifier
 * (verifier/pass/node_pick.h), so what a wider draft costs is the drafting, and what the nodes cost
 * that it verifies beside the main path; it brings the tokens that were accepted there. All three
 * are measured, by method and over all sessions. The other width is tried for one plan in
 * TRY_EVERY.
 */
#include "services/policy-controller/yield/yield_plan.h"

#define FADE (1 - 1.0 / 64)
#define TRY_EVERY 32u
#define KNOWN 4.0 /* drafts of a width from which on it counts as known */

static void mean(double *sum, double *n, double value)
{
	*sum = *sum * FADE + value;
	*n = *n * FADE + 1;
}

void yield_width_observe(struct policy_state *s, const struct iteration_record *record)
{
	struct yield_width *w = &yield_shared(s)->width[yield_method(s)];
	bool wide = record->width > 1;
	if (record->k == 0)
		return;
	mean(&w->wait[wide], &w->waits[wide], (double)record->draft_ns / record->k);
	if (!wide)
		return;
	w->drafts = w->drafts * FADE + 1;
	w->beside = w->beside * FADE + record->beside;
	w->nodes = w->nodes * FADE + (double)(record->drafted - record->depth);
}

/* What alternatives win in a pass, in ns, drafting k tokens. */
static double surplus(
	const struct yield_plan_pass *p, const struct yield_width *w, uint32_t k, double extra)
{
	double brings = w->beside / w->drafts / p->rate, nodes = w->nodes / w->drafts;
	double most = COST_EXTRA_MAX - 1, at = yield_min(extra, most);
	double verify =
		passes_at(p->passes, yield_min(at + nodes, most)) - passes_at(p->passes, at);
	double narrow = w->waits[0] > 0 ? w->wait[0] / w->waits[0] : 0;
	double wide = w->waits[1] > 0 ? w->wait[1] / w->waits[1] : 0;
	return brings - verify - k * yield_max(wide - narrow, 0);
}

uint32_t yield_width(const struct yield_plan_pass *p, uint32_t index, uint32_t k, double extra)
{
	struct policy_state *s = p->states[index];
	struct yield *y = yield_own(s);
	const struct yield_width *w = &p->shared->width[yield_method(s)];
	uint32_t most = (uint32_t)s->settings.width;
	if (most <= 1 || k == 0)
		return most <= 1 ? 0 : 1;
	bool wide = w->drafts < KNOWN || surplus(p, w, k, extra) > 0;
	if (++y->widths >= TRY_EVERY) {
		y->widths = 0;
		wide = !wide;
	}
	return wide ? most : 1;
}
