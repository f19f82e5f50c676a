/* The messages about knobs. protobuf-c frees everything that a reply points to, so all of it comes
 * from malloc. */
#include "shared/ipc/knobs_private.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon.h"

#include <stdlib.h>
#include <string.h>

static const char *const scope_names[] = {
	[KNOB_GLOBAL] = "global", [KNOB_MODEL] = "model", [KNOB_SESSION] = "session"};

static bool copy(char **to, const char *text)
{
	*to = strdup(text);
	return *to != NULL;
}

static bool add_choices(Outrider__KnobInfo *info, const struct config_key *key)
{
	static const char *const yes_no[] = {"yes", "no", NULL};
	const char *const *names = key->type == CONFIG_ENUM   ? key->names
				   : key->type == CONFIG_BOOL ? yes_no
							      : NULL;
	size_t n = 0;
	while (names && names[n])
		n++;
	info->choices = n ? calloc(n, sizeof *info->choices) : NULL;
	if (n && !info->choices)
		return false;
	for (; info->n_choices < n; info->n_choices++)
		if (!copy(&info->choices[info->n_choices], names[info->n_choices]))
			return false;
	return true;
}

static bool fill_info(const struct knobs *knobs, const struct config_key *key, uint64_t session,
	const void *config, Outrider__KnobInfo *info)
{
	size_t i = (size_t)(key - knobs->o.keys);
	uint64_t now_ns = clock_ns();
	char name[128], range[512], value[CONFIG_VALUE_BYTES], started[CONFIG_VALUE_BYTES],
		next[CONFIG_VALUE_BYTES], means[128] = "";
	const struct knob_revert *revert = knobs_revert_of(knobs, key, session);
	config_name(key, name, sizeof name);
	config_range(key, range, sizeof range);
	config_value(key, config, value, sizeof value);
	config_value(key, knobs->started, started, sizeof started);
	if (knobs->o.means && session == 0)
		knobs->o.means(knobs->o.arg, key, means, sizeof means);
	info->live = key->live;
	info->persisted = knobs->given[i];
	info->on_command_line = knobs->o.on_command_line && knobs->o.on_command_line[i];
	if (revert)
		info->reverts_in_ns = revert->due_ns > now_ns ? revert->due_ns - now_ns : 1;
	if (info->persisted) {
		config_value(key, knobs->stored, next, sizeof next);
		if (!copy(&info->stored, next))
			return false;
	}
	if (info->persisted && knobs->next_start_known) {
		config_value(key, knobs->scratch, next, sizeof next);
		info->next_start_known = true;
		if (!copy(&info->next_start, next))
			return false;
	}
	if (revert && !copy(&info->reverts_to, revert->value ? revert->value : "that of all"))
		return false;
	return copy(&info->name, name) && copy(&info->type, config_type_name(key->type)) &&
	       copy(&info->unit, config_unit(key)) && copy(&info->range, range) &&
	       copy(&info->fallback, key->fallback) && copy(&info->help, key->help) &&
	       copy(&info->scope, scope_names[key->scope]) && copy(&info->value, value) &&
	       copy(&info->means, means) && copy(&info->started, started) && add_choices(info, key);
}

static bool fill_list(
	struct knobs *knobs, uint64_t session, const void *config, Outrider__Knobs *list)
{
	list->changes = knobs->n_changes;
	list->knobs = calloc(knobs->n_keys + 1, sizeof(Outrider__KnobInfo *));
	if (!list->knobs || !copy(&list->process, knobs->process) ||
		!copy(&list->drop_in, knobs->file))
		return false;
	for (size_t i = 0; i < knobs->n_keys; i++) {
		const struct config_key *key = &knobs->o.keys[i];
		Outrider__KnobInfo *info = malloc(sizeof *info);
		bool own = session != 0 && key->scope == KNOB_SESSION;
		if (!info)
			return false;
		outrider__knob_info__init(info);
		list->knobs[list->n_knobs++] = info;
		if (!fill_info(knobs, key, own ? session : 0, own ? config : knobs->o.config, info))
			return false;
	}
	return true;
}

