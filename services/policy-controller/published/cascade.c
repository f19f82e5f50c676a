/* cascade's phases: what is measured when, and how each phase ends (cascade.h). */
#include "services/policy-controller/estimates/passes.h"
#include "services/policy-controller/published/cascade.h"
#include "shared/base/plural.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Iterations in which a drafter that has rested catches up: CATCH_UP, plus one for every
 * CATCH_UP_TOKENS that it must read, while each iteration adds a token. If anything is left when a
 * draft is requested, the verifier waits for it. A draft model half as large as the demo model read
 * a token in 40 us beside iterations of 100 us; trials, each of which waited 4 ms, took 5 % of the
 * time. */
#define CATCH_UP 4u
#define CATCH_UP_TOKENS 2u

static double milliseconds(double ns)
{
	return ns / 1e6;
}

/* Begins a phase. Samples at K = 0 from now on are not mixed with earlier ones. */
static void enter(struct policy_state *s, enum phase phase, uint32_t k, uint32_t length)
{
	struct cascade *c = cascade_own(s);
	s->phase = phase;
	s->k = k;
	c->length = c->left = length;
	c->mismatched = 0;
	c->run++;
	s->trial_n = 0;
	window_reset(&c->window);
}

/* True when other experts were resident during the baseline than are now, as far as the knob asks
 * about that. */
bool cascade_is_of_others(const struct policy_state *s)
{
	return cascade_of(s)->missed && s->settings.refresh_missed;
}

static void enter_baseline(struct policy_state *s)
{
	struct cascade *c = cascade_own(s);
	enter(s, PHASE_BASELINE, 0, (uint32_t)s->settings.baseline);
	if (c->gap || cascade_is_of_others(s))
		c->first_run = c->run;
}

/* The drafter catches up, in passes of its own, before the next trial. */
bool cascade_rests(const struct policy_state *s)
{
	const struct cascade *c = cascade_of(s);
	return s->settings.rest_at_zero && s->phase == PHASE_OFF &&
	       c->left > CATCH_UP + c->unread / CATCH_UP_TOKENS;
}

static void enter_trial(struct policy_state *s, uint32_t k)
{
	enter(s, PHASE_TEST, k, (uint32_t)s->settings.trial);
	/* The verifier counts the t iterations itself and then returns to what is known to pay.
	 * However late the records are read, a trial costs no more. */
	s->trial_id++;
	s->trial_n = (uint32_t)s->settings.trial;
	s->trial_k = k;
	s->k_then = cascade_of(s)->kept_k;
}

/* The first trial of a test is compared with K = 0, whose utility is 1. kept_k: the K that is known
 * to pay, or 0. */
static void enter_test(struct policy_state *s, uint32_t k, uint32_t kept_k)
{
	struct cascade *c = cascade_own(s);
	c->trial = c->falls = c->tested = 0;
	c->prev_k = 0;
	c->prev_utility = 1;
	c->best_k = 0;
	c->best_utility = 0;
	c->start_k = k;
	c->kept_k = kept_k;
	c->unread = 0;
	enter_trial(s, k);
}

/* Turns speculation off, for longer than before (section 5.5). */
void cascade_turn_off(struct policy_state *s)
{
	struct cascade *c = cascade_own(s);
	uint32_t longer = (uint32_t)s->settings.backoff * c->set_length;
	uint32_t most = (uint32_t)s->settings.set_max;
	c->set_length = longer < most ? longer : most;
	enter(s, PHASE_OFF, 0, c->set_length);
}

/* Ends a test phase: the best K stays for S iterations. A best K below the threshold turns
 * speculation off and doubles S (sections 5.4, 5.5). */
