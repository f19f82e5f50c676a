/* cascade's K in words and figures: the phase, the last test, and what is known of each K. */
#include "services/policy-controller/published/cascade.h"
#include "shared/base/plural.h"

#include <inttypes.h>
#include <stdio.h>

static void explain_phase(const struct policy_state *s, struct explanation *out)
{
	const struct cascade *c = cascade_of(s);
	switch (s->phase) {
	case PHASE_BASELINE:
		if (c->resume_left > 0) {
			explain_say(out,
				"K is 0 to measure again what an iteration takes without "
				"speculation: %u more. Then K = %u goes on for %u iteration%s.",
				c->left, c->resume_k, c->resume_left, plural(c->resume_left));
			break;
		}
		explain_say(out,
			"K is 0 to measure what an iteration takes without speculation: %u more. "
			"Then a test from K = %u on.",
			c->left, cascade_start_k(s));
		break;
	case PHASE_TEST:
		explain_say(out,
			"K = %u is tried for %u iteration%s: trial %u of at most %" PRId64
			" in this test, %u record%s of it to come. The verifier counts them and "
			"then goes back to K = %u.",
			s->trial_k, s->trial_n, plural(s->trial_n), c->trial + 1,
			s->settings.trials, c->left, plural(c->left), s->k_then);
		break;
	case PHASE_SET:
		explain_say(out,
			"K = %u was the best of the last test, utility %.2f, and is kept for S = "
			"%u iteration%s: %u more. Then it is tested again.",
			s->k, (double)s->utility, c->set_length, plural(c->set_length), c->left);
		break;
	case PHASE_OFF:
		explain_say(out,
			"Speculation is off for S = %u iteration%s: %u more. Then K = 1 is tried.",
			c->set_length, plural(c->set_length), c->left);
		break;
	}
}

/* The best of the displayed trials; the state has the best of the present test. */
static const struct cascade_trial *best_trial(const struct cascade *c)
{
	const struct cascade_trial *best = NULL;
	for (uint32_t i = 0; i < c->n_trials; i++)
		if (!best || c->trials[i].utility > best->utility)
			best = &c->trials[i];
	return best;
}

/* Says when the baseline will be measured again. */
static void say_when(const struct policy_state *s, char *when, size_t bytes)
{
	const struct cascade *c = cascade_of(s);
	const int64_t refresh = s->settings.refresh;
	if (s->phase == PHASE_BASELINE)
		snprintf(when, bytes, "it is being measured again");
	else if (s->phase == PHASE_OFF)
		snprintf(when, bytes, "every iteration of this phase measures it");
	else if (c->gap)
		snprintf(when, bytes,
			"it is measured again before the next test, because records were lost");
	else if (cascade_is_of_others(s))
		snprintf(when, bytes,
			"it is measured again before the next test, because experts were missing");
	else if (s->phase == PHASE_SET && c->set_length > refresh)
		snprintf(when, bytes, "after %" PRId64 " it is measured again, within this phase",
			refresh);
	else
		snprintf(when, bytes,
			"when that is %" PRId64 " or more, it is measured again before the next "
			"test",
			refresh);
}

static void explain_base(const struct policy_state *s, struct explanation *out)
{
	struct cascade_base base;
	char when[96], others[48] = "";
	if (!cascade_base(s, &base))
		return;
	say_when(s, when, sizeof(when));
	if (base.others > 0)
		snprintf(others, sizeof(others), " in which the others drafted %u token%s",
			base.others, plural(base.others));
	explain_say(out,
		"An iteration at K = 0 took %.3f ms in a batch of %u session%s%s, measured %u "
		"iteration%s ago; %s.",
		base.ns / 1e6, base.sessions, plural(base.sessions), others, base.age,
		plural(base.age), when);
}

static void explain_test(const struct policy_state *s, struct explanation *out)
{
	const struct cascade *c = cascade_of(s);
	const struct cascade_trial *best = best_trial(c);
	if (c->ended && best)
		explain_say(out,
			"The last test ended because: %s. Its best: K = %u with utility %.2f, "
			"threshold %g.",
			c->ended, best->k, (double)best->utility, s->settings.threshold);
	if (c->set_length > (uint32_t)s->settings.set)
		explain_say(out,
			"S was raised to %u from %" PRId64
			" because no K paid; it is lowered again when one does.",
			c->set_length, s->settings.set);
	explain_base(s, out);
}

/* The note for a K without figures. */
static const char *note_of(const struct policy_state *s, uint32_t k)
{
	const struct cascade *c = cascade_of(s);
	if (k == 0)
		return "being measured";
	if (s->trial_n > 0 && k == s->trial_k)
		return "on trial now";
	if (c->n_trials == 0)
		return "not tried yet";
	return c->ended ? "not tried in the last test" : "not tried in this test";
}

/* What is known of one K; nothing of a K above k_max that was not tried. Trials were compared with
 * the baseline of their time. */
static void explain_k(const struct policy_state *s, uint32_t k, struct explanation *out)
{
	const struct cascade *c = cascade_of(s);
	struct explained_k *o = &out->options[out->n_options];
	*o = (struct explained_k){.k = k};
	struct cascade_base now = {0};
	cascade_base(s, &now);
	double base = c->n_trials > 0 ? c->trials[c->n_trials - 1].base_ns : now.ns;
	if (k == 0 && base > 0) {
		o->tokens = o->utility = 1;
		o->time_ns = base;
	}
	for (uint32_t i = 0; i < c->n_trials; i++) {
		const struct cascade_trial *t = &c->trials[i];
		if (t->k != k)
			continue;
		o->tokens = t->etr;
		o->time_ns = t->time_ns;
		o->utility = (double)t->utility;
	}
	if (o->time_ns > 0)
		o->tokens_per_s = o->tokens * 1e9 / o->time_ns;
	else
		o->note = note_of(s, k);
	if (o->time_ns > 0 || k <= (uint32_t)s->settings.k_max)
		out->n_options++;
}

void cascade_explain(const struct policy_state *s, struct explanation *out)
{
	const struct cascade *c = cascade_of(s);
	explain_phase(s, out);
	explain_test(s, out);
	for (uint32_t k = 0; k <= LIMIT_DRAFT_DEPTH; k++)
		explain_k(s, k, out);
	explain_figure(out, "iterations left in the phase", "iterations", c->left);
	explain_figure(out, "S", "iterations", c->set_length);
	struct cascade_base base;
	if (cascade_base(s, &base))
		explain_figure(out, "age of the baseline", "iterations", base.age);
	explain_figure(out, "records of another K in a row", "iterations", c->mismatched);
}