static void answer_list(
	struct knobs *knobs, const Outrider__KnobList *request, Outrider__Envelope *reply)
{
	struct error err = {""};
	bool none = request->session_uid == 0 || !knobs->o.session_get;
	const void *config = knobs_config(knobs, none ? 0 : request->session_uid, &err);
	Outrider__Knobs *list;
	if (!config) {
		daemon_failure(reply, ENOENT, request->session_uid, err.text);
		return;
	}
	/* A drop-in that cannot be read is reported when somebody wants to write it. */
	if (knobs_drop_in_read(knobs, NULL) < 0)
		memset(knobs->given, 0, knobs->n_keys * sizeof *knobs->given);
	memcpy(knobs->stored, knobs->scratch, knobs->o.config_bytes);
	knobs->next_start_known = knobs_next_start(knobs);
	list = malloc(sizeof *list);
	if (!list)
		return;
	outrider__knobs__init(list);
	if (!fill_list(knobs, none ? 0 : request->session_uid, config, list)) {
		outrider__knobs__free_unpacked(list, NULL);
		daemon_failure(reply, ENOMEM, 0, "no memory for the list of knobs");
		return;
	}
	reply->body_case = OUTRIDER__ENVELOPE__BODY_KNOBS;
	reply->knobs = list;
}

static void tame(char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			*text = '?';
}

/* Takes the sender's uid and pid from the kernel, and the program's name; without them, what the
 * sender says of itself. */
static void identify(const struct bus_address *from, const char *program, struct knob_who *who)
{
	char path[64];
	memset(who, 0, sizeof *who);
	who->has_uid = bus_peer(from, &who->uid, &who->pid);
	snprintf(who->program, sizeof who->program, "%s", program);
	snprintf(path, sizeof path, "/proc/%u/comm", who->pid);
	FILE *file = who->has_uid ? fopen(path, "re") : NULL;
	if (file) {
		if (fgets(who->program, sizeof who->program, file))
			who->program[strcspn(who->program, "\n")] = '\0';
		fclose(file);
	}
	tame(who->program);
}

static int read_batch(const struct bus_address *from, const Outrider__KnobSet *set,
	struct knob_batch *batch, struct error *err)
{
	*batch = (struct knob_batch){.reset = set->reset,
		.persist = set->persist || set->at_start,
		.at_start = set->at_start,
		.for_ns = set->for_ns,
		.session = set->session_uid,
		.what = set->reset ? "reset" : "set"};
	if (set->n_changes > KNOBS_BATCH_MAX)
		return error_set(err, EINVAL, "%zu changes at once; at most %d are allowed",
			set->n_changes, KNOBS_BATCH_MAX);
	for (; batch->n < set->n_changes; batch->n++) {
		const Outrider__KnobChange *change = set->changes[batch->n];
		batch->changes[batch->n] = (struct knob_change){.name = change->name,
			.value = change->value,
			.expected = change->has_expected ? change->expected : NULL};
	}
	identify(from, set->program, &batch->who);
	return 0;
}

static bool fill_done(const struct knob_outcomes *outcomes, Outrider__KnobDone *done)
{
	done->results = calloc(outcomes->n + 1, sizeof(Outrider__KnobResult *));
	if (!done->results)
		return false;
	for (size_t i = 0; i < outcomes->n; i++) {
		const struct knob_outcome *outcome = &outcomes->of[i];
		Outrider__KnobResult *result = malloc(sizeof *result);
		char name[128];
		if (!result)
			return false;
		outrider__knob_result__init(result);
		done->results[done->n_results++] = result;
		config_name(outcome->key, name, sizeof name);
		result->at_start = outcome->at_start;
		result->has_removed = outcome->removed != NULL;
		result->has_stays_for = knobs_stays_for(outcome) != NULL;
		if (!copy(&result->name, name) || !copy(&result->old_value, outcome->old_value) ||
			!copy(&result->new_value, outcome->new_value) ||
			!copy(&result->removed, outcome->removed ? outcome->removed : "") ||
			!copy(&result->stays_for,
				result->has_stays_for ? outcome->stays_for : "") ||
			!copy(&result->note, outcome->note))
			return false;
	}
	return true;
}

