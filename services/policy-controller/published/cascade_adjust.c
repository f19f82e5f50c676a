/* cascade after a change of settings: what is under way follows the new ones. */
#include "services/policy-controller/published/cascade.h"
#include "shared/base/plural.h"

/* Sets what is left of the phase when its length changes. */
static void resize(struct cascade *c, uint32_t length)
{
	uint32_t over = c->length - c->left;
	c->left = length > over ? length - over : 0;
	c->length = length;
}

/* Sets S to what it would be if `set` had always been what it is now. */
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

/* Adjusts the lengths of what is under way. */
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

/* Adjusts the findings of the test to the new k_max and threshold. */
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

/* A knob takes effect at once: a phase that is over by its new length ends, and whether K is set or
 * off follows the new threshold. */
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
		c->left = 0; /* what did not pay before pays now, as far as is known */
	}
	if (c->left == 0)
		cascade_finish_phase(s, verdict);
	s->unfollowed = cascade_rests(s);
}