static void finish_test(struct policy_state *s, const char *why, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	s->utility = c->best_utility;
	c->ended = why;
	if (c->best_utility >= (float)s->settings.threshold) {
		c->set_length = (uint32_t)s->settings.set;
		enter(s, PHASE_SET, c->best_k, c->set_length);
		policy_decide(verdict, "%s: K = %u is best with utility %.2f, for %u iteration%s",
			why, s->k, (double)s->utility, c->set_length, plural(c->set_length));
		return;
	}
	cascade_turn_off(s);
	policy_decide(verdict,
		"%s: best utility %.2f at K = %u is below %g: off for %u iteration%s", why,
		(double)c->best_utility, c->best_k, s->settings.threshold, c->set_length,
		plural(c->set_length));
}

static void finish_trial(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	struct cascade_measure m;
	/* The clock stood still; the next iteration may tell. */
	if (!cascade_measured(s, &m))
		return;
	float utility = (float)m.utility;
	if (c->trial++ == 0) {
		c->n_trials = 0;
		c->ended = NULL;
	}
	c->trials[c->n_trials++] =
		(struct cascade_trial){s->k, m.etr, m.time_ns, m.base_ns, utility};
	c->tested |= 1u << s->k;
	c->falls = c->trial > 1 && utility < c->prev_utility ? c->falls + 1 : 0;
	if (utility > c->best_utility) {
		c->best_utility = utility;
		c->best_k = s->k;
	}
	c->kept_k = c->best_utility >= (float)s->settings.threshold ? c->best_k : 0;
	cascade_remember(c, s->k, m.utility);
	s->utility = utility;
	uint32_t next = cascade_next_k(s, utility), tried = s->k;
	const char *why = cascade_early_exit(s, utility, next);
	if (why) {
		finish_test(s, why, verdict);
		return;
	}
	c->prev_k = s->k;
	c->prev_utility = utility;
	enter_trial(s, next);
	policy_decide(verdict,
		"trial %u at K = %u: %.2f tokens per %.2f ms against %.2f ms at K = 0: utility "
		"%.2f; K = %u next",
		c->trial, tried, m.etr, milliseconds(m.time_ns), milliseconds(m.base_ns), m.utility,
		next);
}

/* An iteration of a trial for which no baseline is usable. The second time in one test, the test
 * ends with what it has found, because the batch may keep changing: K becomes what paid, or 0, and
 * S stays, because nothing was found not to pay. */
static void interrupt_test(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	struct cascade_base base = {.sessions = c->sessions};
	uint32_t now = c->sessions;
	char change[80];
	cascade_base(s, &base);
	if (c->gap)
		snprintf(change, sizeof(change), "records of iterations were lost");
	else if (base.sessions == now)
		snprintf(change, sizeof(change), "what the other sessions draft changed");
	else
		snprintf(change, sizeof(change), "the batch changed from %u to %u session%s",
			base.sessions, now, plural(now));
	if (!c->restarted) {
		c->restarted = true;
		enter_baseline(s);
		policy_decide(
			verdict, "%s during the trial: the baseline is measured again", change);
		return;
	}
	c->ended = "the batch kept changing";
	if (c->kept_k > 0)
		c->set_length = (uint32_t)s->settings.set;
	enter(s, c->kept_k ? PHASE_SET : PHASE_OFF, c->kept_k, c->set_length);
	policy_decide(verdict, "%s again during the test: K = %u for %u iteration%s", change, s->k,
		c->set_length, plural(c->set_length));
}

static void finish_baseline(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	struct cascade_base base = {0};
	cascade_base(s, &base);
	c->missed = c->gap = false;
	if (c->resume_left > 0) {
		enter(s, PHASE_SET, c->resume_k, c->set_length);
		c->left = c->resume_left;
		c->resume_left = 0;
		policy_decide(verdict,
			"baseline %.2f ms in a batch of %u session%s: K = %u for %u iteration%s "
			"more",
			milliseconds(base.ns), base.sessions, plural(base.sessions), s->k, c->left,
			plural(c->left));
		return;
	}
	/* A test that a change of the batch interrupted begins again where it began. */
	uint32_t k = c->restarted ? cascade_allowed(s, c->start_k) : cascade_start_k(s);
	enter_test(s, k, 0);
	policy_decide(verdict, "baseline %.2f ms in a batch of %u session%s: trying K = %u",
		milliseconds(base.ns), base.sessions, plural(base.sessions), k);
}

