#include "services/policy-controller/handlers.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon_knobs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	WATCH_MAX = 256, /* decisions in one reply */
	LOSSES_MAX = 1024, /* entries of losses that are looked at for a session */
	RECORDS_MAX = 8192, /* entries of the journal in one reply: less than a megabyte */
};

/* Replies are freed with protobuf-c, so everything in them must be malloc'd. */
static void *make(size_t bytes)
{
	void *memory = calloc(1, bytes ? bytes : 1);
	if (!memory)
		log_error("no memory for an admin reply of %zu bytes", bytes);
	return memory;
}

static bool add_knobs(Outrider__PolicyState *state, const struct settings *settings)
{
	size_t n = config_count(settings_keys);
	state->knobs = make(n * sizeof(Outrider__Knob *));
	if (!state->knobs)
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct config_key *key = &settings_keys[i];
		char value[CONFIG_VALUE_BYTES], range[96];
		Outrider__Knob *knob = make(sizeof(*knob));
		if (!knob)
			return false;
		outrider__knob__init(knob);
		config_value(key, settings, value, sizeof(value));
		config_range(key, range, sizeof(range));
		knob->name = strdup(key->name);
		knob->value = strdup(value);
		knob->range = strdup(range);
		knob->help = strdup(key->help);
		state->knobs[state->n_knobs++] = knob;
	}
	return true;
}

static bool add_sessions(Outrider__PolicyState *state, const struct controller *c)
{
	state->sessions = make(LIMIT_SESSIONS * sizeof(Outrider__PolicySession *));
	if (!state->sessions)
		return false;
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		const struct policy_state *s = &c->sessions[i];
		if (s->uid == 0)
			continue;
		Outrider__PolicySession *to = make(sizeof(*to));
		if (!to)
			return false;
		outrider__policy_session__init(to);
		double base_ns;
		uint64_t base_age;
		controller_baseline(s, &base_ns, &base_age);
		to->session_uid = s->uid;
		to->slot = s->slot;
		to->k = s->k_fixed ? s->k_fixed - 1 : s->k;
		to->utility = s->utility;
		to->acceptance = s->drafted > 0 ? s->accepted / s->drafted : 0;
		to->etr = s->etr;
		to->phase = strdup(s->k_fixed ? "fixed" : phase_names[s->phase]);
		to->iterations = s->iterations;
		to->drafted = s->drafted;
		to->base_ms = base_ns / 1e6;
		to->base_age = base_age;
		to->iteration_ms = s->iteration_ns / 1e6;
		to->policy = strdup(s->settings.policy);
		state->sessions[state->n_sessions++] = to;
	}
	return true;
}

/* Records from which the controller learned nothing. Call under the mutex. */
static uint64_t records_lost(const struct records *records)
{
	return records->controller->n_refused + ring_dropped(&records->ring);
}

static void get(struct records *records, Outrider__Envelope *reply)
{
	const struct controller *c = records->controller;
	Outrider__PolicyState *state = make(sizeof(*state));
	if (!state)
		return;
	outrider__policy_state__init(state);
	state->policy = strdup(c->settings.policy);
	state->records = c->n_records;
	state->records_lost = records_lost(records);
	state->decisions = c->first_decision + c->n_decisions;
	if (!add_knobs(state, &c->settings) || !add_sessions(state, c)) {
		outrider__policy_state__free_unpacked(state, NULL);
		daemon_failure(reply, ENOMEM, 0, "no memory for the policy's state");
		return;
	}
	reply->body_case = OUTRIDER__ENVELOPE__BODY_POLICY_STATE;
	reply->policy_state = state;
}

static Outrider__PolicyDecision *make_decision(const struct decision *d)
{
	Outrider__PolicyDecision *to = make(sizeof(*to));
	if (!to)
		return NULL;
	outrider__policy_decision__init(to);
	to->number = d->number;
	to->session_uid = d->session;
	to->k_old = d->k_old;
	to->k_new = d->k_new;
	to->phase = strdup(phase_names[d->phase]);
	to->reason = strdup(d->reason);
	to->time_ns = clock_wall_of(d->time_ns);
	to->trial_n = d->trial_n;
	to->k_then = d->k_then;
	to->utility = d->utility;
	return to;
}

static void watch(struct records *records, uint64_t after, Outrider__Envelope *reply)
{
	const struct controller *c = records->controller;
	Outrider__PolicyDecisions *decisions = make(sizeof(*decisions));
	if (!decisions)
		return;
	outrider__policy_decisions__init(decisions);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_POLICY_DECISIONS;
	reply->policy_decisions = decisions;
	decisions->next = c->first_decision + c->n_decisions;
	decisions->decisions = make(WATCH_MAX * sizeof(Outrider__PolicyDecision *));
	const struct decision *d;
	while (decisions->decisions && decisions->n_decisions < WATCH_MAX &&
		(d = controller_decision(c, after)) != NULL) {
		Outrider__PolicyDecision *to = make_decision(d);
		if (!to)
			return;
		decisions->decisions[decisions->n_decisions++] = to;
		after = d->number;
		/* Where to continue when the reply is full. */
		if (decisions->n_decisions == WATCH_MAX)
			decisions->next = after;
	}
}

