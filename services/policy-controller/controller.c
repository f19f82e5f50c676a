#include "services/policy-controller/controller.h"

#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/timeline.h"

#include <stdio.h>
#include <string.h>

/* Weight of the newest iteration in the displayed means. */
#define DISPLAY_WEIGHT 0.125f
/* A session without a record for this many iterations is taken to be over. */
#define OVER_AFTER 4
/* Share of the displayed counts of acceptance by position that is left after a drafted iteration.
 */
#define POSITION_LEFT (1 - 1 / 64.0f)

static void publish_defaults(struct controller *c)
{
	struct policy_defaults defaults = {.run_ahead = c->settings.run_ahead,
		.unfollowed = c->unfollowed && c->settings.rest_at_zero};
	uint32_t k;
	const struct policy_ops *ops = policy_parse(c->settings.policy, &k);
	defaults.k = ops->first_k(&c->settings, policy_shared(c->shared, ops));
	defaults.foresight = ops->foresight;
	snprintf(defaults.name, sizeof(defaults.name), "%s", c->settings.policy);
	if (memcmp(&defaults, &c->defaults, sizeof(defaults)) == 0)
		return;
	c->defaults = defaults;
	page_write(&c->page->defaults_lock, &c->page->defaults, &defaults, sizeof(defaults));
}

static void publish(struct controller *c, const struct policy_state *s)
{
	struct policy_page_session *to = &c->page->sessions[s->slot];
	struct policy_session knobs = {
		.session = s->uid,
		.k = s->trial_n ? s->trial_k : s->k,
		.k_then = s->trial_n ? s->k_then : s->k,
		.trial_id = s->trial_id,
		.trial_n = s->trial_n,
		.unfollowed = s->unfollowed,
		.foresight = s->ops->foresight,
		.utility = s->utility,
		.acceptance = s->drafted > 0 ? s->accepted / s->drafted : 0,
		.etr = s->etr,
		.decision = s->decision,
		.width = s->width,
		.prices = s->prices,
	};
	static_assert(sizeof(knobs.cut) == sizeof(s->cut), "one threshold per position");
	memcpy(knobs.cut, s->cut, sizeof(knobs.cut));
	memcpy(knobs.shape, s->shape, sizeof(knobs.shape));
	page_write(&to->lock, &to->knobs, &knobs, sizeof(knobs));
}

void controller_init(
	struct controller *c, struct policy_page *page, const struct settings *settings)
{
	memory_clear(c, sizeof(*c));
	c->page = page;
	c->settings = *settings;
	passes_init(&c->passes_seen);
	policies_init(c->shared);
	page_recover(&page->defaults_lock);
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		page_recover(&page->sessions[i].lock);
		uint64_t number = page->sessions[i].knobs.decision;
		/* Somebody else may have written a number there: numbers that leave no room to
		 * count on are ignored. */
		if (number > c->first_decision && number < UINT64_MAX / 2)
			c->first_decision = number;
	}
	publish_defaults(c);
}

static void decide(
	struct controller *c, struct policy_state *s, uint32_t k_old, const struct verdict *verdict)
{
	struct decision *d = &c->decisions[c->n_decisions++ % CONTROLLER_DECISIONS];
	*d = (struct decision){
		.number = c->first_decision + c->n_decisions,
		.session = s->uid,
		.time_ns = c->now_ns,
		.k_old = k_old,
		.k_new = s->trial_n ? s->trial_k : s->k,
		.trial_n = s->trial_n,
		.k_then = s->trial_n ? s->k_then : s->k,
		.phase = s->phase,
		.utility = s->utility,
	};
	static_assert(sizeof(d->reason) == sizeof(verdict->reason), "reasons are kept whole");
	memcpy(d->reason, verdict->reason, sizeof(d->reason));
	s->decision = d->number;
	timeline_end(timeline_start(), TIMELINE_DECISION, s->uid, k_old, d->k_new);
	log_session(LOG_LEVEL_DEBUG, s->uid, s->iterations, "K %u -> %u, %s: %s", k_old, d->k_new,
		phase_names[s->phase], d->reason);
}

