/* yield's K in words and figures, from what the last plan weighed (struct yield_view). */
#include "services/policy-controller/yield/yield_plan.h"
#include "shared/base/plural.h"

#include <inttypes.h>
#include <math.h>

static void explain_trial(const struct policy_state *s, struct explanation *out)
{
	const struct yield_view *v = &yield_of(s)->view;
	if (v->rule == YIELD_PROOF)
		explain_say(out,
			"K = %u promises the most, but this session has drafted too few tokens to "
			"be sure: K = %u is tried for %u iteration%s first, then K = %u until "
			"their records are in.",
			v->best, s->trial_k, s->trial_n, plural(s->trial_n), s->k_then);
	else
		explain_say(out,
			"K = %u is tried for %u iteration%s, then K = %u holds: the trial may "
			"bring "
			"%.2f iterations at K = %u and costs %.2f of them.",
			s->trial_k, s->trial_n, plural(s->trial_n), s->k_then,
			(double)v->brings[s->trial_k], v->best, (double)v->costs[s->trial_k]);
}

/* Says which iteration emptied the purse, and that later sessions are not charged for the loss. */
static void explain_empty(const struct policy_state *s, struct explanation *out)
{
	const struct yield_emptied *e = &yield_of(s)->emptied;
	if (e->iteration > 0)
		explain_say(out,
			"Iteration %" PRIu64
			" of the session emptied the purse: at K = %u, with %u of %u drafted "
			"token%s accepted, it lost the time of %.2f iterations at K = 0.",
			e->iteration, e->k, e->accepted, e->drafted, plural(e->drafted),
			(double)e->lost);
	explain_say(out,
		"An empty purse ends with its session: a new session has %.2f iterations to try "
		"with.",
		yield_grant(s));
}

/* The note for a K that was not weighed as a trial while others were (yield_explore). */
static const char *trial_note(const struct policy_state *s, uint32_t k)
{
	const struct yield_view *v = &yield_of(s)->view;
	if (v->weighed == 0 || v->weighed >> k & 1)
		return NULL;
	if (v->late[k] > 1 && v->late[k] > v->late[v->best])
		return "(beyond a target)";
	return k == v->best ? "(the best)" : "(more than the purse has)";
}

/* Says why drafts can or cannot pay, as the condition tau > 1 / lambda ("Rethinking the
 * high-throughput LLM inference", section 3.1), with the wait for drafts in tau; and how the targets
 * are kept. k: the best K above 0. */
static void explain_goodput(const struct policy_state *s, uint32_t k, struct explanation *out)
{
	const struct yield_view *v = &yield_of(s)->view;
	double tau = (double)(v->time_ns[0] / v->time_ns[k]);
	double lambda = (double)(v->rate[k] / v->rate[0]) / tau;
	explain_say(out,
		"With K = %u the iteration brings %.3f times the tokens (lambda) and takes %.3f "
		"times "
		"as long (1 / tau): tau is %.3f, and drafts pay only if it is above 1 / lambda, "
		"%.3f.",
		k, lambda, 1 / tau, tau, 1 / lambda);
	if (yield_tpot(s) > 0 && v->best > 0)
		explain_say(out,
			"Target: %.3f ms per token of the session; %.3f expected at K = %u, %.3f "
			"at "
			"K = 0.",
			yield_tpot(s) / 1e6,
			(double)(v->time_ns[v->best] / v->tokens[v->best]) / 1e6, v->best,
			(double)(v->time_ns[0] / v->tokens[0]) / 1e6);
	else if (yield_tpot(s) > 0)
		explain_say(out,
			"Target: %.3f ms per token of the session; %.3f expected at K = 0.",
			yield_tpot(s) / 1e6, (double)(v->time_ns[0] / v->tokens[0]) / 1e6);
	if (yield_ttft(s) > 0)
		explain_say(out,
			"Target: %.3f ms to a first token, so no iteration may take longer; %.3f "
			"expected.",
			yield_ttft(s) / 1e6, (double)v->time_ns[v->best] / 1e6);
	if (v->late[v->best] > 1)
		explain_say(out,
			"No K keeps the targets of all sessions of the batch: with K = %u one of "
			"them "
			"is exceeded %.2f times, which is the least.",
			v->best, (double)v->late[v->best]);
}