static bool add_figures(Outrider__PolicyExplanation *to, const struct explanation *from)
{
	to->words = make(from->n_words * sizeof(*to->words));
	to->figures = make(from->n_figures * sizeof(*to->figures));
	if (!to->words || !to->figures)
		return false;
	for (uint32_t i = 0; i < from->n_words; i++)
		if ((to->words[to->n_words] = strdup(from->words[i])) != NULL)
			to->n_words++;
	for (uint32_t i = 0; i < from->n_figures; i++) {
		Outrider__PolicyFigure *figure = make(sizeof(*figure));
		if (!figure)
			return false;
		outrider__policy_figure__init(figure);
		figure->name = strdup(from->figures[i].name);
		figure->unit = strdup(from->figures[i].unit);
		figure->value = from->figures[i].value;
		to->figures[to->n_figures++] = figure;
	}
	return true;
}

static bool add_options(Outrider__PolicyExplanation *to, const struct explanation *from)
{
	to->options = make(from->n_options * sizeof(*to->options));
	to->positions = make(from->n_positions * sizeof(*to->positions));
	if (!to->options || !to->positions)
		return false;
	for (uint32_t i = 0; i < from->n_options; i++) {
		const struct explained_k *o = &from->options[i];
		Outrider__PolicyOption *option = make(sizeof(*option));
		if (!option)
			return false;
		outrider__policy_option__init(option);
		option->k = o->k;
		option->drafted = o->drafted;
		option->tokens = o->tokens;
		option->time_ms = o->time_ns / 1e6;
		option->tokens_per_s = o->tokens_per_s;
		option->utility = o->utility;
		option->doubt = o->doubt;
		option->weighed = o->weighed;
		option->brings = o->brings;
		option->costs = o->costs;
		to->options[to->n_options++] = option;
		option->note = strdup(o->note ? o->note : "");
		if (!option->note)
			return false;
	}
	for (uint32_t i = 0; i < from->n_positions; i++) {
		Outrider__PolicyPosition *position = make(sizeof(*position));
		if (!position)
			return false;
		outrider__policy_position__init(position);
		position->reached = from->positions[i].reached;
		position->accepted = from->positions[i].accepted;
		position->cut = from->positions[i].cut;
		to->positions[to->n_positions++] = position;
	}
	return true;
}

static bool add_decisions(Outrider__PolicyExplanation *to, const struct explanation *from)
{
	to->decisions = make(from->n_decisions * sizeof(*to->decisions));
	for (uint32_t i = 0; to->decisions && i < from->n_decisions; i++) {
		Outrider__PolicyDecision *decision = make_decision(from->decisions[i]);
		if (!decision)
			return false;
		to->decisions[to->n_decisions++] = decision;
	}
	return to->decisions != NULL;
}

static void explain(struct records *records, uint64_t uid, Outrider__Envelope *reply)
{
	static struct explanation e; /* belongs to the loop thread */
	char text[96];
	if (explain_session(records->controller, uid, &e) < 0) {
		if (uid)
			snprintf(text, sizeof(text),
				"session %llu is not known to the policy-controller",
				(unsigned long long)uid);
		else
			snprintf(text, sizeof(text), "the policy-controller has seen no session");
		daemon_failure(reply, ENOENT, uid, text);
		return;
	}
	/* If the session ended meanwhile, no record follows the lost ones. */
	if (records_lost(records) > 0)
		explain_figure(
			&e, "records lost, of all sessions", "", (double)records_lost(records));
	const struct policy_state *s = e.state;
	uint64_t now = clock_ns();
	Outrider__PolicyExplanation *to = make(sizeof(*to));
	if (!to)
		return;
	outrider__policy_explanation__init(to);
	to->session_uid = s->uid;
	to->policy = strdup(s->settings.policy);
	to->phase = strdup(s->k_fixed ? "fixed" : phase_names[s->phase]);
	to->k = e.k;
	to->k_last = e.k_last;
	to->k_then = e.k_then;
	to->trial_n = e.trial_n;
	to->k_fixed = e.k_fixed;
	to->utility = s->utility;
	to->options_are = strdup(s->ops->options_are);
	to->tells_drafted = s->ops->tells_drafted;
	to->tells_doubt = s->ops->tells_doubt;
	to->age_ns = now > s->last_ns ? now - s->last_ns : 0;
	if (!add_figures(to, &e) || !add_options(to, &e) || !add_decisions(to, &e)) {
		outrider__policy_explanation__free_unpacked(to, NULL);
		daemon_failure(reply, ENOMEM, uid, "no memory for the explanation");
		return;
	}
	reply->body_case = OUTRIDER__ENVELOPE__BODY_POLICY_EXPLANATION;
	reply->policy_explanation = to;
}