/* True when a set phase is so long that its baseline would grow too old. Batches of many sizes come
 * and go; a new size does not interrupt the phase as soon as it is seen. */
static bool is_due(const struct policy_state *s)
{
	const struct cascade *c = cascade_of(s);
	uint32_t refresh = (uint32_t)s->settings.refresh;
	return s->phase == PHASE_SET && c->set_length > refresh &&
	       cascade_age(c, c->sessions) >= refresh && cascade_age(c, 0) >= refresh;
}

/* Measures the baseline in the middle of a set phase, which then continues (section 5.3). */
static void refresh(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	struct cascade_measure m;
	if (cascade_measured(s, &m))
		s->utility = (float)m.utility;
	c->resume_k = s->k;
	c->resume_left = c->left;
	enter_baseline(s);
	policy_decide(verdict,
		"the baseline is %" PRId64
		" iteration%s old: it is measured again within the set phase at K = %u",
		s->settings.refresh, plural((uint64_t)s->settings.refresh), c->resume_k);
}

/* Ends a set phase. If the baseline is old, was measured with other experts resident, or is missing
 * for such a batch, it is measured before the next test. */
static void finish_set(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	struct cascade_measure m;
	uint32_t k = s->k, now = c->sessions;
	bool measured = cascade_measured(s, &m);
	c->restarted = false;
	if (measured) {
		s->utility = (float)m.utility;
		cascade_remember(c, k, m.utility);
	}
	bool missed = cascade_is_of_others(s);
	if (!measured || missed || c->gap || cascade_age(c, now) >= (uint32_t)s->settings.refresh) {
		struct cascade_base base = {.sessions = now};
		const char *other = "";
		if (c->gap)
			other = ", before records were lost";
		else if (missed)
			other = ", with other experts resident";
		cascade_base(s, &base);
		enter_baseline(s);
		policy_decide(verdict,
			"set phase at K = %u over: the baseline is %u iteration%s old, of a batch "
			"of %u session%s (now %u)%s: it is measured again",
			k, base.age, plural(base.age), base.sessions, plural(base.sessions), now,
			other);
		return;
	}
	enter_test(s, cascade_start_k(s), s->utility >= (float)s->settings.threshold ? k : 0);
	policy_decide(verdict, "set phase at K = %u over with utility %.2f: testing from K = %u", k,
		(double)s->utility, s->k);
}

/* Ends an off phase: its iterations at K = 0 are a baseline that cost nothing; then comes one trial
 * at K = 1 (section 5.4). */
static void finish_off(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	struct cascade_base base = {0};
	cascade_base(s, &base);
	c->missed = c->gap = c->restarted = false;
	enter_test(s, 1, 0);
	policy_decide(verdict, "off phase of %u iteration%s over, baseline %.2f ms: probing K = 1",
		c->set_length, plural(c->set_length), milliseconds(base.ns));
}

static_assert(sizeof(struct cascade) <= POLICY_STATE_BYTES, "a session has room for it");

static void cascade_init(void *shared)
{
	memset(shared, 0, sizeof(struct cascade_shared));
}

static uint32_t cascade_first_k(const struct settings *settings, const void *shared)
{
	(void)settings;
	(void)shared;
	return 0; /* the first iterations are the baseline */
}

