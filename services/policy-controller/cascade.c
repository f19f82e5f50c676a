/*
 * Cascade (Utility-Driven Speculative Decoding for Mixture-of-Experts, section 5): test-and-set
 * over K with disabling, adaptive back-off and hill climbing.
 *
 * Utility of a window: U = ETR / (t_spec / t_base) (equation of section 4); K = 0 has utility 1 by
 * definition, which is what the first trial of a test is compared with. Where the paper is silent:
 * delayed iterations do not count (window.h); S falls back to its start once a test passes; records
 * of another K from before the verifier could read of this one are skipped, later ones (it cuts K
 * where the context ends) at most `late` in a row; a baseline measured in a batch of another size is
 * measured again, and one from when other experts were resident before each test: with room for 30 % of the demo model's, an
 * iteration at K = 0 took 1.2 ms at the beginning of an answer and 0.65 ms after a hundred tokens, so that every K
 * seemed to pay; while the records of a trial are waited for, K is the best one that paid.
 */
#include "services/policy-controller/policy.h"
#include "shared/base/plural.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Iterations in which a drafter that has rested catches up: some, and one for so many tokens that it has to read while one
 * more comes with each. What is left when it is asked is waited for: a draft as large as half of the demo model took 40 us
 * a token beside iterations of 100 us, and trials, each of them waiting 4 ms, 5 % of the time. */
#define CATCH_UP 4u
#define CATCH_UP_TOKENS 2u

static double milliseconds(double ns)
{
	return ns / 1e6;
}

static void remember(struct cascade *c, uint32_t k, float utility)
{
	c->history[c->n_history++ % CASCADE_HISTORY] = (struct cascade_result){k, utility};
}

/* A K as far as k_max allows it. */
static uint32_t allowed(const struct policy_state *s, uint32_t k)
{
	return k < (uint32_t)s->settings.k_max ? k : (uint32_t)s->settings.k_max;
}

/* K_start (section 5.3): the non-zero K of recent history with the highest utility; of equals
 * the newest. */