static bool add_point(Outrider__Tolerance *to, const struct tolerance_point *from)
{
	Outrider__TolerancePoint *p = make(sizeof(*p));
	if (!p)
		return false;
	outrider__tolerance_point__init(p);
	p->sessions = from->sessions;
	p->gamma = from->gamma;
	p->tau = from->tau;
	p->pass_ms = from->pass_ns / 1e6;
	p->evidence = from->evidence;
	p->passes = from->passes;
	p->context = from->context;
	p->drafted = from->drafted;
	p->emitted = from->lambda;
	p->delta = from->delta;
	p->predicted = from->predicted;
	p->measured = from->measured;
	to->points[to->n_points++] = p;
	return true;
}

static void tolerance(struct records *records, Outrider__Envelope *reply)
{
	struct tolerance_point points[TOLERANCE_GAMMAS];
	size_t most = (size_t)LIMIT_RUNNING * TOLERANCE_GAMMAS;
	Outrider__Tolerance *to = make(sizeof(*to));
	bool made = to != NULL;
	if (!to)
		return;
	outrider__tolerance__init(to);
	to->points = make(most * sizeof(Outrider__TolerancePoint *));
	for (uint32_t b = 1; to->points && made && b <= LIMIT_RUNNING; b++) {
		uint32_t n = controller_tolerance(records->controller, b, TOLERANCE_GAMMAS, points);
		for (uint32_t i = 0; made && i < n; i++)
			made = add_point(to, &points[i]);
	}
	if (!to->points || !made) {
		outrider__tolerance__free_unpacked(to, NULL);
		daemon_failure(reply, ENOMEM, 0, "no memory for the tolerance");
		return;
	}
	reply->body_case = OUTRIDER__ENVELOPE__BODY_TOLERANCE;
	reply->tolerance = to;
}

static Outrider__PolicyRecord *make_record(const struct journal_entry *entry)
{
	Outrider__PolicyRecord *r = make(sizeof(*r));
	if (!r)
		return NULL;
	outrider__policy_record__init(r);
	r->number = entry->number;
	r->time_ns = entry->time_ns;
	r->session_uid = entry->session;
	r->iteration = entry->iteration;
	r->n_context = entry->n_context;
	r->k = entry->k;
	r->drafted = entry->drafted;
	r->accepted = entry->accepted;
	r->emitted = entry->emitted;
	r->phase = strdup(entry->phase < N_PHASES ? phase_names[entry->phase] : "?");
	r->k_next = entry->k_next;
	r->k_fixed = entry->k_fixed;
	r->batch_sessions = entry->batch_sessions;
	r->batch_tokens = entry->batch_tokens;
	r->prefill_tokens = entry->prefill_tokens;
	r->unique_experts = entry->unique_experts;
	r->expert_hits = entry->expert_hits;
	r->expert_misses = entry->expert_misses;
	r->expert_bytes = entry->expert_bytes;
	r->draft_us = entry->draft_us;
	r->verify_us = entry->verify_us;
	r->sample_us = entry->sample_us;
	r->iteration_us = entry->iteration_us;
	r->base_us = entry->base_us;
	r->utility = entry->utility;
	r->etr = entry->etr;
	r->foreseen = entry->foreseen_drafted;
	r->foreseen_right = entry->foreseen_right;
	return r;
}

/* Fills in how many iterations of a session are missing between two of its entries. */
static void tell_missing(Outrider__PolicyRecord *record, const struct journal_entry *before,
	const struct journal_entry *entry)
{
	struct policy_place from = {before->iteration, before->n_context};
	struct policy_place to = {entry->iteration, entry->n_context};
	record->missing = policy_missing(&from, &to, entry->emitted, &record->missing_tokens);
}

/* Iterations of all sessions that were lost directly after a session's last entry, if that entry
 * was in the last pass before the loss. Part of that pass may be lost too, and nobody knows whether
 * the session continued. */
static uint64_t lost_behind(struct journal *journal, const struct journal_entry *last)
{
	static struct journal_loss losses[LOSSES_MAX]; /* belongs to the loop thread */
	uint32_t n = journal_losses(journal, last->number, losses, LOSSES_MAX);
	uint64_t lost = 0;
	for (uint32_t i = 0; i < n && losses[i].iteration == losses[0].iteration; i++)
		lost += losses[i].lost;
	bool there = n > 0 && losses[0].iteration >= last->iteration &&
		     losses[0].iteration - last->iteration <= 1;
	return there ? lost : 0;
}