static void cascade_begin(struct policy_state *s, uint32_t k_hint, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	const struct cascade_shared *before = cascade_shared(s);
	s->lost = 0;
	c->set_length = (uint32_t)s->settings.set;
	if (k_hint == 0 && s->settings.carry > 0 && before->off_before > c->set_length) {
		/* History reaches beyond the end of a session (section 5.3 takes K_start from it):
		 * otherwise many short answers would each pay for the same finding. The rest of the
		 * off phase is waited for here, and yields a baseline. */
		uint32_t most = (uint32_t)s->settings.carry * c->set_length,
			 left = before->off_left;
		if (most > (uint32_t)s->settings.set_max)
			most = (uint32_t)s->settings.set_max;
		uint32_t least = CATCH_UP + s->n_context / CATCH_UP_TOKENS;
		c->unread = s->n_context;
		least = least > (uint32_t)s->settings.baseline ? least
							       : (uint32_t)s->settings.baseline;
		c->set_length = before->off_before < most ? before->off_before : most;
		left = left > least ? left : least;
		enter(s, PHASE_OFF, 0, c->set_length);
		c->left = left < c->length ? left : c->length;
		policy_decide(verdict,
			"cascade: drafting did not pay in the session before: off for %u more "
			"iteration%s",
			c->left, plural(c->left));
		s->unfollowed = cascade_rests(s);
		return;
	}
	s->unfollowed = false;
	if (k_hint == 0)
		k_hint = before->k_before;
	if (k_hint > 0)
		cascade_remember(c, k_hint, 0);
	enter_baseline(s);
	policy_decide(verdict, "cascade: baseline of %u iteration%s, then K = %u", c->left,
		plural(c->left), cascade_start_k(s));
}

/* True when the record measures what was asked for. */
static bool counts(struct policy_state *s, const struct iteration_record *record)
{
	struct cascade *c = cascade_own(s);
	if (record->k == s->k) {
		c->mismatched = 0;
		return true;
	}
	/* Only K = 0 measures K = 0. Another K counts as what it is when it does not go away (the
	 * verifier cuts K where the context ends). */
	if (s->k == 0 || policy_is_older(s, record))
		return false;
	if (++c->mismatched <= (uint32_t)s->settings.late)
		return false;
	if (record->k == s->k_then && s->trial_n > 0) {
		/* Records of the trial were lost: the verifier has finished it, and it must be
		 * repeated. */
		s->trial_id++;
		c->mismatched = 0;
		return false;
	}
	return true;
}

/* Learns what passes cost depending on what the others draft. A session alone has no others. */
static void learn_costs(struct policy_state *s, const struct iteration_record *record)
{
	struct cascade *c = cascade_own(s);
	bool first = record->drafted > 0 && !c->drafted;
	c->drafted = record->drafted > 0;
	if (record->batch_sessions > 1)
		passes_observe(s->passes, record, first);
}

/* True when the iteration's wait was not only for the draft: the first draft after iterations in
 * which the drafter did not follow begins with reading them, which says nothing about K. Except in
 * a trial of one iteration, which has no other. */
static bool catches_up(struct policy_state *s, const struct iteration_record *record)
{
	struct cascade *c = cascade_own(s);
	bool first = c->stale && record->k > 0;
	c->stale = record->k == 0 && (c->stale || record->unfollowed);
	return first && s->phase == PHASE_TEST && c->length > 1;
}

static uint64_t elapsed(struct cascade *c, const struct iteration_record *record)
{
	bool known = c->iteration > 0 && record->iteration > c->iteration;
	uint64_t since = known ? record->iteration - c->iteration : 1;
	c->iteration = record->iteration;
	return since;
}

/* What is left of a phase after `lost` of its iterations went unseen: enough to measure something.
 */
static void shorten(struct cascade *c, uint32_t lost, int64_t enough)
{
	uint32_t left = c->left > lost ? c->left - lost : 0;
	uint32_t least = c->left < enough ? c->left : (uint32_t)enough;
	c->left = left > least ? left : least;
}