static void say(const struct knob_batch *batch, const struct knob_outcomes *outcomes)
{
	for (size_t i = 0; i < outcomes->n; i++) {
		const struct knob_outcome *o = &outcomes->of[i];
		log_info("%s: %s from %s to %s%s, by user %u (%s, process %u)", batch->what,
			o->key->name, o->old_value, o->new_value,
			o->at_start ? " from the next start on" : "", batch->who.uid,
			batch->who.program, batch->who.pid);
	}
}

/* Fills in the reply. The request has been carried out or refused by now; without memory for the
 * reply none is sent. */
static void answer_done(const struct knob_outcomes *outcomes, const char *drop_in, const char *busy,
	Outrider__Envelope *reply)
{
	Outrider__KnobDone *done = malloc(sizeof *done);
	if (!done)
		return;
	outrider__knob_done__init(done);
	done->busy = busy != NULL;
	if ((busy && !copy(&done->message, busy)) || !copy(&done->drop_in, drop_in) ||
		!fill_done(outcomes, done)) {
		outrider__knob_done__free_unpacked(done, NULL);
		return;
	}
	reply->body_case = OUTRIDER__ENVELOPE__BODY_KNOB_DONE;
	reply->knob_done = done;
}

static void answer_busy(struct knobs *knobs, Outrider__Envelope *reply)
{
	const struct knob_outcomes none = {.n = 0};
	const struct knob_who *who = &knobs->reserved.who;
	char text[160];
	snprintf(text, sizeof text,
		"%s: user %u (%s, process %u) is changing knobs of several processes",
		knobs->process, who->uid, who->program, who->pid);
	answer_done(&none, "", text, reply);
}

static int check_step(
	struct knobs *knobs, const Outrider__KnobSet *set, bool own, struct error *err)
{
	const int step = (int)set->step;
	bool goes_on =
		step == OUTRIDER__KNOB_SET__STEP__APPLY || step == OUTRIDER__KNOB_SET__STEP__COMMIT;
	if (step != OUTRIDER__KNOB_SET__STEP__NOW && set->reservation == 0)
		return error_set(err, EINVAL, "a reservation needs a number, not 0");
	if (goes_on && !own)
		return error_set(err, ETIMEDOUT,
			"%s: the reservation is over: it lasts %.0f s after every step",
			knobs->process, (double)KNOBS_RESERVED_NS / 1e9);
	if (knobs->applied.is && step != OUTRIDER__KNOB_SET__STEP__COMMIT &&
		step != OUTRIDER__KNOB_SET__STEP__RELEASE)
		return error_set(err, EINVAL,
			"%s: the applied changes must be committed or released first",
			knobs->process);
	return step >= 0 && step <= OUTRIDER__KNOB_SET__STEP__APPLY
		       ? 0
		       : error_set(err, EINVAL, "unknown step %d", step);
}

/* Carries out one step of a batch, from an administrator who may. The reservation ends with any
 * step that ends the batch. */
static int take_step(struct knobs *knobs, const Outrider__KnobSet *set,
	const struct knob_batch *batch, bool own, struct knob_outcomes *outcomes, struct error *err)
{
	int r = 0;
	switch (set->step) {
	case OUTRIDER__KNOB_SET__STEP__RESERVE:
	case OUTRIDER__KNOB_SET__STEP__APPLY:
		r = set->step == OUTRIDER__KNOB_SET__STEP__RESERVE ? knobs_try(knobs, batch, err)
								   : knobs_apply(knobs, batch, err);
		if (r == 0)
			knobs_reserve(knobs, set->reservation, &batch->who, KNOBS_RESERVED_NS);
		return r;
	case OUTRIDER__KNOB_SET__STEP__RELEASE:
		break;
	default:
		r = knobs->applied.is ? knobs_commit(knobs, outcomes, err)
				      : knobs_set(knobs, batch, outcomes, err);
	}
	if (own)
		knobs_release(knobs,
			"another process has not done its part, and a batch is all or nothing");
	return r;
}

