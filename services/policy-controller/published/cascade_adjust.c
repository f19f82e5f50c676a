/* cascade under other settings than before: what is going on is from now on as they have it. */
#include "services/policy-controller/published/cascade.h"
#include "shared/base/plural.h"

/* What is left of the phase when it is to be of another length. */
static void resize(struct cascade *c, uint32_t length)
{
	uint32_t over = c->length - c->left;
	c->left = length > over ? length - over : 0;
	c->length = length;
}

/* S as it would be had `set` always been what it is now. */
static void rescale(struct policy_state *s, const struct settings *before)
{
	struct cascade *c = cascade_own(s);
	uint64_t length = (uint64_t)c->set_length * (uint64_t)s->settings.set;
	uint32_t over = c->set_length - c->resume_left;
	length /= (uint64_t)before->set;
	if (length < (uint64_t)s->settings.set)
		length = (uint64_t)s->settings.set;
	if (length > (uint64_t)s->settings.set_max)
		length = (uint64_t)s->settings.set_max;
	c->set_length = (uint32_t)length;
	if (c->resume_left > 0)
		c->resume_left = c->set_length > over ? c->set_length - over : 0;
}

/* The lengths of what is going on. */
static void adjust_lengths(struct policy_state *s, const struct settings *before)
{
	struct cascade *c = cascade_own(s);
	rescale(s, before);
	switch (s->phase) {
	case PHASE_BASELINE:
		resize(c, (uint32_t)s->settings.baseline);
		break;
	case PHASE_TEST:
		resize(c, (uint32_t)s->settings.trial);
		s->trial_n = (uint32_t)s->settings.trial;
		break;
	case PHASE_SET:
	case PHASE_OFF:
		resize(c, c->set_length);
		break;
	}
}

/* What the test found, as k_max and threshold have it now. */
static void adjust_findings(struct policy_state *s, bool same_threshold)
{
	struct cascade *c = cascade_own(s);
	uint32_t most = (uint32_t)s->settings.k_max;
	if (c->best_k > most)
		c->best_k = 0;
	if (c->best_k == 0)
		c->best_utility = 0;
	if (c->trial > 0)
		c->kept_k = c->best_utility >= (float)s->settings.threshold ? c->best_k : 0;
	if (c->kept_k > most)
		c->kept_k = 0;
	if (s->trial_n > 0)
		s->k_then = c->kept_k;
	if (c->resume_k > most || (!same_threshold && s->utility < (float)s->settings.threshold))
		c->resume_left = 0;
}

/* A knob is in force at once: a phase that is over by its new length ends, and what is set or off is so by the threshold
 * there is. */
void cascade_adjust(struct policy_state *s, const struct settings *before, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	struct cascade_measure m;
	const double threshold = s->settings.threshold;
	bool same = !(threshold < before->threshold || threshold > before->threshold);
	adjust_lengths(s, before);
	adjust_findings(s, same);
	if (s->phase == PHASE_SET && !same) {
		if (c->window.n >= (uint32_t)s->settings.trial && cascade_measured(s, &m))
			s->utility = (float)m.utility;
		if (s->utility < (float)threshold) {
			uint32_t k = s->k;
			cascade_turn_off(s);
			policy_decide(verdict,
				"the threshold is %g now: utility %.2f at K = %u is below it: off "
				"for %u iteration%s",
				threshold, (double)s->utility, k, c->set_length,
				plural(c->set_length));
		}
	} else if (s->phase == PHASE_OFF && !same && c->best_utility >= (float)threshold) {
		c->left = 0; /* what did not pay does now, as far as is known */
	}
	if (c->left == 0)
		cascade_finish_phase(s, verdict);
	s->unfollowed = cascade_rests(s);
}