/* Skips iterations for which there are no records. */
static void pass_over(struct policy_state *s, uint32_t lost)
{
	struct cascade *c = cascade_own(s);
	c->gap = true;
	c->run++;
	window_reset(&c->window);
	switch (s->phase) {
	case PHASE_BASELINE:
		c->left = (uint32_t)s->settings.baseline;
		c->resume_left = c->resume_left > lost ? c->resume_left - lost : 0;
		break;
	case PHASE_TEST:
		enter_trial(s, s->trial_k);
		break;
	case PHASE_SET:
		shorten(c, lost, s->settings.trial);
		break;
	case PHASE_OFF:
		shorten(c, lost, s->settings.baseline);
		break;
	}
}

void cascade_finish_phase(struct policy_state *s, struct verdict *verdict)
{
	switch (s->phase) {
	case PHASE_BASELINE:
		finish_baseline(s, verdict);
		break;
	case PHASE_TEST:
		finish_trial(s, verdict);
		break;
	case PHASE_SET:
		finish_set(s, verdict);
		break;
	case PHASE_OFF:
		finish_off(s, verdict);
		break;
	}
}

static void follow(
	struct policy_state *s, const struct iteration_record *record, struct verdict *verdict)
{
	struct cascade *c = cascade_own(s);
	c->clock += elapsed(c, record);
	if (s->lost > 0)
		pass_over(s, s->lost);
	s->lost = 0;
	c->sessions = record->batch_sessions;
	c->others = cascade_others(record);
	c->missed |= record->expert_misses > 0;
	if (s->unfollowed)
		c->unread += record->emitted;
	learn_costs(s, record);
	bool waits = catches_up(s, record);
	bool counted = counts(s, record);
	bool comparable = counted && s->k > 0 && cascade_comparable(s, record);
	if (counted && s->k == 0)
		cascade_sample(c, record);
	if (comparable && !waits)
		cascade_add(c, record);
	/* A phase at K = 0 that is over by count has waited long enough, whatever the verifier did.
	 */
	if (!counted && s->phase != PHASE_OFF)
		return;
	if (s->phase == PHASE_TEST && !comparable)
		interrupt_test(s, verdict);
	else if (c->left == 0 || --c->left == 0)
		cascade_finish_phase(s, verdict);
	else if (is_due(s))
		refresh(s, verdict);
	s->unfollowed = cascade_rests(s);
}

/* Leaves findings for the next session. */
static void leave(const struct policy_state *s)
{
	const struct cascade *c = cascade_of(s);
	struct cascade_shared *shared = cascade_shared(s);
	/* S is above its start from a failed test until a passed one. */
	bool off = c->set_length > (uint32_t)s->settings.set;
	shared->off_before = off ? c->set_length : 0;
	shared->off_left = s->phase == PHASE_OFF ? c->left : 0;
	if (s->phase == PHASE_SET)
		shared->k_before = s->k;
}

static void cascade_observe(
	struct policy_state *s, const struct iteration_record *record, struct verdict *verdict)
{
	follow(s, record, verdict);
	leave(s);
}

/* A phase ends with its last record. */
static uint32_t cascade_awaits(const struct policy_state *s)
{
	return cascade_of(s)->left;
}

static void cascade_baseline(const struct policy_state *s, double *base_ns, uint64_t *age)
{
	struct cascade_base base;
	if (!cascade_base(s, &base))
		return;
	*base_ns = base.ns;
	*age = base.age;
}

const struct policy_ops policy_cascade = {
	.name = "cascade",
	.state_bytes = sizeof(struct cascade),
	.shared_bytes = sizeof(struct cascade_shared),
	.init = cascade_init,
	.first_k = cascade_first_k,
	.begin = cascade_begin,
	.adjust = cascade_adjust,
	.observe = cascade_observe,
	.explain = cascade_explain,
	.awaits = cascade_awaits,
	.baseline = cascade_baseline,
	.options_are =
		"as measured in the trials of the last test: tokens and tokens/s of the session's "
		"iterations",
};