/* Does not hold the records' mutex: reading a file must not delay the thread that takes records. */
static void read_journal(struct records *from, const Outrider__PolicyRecordsRequest *request,
	Outrider__Envelope *reply)
{
	struct journal *journal = from->journal;
	static struct journal_entry entries[RECORDS_MAX]; /* belongs to the loop thread */
	Outrider__PolicyRecords *records = make(sizeof(*records));
	if (!records)
		return;
	outrider__policy_records__init(records);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_POLICY_RECORDS;
	reply->policy_records = records;
	uint32_t max = request->max > 0 && request->max < RECORDS_MAX ? request->max : RECORDS_MAX;
	uint32_t n = journal_read(journal, request->session_uid, entries, max);
	records->path = strdup(journal->path);
	records->lost = journal_lost(journal);
	pthread_mutex_lock(&from->mutex);
	records->records_lost = records_lost(from);
	pthread_mutex_unlock(&from->mutex);
	records->records = make((n + 1) * sizeof(records->records[0]));
	for (uint32_t i = 0; records->records && i < n; i++) {
		Outrider__PolicyRecord *record = make_record(&entries[i]);
		if (!record)
			return;
		records->records[records->n_records++] = record;
		if (i > 0 && request->session_uid != 0)
			tell_missing(record, &entries[i - 1], &entries[i]);
	}
	if (n > 0 && request->session_uid != 0)
		records->lost_behind = lost_behind(journal, &entries[n - 1]);
}

int handle_admin(
	void *arg, const struct Outrider__Envelope *request, struct Outrider__Envelope *reply)
{
	struct records *records = arg;
	bool understood = true;
	if (request->body_case == OUTRIDER__ENVELOPE__BODY_POLICY_RECORDS_REQUEST) {
		read_journal(records, request->policy_records_request, reply);
		return reply->body_case != OUTRIDER__ENVELOPE__BODY__NOT_SET ? 0 : -ENOMEM;
	}
	pthread_mutex_lock(&records->mutex);
	switch (request->body_case) {
	case OUTRIDER__ENVELOPE__BODY_POLICY_GET:
		get(records, reply);
		break;
	case OUTRIDER__ENVELOPE__BODY_POLICY_WATCH:
		watch(records, request->policy_watch->after, reply);
		break;
	case OUTRIDER__ENVELOPE__BODY_POLICY_EXPLAIN:
		explain(records, request->policy_explain->session_uid, reply);
		break;
	case OUTRIDER__ENVELOPE__BODY_TOLERANCE_REQUEST:
		tolerance(records, reply);
		break;
	default:
		understood = false;
		break;
	}
	pthread_mutex_unlock(&records->mutex);
	if (!understood)
		return -EOPNOTSUPP;
	return reply->body_case != OUTRIDER__ENVELOPE__BODY__NOT_SET ? 0 : -ENOMEM;
}

static int apply(void *arg, const void *next, struct error *err)
{
	struct records *records = arg;
	pthread_mutex_lock(&records->mutex);
	int r = controller_set(records->controller, next, 0, clock_ns(), err);
	pthread_mutex_unlock(&records->mutex);
	return r;
}

static int session_get(void *arg, uint64_t uid, void *out, struct error *err)
{
	struct records *records = arg;
	pthread_mutex_lock(&records->mutex);
	const struct settings *settings = controller_settings(records->controller, uid);
	if (settings)
		*(struct settings *)out = *settings;
	pthread_mutex_unlock(&records->mutex);
	return settings ? 0
			: error_set(err, ENOENT,
				  "session %llu is not known to the policy-controller",
				  (unsigned long long)uid);
}

static int session_apply(void *arg, uint64_t uid, const void *next, struct error *err)
{
	struct records *records = arg;
	pthread_mutex_lock(&records->mutex);
	int r = controller_set(records->controller, next, uid, clock_ns(), err);
	pthread_mutex_unlock(&records->mutex);
	return r;
}

static int check(const void *settings, struct error *err)
{
	return settings_check(settings, err);
}

int handlers_knobs(struct records *records, struct daemon *daemon, struct settings *settings,
	const struct options *options, struct error *err)
{
	const struct daemon_knobs knobs = {
		.keys = settings_keys,
		.config = settings,
		.config_bytes = sizeof(*settings),
		.check = check,
		.apply = apply,
		.arg = records,
		.config_path = options->config_path,
		.on_command_line = options->on_command_line,
		.session_get = session_get,
		.session_apply = session_apply,
	};
	return daemon_knobs_open(daemon, &knobs, err);
}