static void begin(struct controller *c, struct policy_state *s, uint32_t k_hint)
{
	struct verdict verdict = {.decided = false};
	uint32_t k_old = s->k;
	s->ops = policy_parse(s->settings.policy, &s->static_k);
	s->shared = policy_shared(c->shared, s->ops);
	memset(s->own, 0, s->ops->state_bytes);
	s->utility = 0;
	memset(s->cut, 0, sizeof(s->cut));
	memset(s->shape, 0, sizeof(s->shape));
	s->width = 0;
	s->prices = (struct policy_prices){0};
	s->trial_n = 0;
	s->ops->begin(s, k_hint, &verdict);
	/* A K that the request fixed is not a decision. */
	if (verdict.decided && !s->k_fixed)
		decide(c, s, k_old, &verdict);
}

/* A session that came back has another page. Forgets the old place, so that its uid finds the new
 * one. */
static void forget_elsewhere(struct controller *c, const struct iteration_record *record)
{
	int found = uids_find(&c->uids, record->session);
	if (found < 0)
		return;
	uint32_t slot = (uint32_t)found;
	memset(&c->sessions[slot], 0, sizeof(c->sessions[slot]));
	bits_clear(c->known, slot);
	bits_clear(c->touched, slot);
}

/* The session's state. If this controller has not seen it, its state starts from the knobs on the
 * page, which an earlier controller chose. */
static struct policy_state *find(struct controller *c, const struct iteration_record *record)
{
	struct policy_state *s = &c->sessions[record->page];
	if (s->uid == record->session)
		return s;
	const struct policy_session *knobs = &c->page->sessions[record->page].knobs;
	struct policy_session now;
	policy_lookup(c->page, record->page, record->session, &now);
	forget_elsewhere(c, record);
	uids_remove(&c->uids, s->uid);
	uids_put(&c->uids, record->session, record->page);
	memset(s, 0, sizeof(*s));
	bits_set(c->known, record->page);
	s->uid = record->session;
	s->slot = record->page;
	s->settings = c->settings;
	s->passes = &c->passes_seen;
	s->k = now.k;
	s->unfollowed = now.unfollowed != 0;
	s->trial_id = knobs->session == record->session ? knobs->trial_id : 0;
	s->last_ns = record->finished_ns;
	s->n_context = record->n_context;
	s->k_fixed = record->k_fixed;
	begin(c, s, now.k);
	return s;
}

static void moving(float *average, float value, bool first)
{
	*average = first ? value : *average + DISPLAY_WEIGHT * (value - *average);
}

/* Position i was reached if all before it were accepted. */
static void count_positions(struct policy_state *s, const struct iteration_record *record)
{
	if (record->depth > s->depths)
		s->depths = record->depth;
	for (uint32_t i = 0; i < s->depths && record->depth > 0; i++) {
		s->reached[i] *= POSITION_LEFT;
		s->taken[i] *= POSITION_LEFT;
		if (i < record->depth && i <= record->accepted)
			s->reached[i] += 1;
		if (i < record->accepted)
			s->taken[i] += 1;
	}
}

/* Called before the record is measured. */
static void count_missing(struct policy_state *s, const struct iteration_record *record)
{
	struct policy_place now = {record->iteration, record->n_context};
	uint32_t tokens, missing = policy_missing(&s->place, &now, record->emitted, &tokens);
	s->missing += missing;
	s->lost += missing < UINT32_MAX - s->lost ? missing : UINT32_MAX - s->lost;
	s->place = now;
}