static void explain_rule(const struct policy_state *s, struct explanation *out)
{
	const struct yield_view *v = &yield_of(s)->view;
	uint32_t other = 1;
	for (uint32_t k = 1; k <= v->k_max; k++)
		if (v->rate[k] > v->rate[other])
			other = k;
	double most = (double)v->rate[v->best] * 1e9, none = (double)v->rate[0] * 1e9;
	switch (v->rule) {
	case YIELD_UNPLANNED:
		explain_say(out, "K = %u until the first iterations are measured.", s->k);
		break;
	case YIELD_MOST:
		if (v->best > 0)
			explain_say(out,
				"K = %u gives the most expected tokens per second: %.1f, %.2f "
				"times "
				"those of K = 0.",
				v->best, most, most / none);
		else
			explain_say(out,
				"K = 0 gives the most expected tokens per second: %.1f. The best "
				"of "
				"the others is K = %u with %.1f, utility %.2f.",
				most, other, (double)v->rate[other] * 1e9,
				(double)v->rate[other] * 1e9 / none);
		break;
	case YIELD_STICKY:
		explain_say(out,
			"K = %u is kept: %.1f expected tokens per second, and K = %u promises only "
			"little more (%.1f).",
			v->best, most, v->highest, (double)v->rate[v->highest] * 1e9);
		break;
	case YIELD_THRESHOLD:
		explain_say(out,
			"K = 0: K = %u promises most, but only %.3f times the tokens per second of "
			"K = 0; threshold is %g.",
			v->highest, (double)v->rate[v->highest] * 1e9 / none,
			s->settings.threshold);
		break;
	case YIELD_TRIAL:
	case YIELD_PROOF:
		explain_trial(s, out);
		break;
	case YIELD_CATCHING_UP:
		explain_say(out,
			"K = 0 until the drafter, which has not followed the session, has read it "
			"(%u token%s); then a draft is tried.",
			yield_of(s)->behind, plural(yield_of(s)->behind));
		break;
	case YIELD_EMPTY:
		explain_say(out,
			"K = 0 because the purse is empty: speculation has lost as much time as it "
			"may, and the last loss may overdraw it (purse %.2f iterations, filled by "
			"%g per iteration).",
			yield_of(s)->purse, s->settings.spend);
		break;
	}
	if (v->rule != YIELD_UNPLANNED && s->ops == &policy_goodput)
		explain_goodput(s, v->best > 0 ? v->best : other, out);
	if (v->rule != YIELD_UNPLANNED && v->sessions > 1)
		explain_say(out,
			"Chosen together for a batch of %u sessions; the others add %.2f drafted "
			"tokens to the iteration.",
			v->sessions, (double)v->others);
}

static void explain_state(const struct policy_state *s, struct explanation *out)
{
	const struct yield *y = yield_of(s);
	const struct acceptance *a = &y->acceptance;
	if (y->waiting > 0)
		explain_say(out, "No record of the trial has arrived yet; until then, K > 0 is "
				 "chosen only if older drafts show that it pays.");
	if (y->purse <= 0)
		explain_empty(s, out);
	if (y->view.rule != YIELD_UNPLANNED && y->view.weighed == 0 && y->view.best == 0 &&
		!(y->view.hope > 0))
		explain_say(out, "No K is worth a trial: at the present time of an iteration none "
				 "would pay, even if nine of ten drafted tokens were accepted.");
	double rate = yield_change_rate(s);
	if (y->stale > 0 && y->unseen < y->stale)
		explain_say(out,
			"The session has not drafted for %u iteration%s; a shadow draft was "
			"compared with the text %u iteration%s ago, and with a probability of "
			"%.0f%% it has changed since.",
			y->stale, plural(y->stale), y->unseen, plural(y->unseen),
			100 * (1 - exp(-rate * y->unseen)));
	else if (y->stale > 0)
		explain_say(out,
			"The session has not drafted for %u iteration%s; it changes about once in "
			"%.0f, so with a probability of %.0f%% it has changed by now.",
			y->stale, plural(y->stale), 1 / rate, 100 * (1 - exp(-rate * y->stale)));
	if (acceptance_informed(a))
		explain_say(out,
			"The drafter's confidence c is read as acceptance %.2f c^%.2f, so a chain "
			"is cut where its next token is not worth its time.",
			(double)a->scale, (double)a->power);
	explain_figure(out, "purse", "iterations", y->purse);
	explain_figure(out, "purse at the beginning", "iterations", y->granted);
	explain_figure(out, "won against K = 0 (lost, if negative)", "iterations", y->won);
	explain_figure(out, "iterations since the last draft", "iterations", y->stale);
	explain_figure(out, "mean acceptance, estimated", "", acceptance_mean(a));
	explain_figure(out, "its relative standard deviation", "",
		acceptance_doubt(a, acceptance_mean(a)));
	explain_figure(out, "changes of acceptance noticed", "", a->n_alarms);
	if (y->view.base_ns > 0)
		explain_figure(
			out, "iteration at K = 0, expected", "ms", (double)y->view.base_ns / 1e6);
	explain_figure(
		out, "drafts would add, had the text changed", "of the rate", (double)y->view.hope);
}

void yield_explain(const struct policy_state *s, struct explanation *out)
{
	const struct yield_view *v = &yield_of(s)->view;
	explain_rule(s, out);
	explain_state(s, out);
	for (uint32_t k = 0; v->rule != YIELD_UNPLANNED && k <= v->k_max; k++) {
		double rate = (double)v->rate[k];
		/* rate is that of the whole batch; tokens and drafted are the session's. */
		out->options[out->n_options++] = (struct explained_k){.k = k,
			.drafted = (double)v->drafted[k],
			.tokens = (double)v->tokens[k],
			.time_ns = (double)v->time_ns[k],
			.tokens_per_s = rate * 1e9,
			.utility = rate / (double)v->rate[0],
			.doubt = (double)v->doubt[k],
			.weighed = v->weighed >> k & 1,
			.note = trial_note(s, k),
			.brings = (double)v->brings[k],
			.costs = (double)v->costs[k]};
	}
}
