/*
 * Records the changes that a restart has lost. A change made while a process runs ends with that
 * process, whether it was stopped or killed, and perhaps nobody noticed. Where a knob of all
 * sessions differs from the journal's last entry, the journal gets an entry and the log a line. The
 * values of single sessions are not compared: it is not known here which sessions continue.
 */
#include "shared/ipc/knobs_private.h"

#include "shared/base/log.h"
#include "shared/ipc/daemon.h"

#include <stdlib.h>
#include <string.h>

/* The journal's last value of one knob; event NULL: it has none. */
struct last {
	const struct knob_event *event;
	const char *value;
};

/* A knob whose value differs now. */
struct lost {
	struct knob_outcome outcome;
	const char *why;
	bool stored; /* it was changed for this start, so it is no surprise */
};

static bool is(const struct knob_event *event, const char *what)
{
	return strcmp(event->what, what) == 0;
}

static struct last last_of(const struct knob_journal *journal, const char *name)
{
	for (size_t i = knobs_journal_count(journal); i-- > 0;) {
		const struct knob_event *e = knobs_journal_at(journal, i);
		if (e->session != 0 || !e->name || strcmp(e->name, name) != 0)
			continue;
		if (is(e, "kept") || is(e, "undone"))
			continue;
		/* A change for the next start says what was in force when it was made. */
		return (struct last){e, e->at_start ? e->old_value : e->new_value};
	}
	return (struct last){NULL, NULL};
}

/* For a process that took another's place, and for one of a service that was started by somebody. */
static const char *why(const struct knob_event *last, bool successor)
{
#define BOTH(text) \
	(successor ? "the process was started again" text : "the service was started anew" text)
	if (last->at_start)
		return BOTH(", with what was stored for it");
	if (last->for_ns != 0)
		return BOTH(", and a change for a time ends with the process");
	if (last->persist || is(last, "restart"))
		return BOTH("");
	return BOTH(", and a change without --persist ends with the process");
#undef BOTH
}

/* True when the knob's value differs from the journal's last one. */
static bool differs(const struct knobs *knobs, const struct config_key *key, struct lost *lost)
{
	char name[128], value[CONFIG_VALUE_BYTES];
	config_name(key, name, sizeof name);
	struct last last = last_of(&knobs->journal, name);
	config_value(key, knobs->o.config, value, sizeof value);
	knobs_journal_cut(value);
	if (!last.event || !last.value || strcmp(last.value, value) == 0)
		return false;
	lost->outcome = (struct knob_outcome){
		.key = key, .old_value = strdup(last.value), .new_value = strdup(value)};
	lost->why = why(last.event, daemon_succeeds());
	lost->stored = last.event->at_start;
	return true;
}

static void say(const struct knobs *knobs, const struct lost *lost, size_t n)
{
	const struct knob_outcome *first = NULL;
	size_t more = 0;
	for (size_t i = 0; i < n; i++) {
		if (lost[i].stored)
			continue;
		more += first != NULL;
		first = first ? first : &lost[i].outcome;
	}
	if (!first || !first->old_value || !first->new_value)
		return;
	if (daemon_succeeds())
		log_notice("%s is %.100s, was %.100s before the process started again%s: changes "
			   "without --persist end with the process; outriderctl knob history %s "
			   "shows it",
			first->key->name, first->new_value, first->old_value,
			more ? ", and other knobs changed too" : "", knobs->process);
	else
		log_notice("%s is %.100s, as the settings say, and was %.100s when the service "
			   "last ran%s: changes without --persist end with the service; "
			   "outriderctl knob history %s shows it",
			first->key->name, first->new_value, first->old_value,
			more ? ", and other knobs differ too" : "", knobs->process);
}

void knobs_restarted(struct knobs *knobs)
{
	const struct knob_batch batch = {.what = "restart"};
	struct lost *lost = calloc(knobs->n_keys + 1, sizeof *lost);
	size_t n = 0;
	/* All are found before the first new entry replaces the oldest one. */
	for (size_t i = 0; lost && i < knobs->n_keys; i++)
		n += differs(knobs, &knobs->o.keys[i], &lost[n]);
	for (size_t i = 0; i < n; i++) {
		struct knob_outcomes one = {.n = 1, .of[0] = lost[i].outcome};
		knobs_journal_add(&knobs->journal, &batch, &one, lost[i].why);
	}
	if (n > 0)
		say(knobs, lost, n);
	for (size_t i = 0; i < n; i++) {
		struct knob_outcomes one = {.n = 1, .of[0] = lost[i].outcome};
		knobs_outcomes_free(&one);
	}
	free(lost);
}