uint32_t cascade_start_k(const struct policy_state *s)
{
	const struct cascade *c = &s->cascade;
	uint32_t kept = (uint32_t)s->settings.history;
	uint32_t n = c->n_history < kept ? c->n_history : kept;
	uint32_t best = allowed(s, (uint32_t)s->settings.k_start);
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

static void enter(struct policy_state *s, enum phase phase, uint32_t k, uint32_t length)
{
	s->phase = phase;
	s->k = k;
	s->cascade.left = length;
	s->cascade.mismatched = 0;
	s->trial_n = 0;
	window_reset(&s->cascade.window);
}

static void enter_baseline(struct policy_state *s)
{
	enter(s, PHASE_BASELINE, 0, (uint32_t)s->settings.baseline);
}

/* Off for long the drafter rests; it catches up, in passes of its own, before the next trial. */
static bool rests(const struct policy_state *s)
{
	const struct cascade *c = &s->cascade;
	return s->phase == PHASE_OFF && c->left > CATCH_UP + c->unread / CATCH_UP_TOKENS;
}

static void enter_trial(struct policy_state *s, uint32_t k)
{
	enter(s, PHASE_TEST, k, (uint32_t)s->settings.trial);
	/* The verifier counts the t iterations itself and goes back to what is known to pay: however
	 * late the records are read, a trial costs no more. */
	s->trial_id++;
	s->trial_n = (uint32_t)s->settings.trial;
	s->trial_k = k;
	s->k_then = s->cascade.kept_k;
}

/* The first trial of a test is compared with K = 0, whose utility is 1. kept_k: what is known to pay, or 0. */
static void enter_test(struct policy_state *s, uint32_t k, uint32_t kept_k)
{
	struct cascade *c = &s->cascade;
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

static void take_baseline(struct cascade *c)
{
	c->base_ns = (uint64_t)window_time_ns(&c->window);
	c->base_sessions = window_sessions(&c->window);
	c->base_age = 0;
	c->missed = false;
}

static double utility_of(const struct cascade *c)
{
	double time = window_time_ns(&c->window);
	return time > 0 ? window_etr(&c->window) * (double)c->base_ns / time : 0;
}

/* The end of a test phase: the best K stays for S iterations; a best below the threshold turns
 * speculation off and doubles S (sections 5.4, 5.5). */
static void finish_test(struct policy_state *s, const char *why, struct verdict *verdict)
{
	struct cascade *c = &s->cascade;
	s->utility = c->best_utility;
	c->ended = why;
	if (c->best_utility >= (float)s->settings.threshold) {
		c->set_length = (uint32_t)s->settings.set;
		enter(s, PHASE_SET, c->best_k, c->set_length);
		policy_decide(verdict, "%s: K = %u is best with utility %.2f, for %u iteration%s",
			why, s->k, (double)s->utility, c->set_length, plural(c->set_length));
		return;
	}
	uint32_t longer = (uint32_t)s->settings.backoff * c->set_length;
	uint32_t most = (uint32_t)s->settings.set_max;
	c->set_length = longer < most ? longer : most;
	enter(s, PHASE_OFF, 0, c->set_length);
	policy_decide(verdict,
		"%s: best utility %.2f at K = %u is below %g: off for %u iteration%s", why,
		(double)c->best_utility, c->best_k, s->settings.threshold, c->set_length,
		plural(c->set_length));
}

/* The K to try next (section 5.6): on in the direction that raised utility, else back; below the
 * threshold only downwards, K = 1 being the most cautious (section 5.4). Values are tried once
 * per test. 0 or above k_max: nothing is left. */
static uint32_t next_k(const struct policy_state *s, float utility)
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

static const char *early_exit(const struct policy_state *s, float utility, uint32_t next)
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

static void finish_trial(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = &s->cascade;
	if (window_sessions(&c->window) != c->base_sessions && !c->restarted) {
		c->restarted = true;
		uint32_t before = c->base_sessions, now = window_sessions(&c->window);
		enter_baseline(s);
		policy_decide(verdict,
			"the batch changed from %u to %u session%s during the trial: baseline "
			"again",
			before, now, plural(now));
		return;
	}
	float utility = (float)utility_of(c);
	double etr = window_etr(&c->window), time = window_time_ns(&c->window);
	if (c->trial++ == 0) {
		c->n_trials = 0;
		c->ended = NULL;
	}
	c->trials[c->n_trials++] =
		(struct cascade_trial){s->k, etr, time, (double)c->base_ns, utility};
	c->tested |= 1u << s->k;
	c->falls = c->trial > 1 && utility < c->prev_utility ? c->falls + 1 : 0;
	if (utility > c->best_utility) {
		c->best_utility = utility;
		c->best_k = s->k;
	}
	c->kept_k = c->best_utility >= (float)s->settings.threshold ? c->best_k : 0;
	remember(c, s->k, utility);
	s->utility = utility;
	uint32_t next = next_k(s, utility), tried = s->k;
	const char *why = early_exit(s, utility, next);
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
		c->trial, tried, etr, milliseconds(time), milliseconds((double)c->base_ns),
		(double)utility, next);
}

static void finish_baseline(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = &s->cascade;
	take_baseline(c);
	/* A test that the batch interrupted begins again where it began. */
	uint32_t k = c->restarted ? allowed(s, c->start_k) : cascade_start_k(s);
	if (k > (uint32_t)s->settings.k_max)
		k = (uint32_t)s->settings.k_max;
	enter_test(s, k, 0);
	policy_decide(verdict, "baseline %.2f ms in a batch of %u session%s: trying K = %u",
		milliseconds((double)c->base_ns), c->base_sessions, plural(c->base_sessions), k);
}

/* The end of a set phase: an old baseline, or one of another batch size or of other resident experts, is measured again before
 * the next test. */
static void finish_set(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = &s->cascade;
	uint32_t age = c->base_age, k = s->k;
	uint32_t before = c->base_sessions, now = window_sessions(&c->window);
	float utility = (float)utility_of(c);
	c->restarted = false;
	if (now == before) {
		s->utility = utility;
		remember(c, k, utility);
	}
	if (age >= (uint32_t)s->settings.refresh || now != before || c->missed) {
		const char *loaded = c->missed ? ", of other resident experts" : "";
		enter_baseline(s);
		policy_decide(verdict,
			"set phase at K = %u over: the baseline is %u iteration%s old, of a batch "
			"of %u session%s (now %u)%s: again",
			k, age, plural(age), before, plural(before), now, loaded);
		return;
	}
	enter_test(s, cascade_start_k(s), utility >= (float)s->settings.threshold ? k : 0);
	policy_decide(verdict, "set phase at K = %u over with utility %.2f: testing from K = %u", k,
		(double)utility, s->k);
}

/* Iterations at K = 0 are a baseline that cost nothing; then one trial at K = 1 (section 5.4). */
static void finish_off(struct policy_state *s, struct verdict *verdict)
{
	struct cascade *c = &s->cascade;
	if (c->window.n > 0)
		take_baseline(c);
	c->restarted = false;
	enter_test(s, 1, 0);
	policy_decide(verdict, "off phase of %u iteration%s over, baseline %.2f ms: probing K = 1",
		c->set_length, plural(c->set_length), milliseconds((double)c->base_ns));
}

static uint32_t cascade_first_k(const struct settings *settings, const struct yield_shared *shared)
{
	(void)settings;
	(void)shared;
	return 0; /* the first iterations are the baseline */
}

static void cascade_begin(struct policy_state *s, uint32_t k_hint, struct verdict *verdict)
{
	struct cascade *c = &s->cascade;
	memset(c, 0, sizeof(*c));
	c->set_length = (uint32_t)s->settings.set;
	if (k_hint == 0 && s->settings.carry > 0 && s->off_before > c->set_length) {
		/* History reaches over the end of a session (section 5.3 has K_start from it): many
		 * short answers would each pay for the same finding. What was left of the off phase
		 * is waited for here, and yields a baseline. */
		uint32_t most = (uint32_t)s->settings.carry * c->set_length, left = s->off_left;
		uint32_t least = CATCH_UP + s->n_context / CATCH_UP_TOKENS;
		c->unread = s->n_context;
		least = least > (uint32_t)s->settings.baseline ? least
							       : (uint32_t)s->settings.baseline;
		c->set_length = s->off_before < most ? s->off_before : most;
		left = left > least ? left : least;
		enter(s, PHASE_OFF, 0, left < c->set_length ? left : c->set_length);
		policy_decide(verdict,
			"cascade: it did not pay in the session before: off for %u more "
			"iteration%s",
			c->left, plural(c->left));
		s->unfollowed = rests(s);
		return;
	}
	s->unfollowed = false;
	if (k_hint == 0)
		k_hint = s->k_before;
	if (k_hint > 0)
		remember(c, k_hint, 0);
	enter_baseline(s);
	policy_decide(verdict, "cascade: baseline of %u iteration%s, then K = %u", c->left,
		plural(c->left), cascade_start_k(s));
}

/* Whether the record measures what was asked for. */
static bool counts(struct policy_state *s, const struct iteration_record *record)
{
	struct cascade *c = &s->cascade;
	if (record->k == s->k) {
		c->mismatched = 0;
		return true;
	}
	/* K = 0 cannot be measured by anything else; another K counts as what it is when it does
	 * not go away (the verifier cuts K where the context ends). */
	if (s->k == 0 || policy_is_older(s, record))
		return false;
	if (++c->mismatched <= (uint32_t)s->settings.late)
		return false;
	if (record->k == s->k_then && s->trial_n > 0) {
		/* Records of the trial were lost: it is over for the verifier, and has to be made
		 * again. */
		s->trial_id++;
		c->mismatched = 0;
		return false;
	}
	return true;
}

static void cascade_observe(
	struct policy_state *s, const struct iteration_record *record, struct verdict *verdict)
{
	struct cascade *c = &s->cascade;
	c->base_age++;
	c->missed |= record->expert_misses > 0;
	if (s->unfollowed)
		c->unread += record->emitted;
	bool counted = counts(s, record);
	if (counted && s->phase == PHASE_OFF && c->window.n > 0 &&
		c->window.sessions[(c->window.n - 1) % WINDOW_MAX] != record->batch_sessions)
		window_reset(&c->window);
	if (counted)
		window_add(&c->window, record->iteration_ns, record->drafted, record->emitted,
			record->batch_sessions);
	/* A phase at K = 0 that is over by the count has waited long enough, whatever the
	 * verifier made of it. */
	if (!counted && s->phase != PHASE_OFF)
		return;
	if (c->left > 0 && --c->left > 0) {
		s->unfollowed = rests(s);
		return;
	}
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
	s->unfollowed = rests(s);
}

/* A phase ends with its last record. */
static uint32_t cascade_awaits(const struct policy_state *s)
{
	return s->cascade.left;
}

static void cascade_baseline(const struct policy_state *s, double *base_ns, uint64_t *age)
{
	if (s->cascade.base_ns == 0)
		return;
	*base_ns = (double)s->cascade.base_ns;
	*age = s->cascade.base_age;
}

const struct policy_ops policy_cascade = {
	.name = "cascade",
	.first_k = cascade_first_k,
	.begin = cascade_begin,
	.observe = cascade_observe,
	.explain = cascade_explain,
	.awaits = cascade_awaits,
	.baseline = cascade_baseline,
	.options_are =
		"as measured in the trials of the last test: tokens and tokens/s of the session's "
		"iterations",
};