static void measure(
	struct controller *c, struct policy_state *s, const struct iteration_record *record)
{
	bool first = s->iterations == 0;
	s->iterations++;
	s->k_fixed = record->k_fixed;
	s->class_tpot_ns = record->tpot_us * UINT64_C(1000);
	s->class_ttft_ns = record->ttft_us * UINT64_C(1000);
	count_positions(s, record);
	s->last_ns = record->finished_ns;
	moving(&s->etr, record->emitted, first);
	moving(&s->drafted, record->drafted, first);
	moving(&s->accepted, record->accepted, first);
	s->iteration_ns =
		first ? (double)record->iteration_ns
		      : s->iteration_ns + (double)DISPLAY_WEIGHT *
						  ((double)record->iteration_ns - s->iteration_ns);
	/* A pass with one token per session had no speculation, whoever decided that. */
	double *base = &c->base_ns[record->batch_sessions];
	uint64_t *at = &c->base_at[record->batch_sessions];
	if (record->k == 0 && record->batch_tokens == record->batch_sessions) {
		*at = c->clock;
		*base = *base > 0 ? *base + (double)DISPLAY_WEIGHT *
						    ((double)record->iteration_ns - *base)
				  : (double)record->iteration_ns;
	}
	s->base_ns = *base;
	s->base_age = c->clock - *at;
}

static bool in_range(const struct iteration_record *r)
{
	return r->session != 0 && r->page < LIMIT_SESSIONS && r->k <= LIMIT_DRAFT_DEPTH &&
	       r->batch_sessions > 0 && r->depth <= r->k && r->depth <= r->drafted &&
	       r->drafted <= LIMIT_DRAFT_NODES && (r->depth > 0) == (r->drafted > 0) &&
	       r->accepted <= r->depth && r->beside <= r->accepted &&
	       r->k_fixed <= LIMIT_DRAFT_DEPTH + 1 && r->emitted <= r->accepted + 1 &&
	       r->batch_sessions <= LIMIT_RUNNING && r->iteration_ns < UINT64_C(1) << 62 &&
	       r->foreseen <= LIMIT_DRAFT_DEPTH && r->foreseen_drafted <= r->foreseen &&
	       r->foreseen_right <= r->foreseen_drafted && (r->foreseen == 0 || r->k == 0);
}

static void touch(struct controller *c, uint32_t slot)
{
	bits_set(c->touched, slot);
}

/* Plans for those of the pass's sessions that this policy serves. */
static void plan_for(
	struct controller *c, const struct controller_pass *pass, const struct policy_ops *ops)
{
	struct policy_state *states[LIMIT_RUNNING];
	struct verdict verdicts[LIMIT_RUNNING];
	uint32_t k_old[LIMIT_RUNNING], n = 0;
	for (uint32_t i = 0; i < pass->n; i++) {
		struct policy_state *s = &c->sessions[pass->slots[i]];
		/* Its policy may have changed since its record came. */
		if (s->uid == 0 || s->ops != ops)
			continue;
		states[n] = s;
		verdicts[n].decided = false;
		k_old[n++] = s->k;
	}
	ops->plan(states, n, pass->sessions, pass->others, c->n_passes, verdicts);
	for (uint32_t i = 0; i < n; i++) {
		if (verdicts[i].decided)
			decide(c, states[i], k_old[i], &verdicts[i]);
		touch(c, states[i]->slot);
	}
}

static void plan_pass(struct controller *c, const struct controller_pass *pass)
{
	for (uint32_t i = 0; policies_all[i]; i++)
		if (policies_all[i]->plan)
			plan_for(c, pass, policies_all[i]);
}

/* The pass whose records came is complete. The other entry is used for the next one. */
static struct controller_pass *next_pass(struct controller *c)
{
	c->n_passes++;
	c->gathering ^= 1;
	c->passes[c->gathering].seen = 0;
	return &c->passes[c->gathering];
}

/* Adds the record's session to its pass. A pass is complete with its last record, or, if some were
 * lost, with the first record of the next pass. */