static void answer_set(struct knobs *knobs, const struct bus_address *from,
	const Outrider__KnobSet *set, Outrider__Envelope *reply)
{
	struct knob_batch batch;
	struct knob_outcomes outcomes = {.n = 0};
	struct error err = {""};
	if (knobs_reserved(knobs, set->reservation)) {
		answer_busy(knobs, reply);
		return;
	}
	bool own = set->reservation != 0 && knobs->reserved.id == set->reservation;
	bool lasting = set->persist || set->at_start;
	int r = check_step(knobs, set, own, &err);
	if (r == 0)
		r = read_batch(from, set, &batch, &err);
	if (r == 0)
		r = take_step(knobs, set, &batch, own, &outcomes, &err);
	if (r < 0) {
		daemon_failure(reply, -r, set->session_uid, err.text);
	} else {
		say(&batch, &outcomes);
		answer_done(&outcomes, lasting ? knobs->file : "", NULL, reply);
	}
	knobs_outcomes_free(&outcomes);
}

static Outrider__KnobEvent *event_message(const struct knob_event *from)
{
	Outrider__KnobEvent *e = malloc(sizeof *e);
	if (!e)
		return NULL;
	outrider__knob_event__init(e);
	e->time_ns = from->time_ns;
	e->session_uid = from->session;
	e->for_ns = from->for_ns;
	e->persist = from->persist;
	e->at_start = from->at_start;
	e->has_removed = from->removed != NULL;
	e->has_uid = from->who.has_uid;
	e->uid = from->who.uid;
	e->pid = from->who.pid;
	if (copy(&e->what, from->what) && copy(&e->name, from->name ? from->name : "") &&
		copy(&e->old_value, from->old_value ? from->old_value : "") &&
		copy(&e->new_value, from->new_value ? from->new_value : "") &&
		copy(&e->program, from->who.program) &&
		copy(&e->reason, from->reason ? from->reason : "") &&
		copy(&e->removed, from->removed ? from->removed : ""))
		return e;
	outrider__knob_event__free_unpacked(e, NULL);
	return NULL;
}

static void answer_history(const struct knobs *knobs, const Outrider__KnobHistoryRequest *request,
	Outrider__Envelope *reply)
{
	size_t count = knobs_journal_count(&knobs->journal), skip = 0;
	Outrider__KnobHistory *history = malloc(sizeof *history);
	if (!history)
		return;
	outrider__knob_history__init(history);
	if (request->count_max != 0 && count > request->count_max)
		skip = count - request->count_max;
	history->events = calloc(count + 1, sizeof(Outrider__KnobEvent *));
	bool complete = history->events && copy(&history->process, knobs->process);
	for (size_t i = skip; complete && i < count; i++) {
		Outrider__KnobEvent *e = event_message(knobs_journal_at(&knobs->journal, i));
		complete = e != NULL;
		if (e)
			history->events[history->n_events++] = e;
	}
	if (!complete) {
		outrider__knob_history__free_unpacked(history, NULL);
		daemon_failure(reply, ENOMEM, 0, "no memory for the history of knobs");
		return;
	}
	reply->body_case = OUTRIDER__ENVELOPE__BODY_KNOB_HISTORY;
	reply->knob_history = history;
}

bool knobs_answer(struct knobs *knobs, const struct bus_address *from,
	const Outrider__Envelope *request, Outrider__Envelope *reply)
{
	switch (request->body_case) {
	case OUTRIDER__ENVELOPE__BODY_KNOB_LIST:
		answer_list(knobs, request->knob_list, reply);
		return true;
	case OUTRIDER__ENVELOPE__BODY_KNOB_SET:
		answer_set(knobs, from, request->knob_set, reply);
		return true;
	case OUTRIDER__ENVELOPE__BODY_KNOB_HISTORY_REQUEST:
		answer_history(knobs, request->knob_history_request, reply);
		return true;
	default:
		return false;
	}
}