static void add_to_pass(
	struct controller *c, const struct policy_state *s, const struct iteration_record *record)
{
	struct controller_pass *pass = &c->passes[c->gathering];
	if (pass->seen > 0 &&
		(pass->iteration != record->iteration || pass->sessions != record->batch_sessions))
		pass = next_pass(c);
	if (pass->seen == 0) {
		pass->iteration = record->iteration;
		pass->sessions = record->batch_sessions;
		pass->others = pass->n = 0;
		memset(pass->has, 0, sizeof(pass->has));
	}
	pass->seen++;
	if (s->ops->plan && !record->k_fixed && !bits_get(pass->has, s->slot)) {
		bits_set(pass->has, s->slot);
		pass->slots[pass->n++] = s->slot;
	} else
		pass->others += record->drafted;
	if (pass->seen >= pass->sessions)
		next_pass(c);
}

/* The verifier leaves a record of every session of every pass, unless the ring is full. */
static void count_pass(struct controller *c, const struct iteration_record *record)
{
	bool later = c->iteration > 0 && record->iteration > c->iteration;
	if (record->iteration == c->iteration)
		return;
	c->clock += later ? record->iteration - c->iteration : 1;
	c->iteration = record->iteration;
}

const struct policy_state *controller_record(
	struct controller *c, const struct iteration_record *record)
{
	if (!in_range(record)) {
		c->n_refused++;
		return NULL;
	}
	c->n_records++;
	c->last_iteration_ns = record->iteration_ns;
	c->last_ns = c->now_ns = record->finished_ns;
	count_pass(c, record);
	struct policy_state *s = find(c, record);
	count_missing(s, record);
	/* A pass with prompt tokens, of any session, measures no K; nor does one that emitted
	 * nothing. */
	if (record->prefill_tokens == 0 && record->emitted > 0) {
		struct verdict verdict = {.decided = false};
		uint32_t k_old = s->k;
		bool first = s->iterations == 0 || s->k_seen == 0;
		measure(c, s, record);
		if (!record->k_fixed)
			s->ops->observe(s, record, &verdict);
		/* A pass that no policy has learned from says what passes cost all the same. */
		passes_observe(&c->passes_seen, record, first);
		passes_brought(&c->passes_seen, record);
		s->k_seen = record->k;
		if (verdict.decided)
			decide(c, s, k_old, &verdict);
		add_to_pass(c, s, record);
	}
	touch(c, s->slot);
	c->newest = s->slot;
	return s;
}

void controller_settle(struct controller *c)
{
	uint32_t slot = 0;

	if (bits_next(c->touched, LIMIT_SESSIONS, 0) == LIMIT_SESSIONS)
		return;
	if (c->n_passes > 0)
		plan_pass(c, &c->passes[c->gathering ^ 1]);
	c->n_passes = 0;
	while ((slot = bits_next(c->touched, LIMIT_SESSIONS, slot)) < LIMIT_SESSIONS) {
		struct policy_state *s = &c->sessions[slot];
		bits_clear(c->touched, slot);
		s->k_last = s->trial_n ? s->trial_k : s->k;
		publish(c, s);
	}
	c->unfollowed = c->sessions[c->newest].unfollowed;
	publish_defaults(c);
}

uint64_t controller_due_ns(const struct controller *c)
{
	uint64_t due = 0;
	for (uint32_t slot = 0; (slot = bits_next(c->known, LIMIT_SESSIONS, slot)) < LIMIT_SESSIONS;
		slot++) {
		const struct policy_state *s = &c->sessions[slot];
		if (s->k_fixed || !s->ops->awaits ||
			c->last_ns - s->last_ns > OVER_AFTER * c->last_iteration_ns)
			continue;
		uint32_t n = s->ops->awaits(s);
		uint64_t at = s->last_ns + n * c->last_iteration_ns;
		if (n > 0 && (due == 0 || at < due))
			due = at;
	}
	return due;
}

static void apply(struct controller *c, struct policy_state *s, const struct settings *settings)
{
	bool same = strcmp(s->settings.policy, settings->policy) == 0;
	bool in_bounds = s->k <= (uint32_t)settings->k_max;
	uint32_t k_old = s->k;
	const struct settings before = s->settings;
	struct verdict verdict = {.decided = false};
	s->settings = *settings;
	s->unfollowed = s->unfollowed && settings->rest_at_zero;
	if (!same || (!in_bounds && s->ops != &policy_static)) {
		s->unfollowed = false;
		begin(c, s, in_bounds ? k_old : 0);
	} else if (s->ops->adjust) {
		s->ops->adjust(s, &before, &verdict);
		if (verdict.decided && !s->k_fixed)
			decide(c, s, k_old, &verdict);
	}
	publish(c, s);
}

static struct policy_state *by_uid(struct controller *c, uint64_t uid)
{
	int slot = uids_find(&c->uids, uid);
	return slot < 0 ? NULL : &c->sessions[slot];
}

/* A session keeps the values that were set for it alone: those in which its settings differ from
 * what all sessions had before. If its values and the new ones do not go together, it gets those of
 * all. */
static struct settings settings_for(const struct policy_state *s, const struct settings *before,
	const struct settings *settings)
{
	struct settings own = *settings;
	for (const struct config_key *key = settings_keys; key->name; key++)
		if (!config_equal(key, &s->settings, before))
			config_copy(key, &s->settings, &own);
	return settings_check(&own, NULL) == 0 ? own : *settings;
}

int controller_set(struct controller *c, const struct settings *settings, uint64_t uid,
	uint64_t now_ns, struct error *err)
{
	c->now_ns = now_ns;
	if (uid != 0) {
		struct policy_state *s = by_uid(c, uid);
		if (!s)
			return error_set(err, ENOENT,
				"session %llu is not known to the policy-controller",
				(unsigned long long)uid);
		apply(c, s, settings);
		return 0;
	}
	struct settings before = c->settings;
	c->settings = *settings;
	c->unfollowed = false;
	publish_defaults(c);
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		if (c->sessions[i].uid != 0) {
			struct settings own = settings_for(&c->sessions[i], &before, settings);
			apply(c, &c->sessions[i], &own);
		}
	return 0;
}

const struct policy_state *controller_session(const struct controller *c, uint64_t uid)
{
	int slot = uids_find(&c->uids, uid);
	return slot < 0 ? NULL : &c->sessions[slot];
}

const struct settings *controller_settings(const struct controller *c, uint64_t uid)
{
	if (uid == 0)
		return &c->settings;
	const struct policy_state *s = controller_session(c, uid);
	return s ? &s->settings : NULL;
}

void controller_baseline(const struct policy_state *s, double *base_ns, uint64_t *age)
{
	*base_ns = s->base_ns;
	*age = s->base_age;
	if (s->ops->baseline)
		s->ops->baseline(s, base_ns, age);
}

const struct decision *controller_decision(const struct controller *c, uint64_t after)
{
	uint64_t newest = c->first_decision + c->n_decisions;
	uint64_t kept =
		c->n_decisions < CONTROLLER_DECISIONS ? c->n_decisions : CONTROLLER_DECISIONS;
	/* The predecessor's decisions are gone. A successor has decided nothing yet, and its
	 * numbers continue from theirs. */
	if (kept == 0 || after >= newest)
		return NULL;
	uint64_t number = after + 1;
	if (number < newest - kept + 1)
		number = newest - kept + 1;
	return &c->decisions[(number - c->first_decision - 1) % CONTROLLER_DECISIONS];
}

uint32_t controller_tolerance(
	struct controller *c, uint32_t sessions, uint32_t most, struct tolerance_point *out)
{
	struct passes *passes = &c->passes_seen;
	if (sessions < 1 || sessions > LIMIT_RUNNING ||
		!tolerance_seen(&passes->tolerance, sessions))
		return 0;
	return tolerance_points(&passes->tolerance, &passes->cost, sessions, most, out);
}
