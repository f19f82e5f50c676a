/* Temporary changes. They live in the process: the program that made one may have ended when the
 * change does. */
#include "shared/ipc/knobs_private.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon.h"

#include <stdlib.h>
#include <string.h>

const struct knob_revert *knobs_revert_of(
	const struct knobs *knobs, const struct config_key *key, uint64_t session)
{
	for (size_t i = 0; i < knobs->n_reverts; i++)
		if (knobs->reverts[i].key == key && knobs->reverts[i].session == session)
			return &knobs->reverts[i];
	return NULL;
}

int knobs_reverts_room(const struct knobs *knobs, size_t n, struct error *err)
{
	if (knobs->n_reverts + n <= KNOBS_REVERTS_MAX)
		return 0;
	return error_set(err, ENOSPC, "%s: %zu changes for a time run already; at most %d can",
		knobs->process, knobs->n_reverts, KNOBS_REVERTS_MAX);
}

static void drop(struct knobs *knobs, size_t i)
{
	free(knobs->reverts[i].value);
	knobs->reverts[i] = knobs->reverts[--knobs->n_reverts];
}

void knobs_reverts_replace(
	struct knobs *knobs, const struct knob_batch *batch, struct knob_outcomes *outcomes)
{
	uint64_t due_ns = clock_ns() + batch->for_ns;
	knobs->serial++;
	for (size_t i = 0; i < outcomes->n; i++) {
		struct knob_outcome *outcome = &outcomes->of[i];
		for (size_t j = 0; j < knobs->n_reverts; j++)
			if (knobs->reverts[j].key == outcome->key &&
				knobs->reverts[j].session == batch->session) {
				drop(knobs, j);
				break;
			}
		if (batch->for_ns == 0)
			continue;
		knobs->reverts[knobs->n_reverts++] = (struct knob_revert){.key = outcome->key,
			.session = batch->session,
			.serial = knobs->serial,
			.due_ns = due_ns,
			.value = outcome->base};
		outcome->base = NULL;
	}
	knobs_reverts_schedule(knobs);
}

void knobs_reverts_tell(struct knobs *knobs)
{
	if (!knobs->o.stays)
		return;
	memcpy(knobs->scratch, knobs->o.config, knobs->o.config_bytes);
	for (size_t i = 0; i < knobs->n_reverts; i++) {
		const struct knob_revert *revert = &knobs->reverts[i];
		/* config_value wrote the text from a value that was in force. */
		if (revert->session == 0 && revert->value)
			(void)config_assign(
				revert->key, revert->value, knobs->process, knobs->scratch, NULL);
	}
	knobs->o.stays(knobs->o.arg, knobs->scratch);
}

/* The batches that end one temporary set: keys that return to a value, and keys of a session that
 * follow all sessions again. */
struct due {
	struct knob_batch set, reset;
	char *values[KNOBS_BATCH_MAX]; /* malloc'd; the values of `set` */
};

/* Takes one revert that is due out of the list; false when none is. */
static bool take_due(struct knobs *knobs, uint64_t now_ns, struct due *due)
{
	uint64_t serial = 0;
	memset(due, 0, sizeof *due);
	due->set.what = due->reset.what = "revert";
	due->reset.reset = true;
	for (size_t i = 0; i < knobs->n_reverts && serial == 0; i++)
		if (knobs->reverts[i].due_ns <= now_ns) {
			serial = knobs->reverts[i].serial;
			due->set.session = due->reset.session = knobs->reverts[i].session;
		}
	for (size_t i = 0; serial != 0 && i < knobs->n_reverts;) {
		const struct knob_revert *revert = &knobs->reverts[i];
		struct knob_batch *to = revert->value ? &due->set : &due->reset;
		if (revert->serial != serial) {
			i++;
			continue;
		}
		if (revert->value)
			due->values[to->n] = revert->value;
		to->changes[to->n++] = (struct knob_change){
			.name = revert->key->name, .value = revert->value, .key = revert->key};
		knobs->reverts[i] = knobs->reverts[--knobs->n_reverts];
	}
	return serial != 0;
}

/* Makes a revert. If it is refused because of later changes, the values stay and the journal says
 * so. */
static void revert(struct knobs *knobs, const struct knob_batch *batch)
{
	struct knob_outcomes outcomes = {.n = 0};
	struct error err = {""};
	if (batch->n == 0)
		return;
	int r = knobs_set(knobs, batch, &outcomes, &err);
	if (r == 0) {
		log_notice("%s%s back to %s: its time is over", outcomes.of[0].key->name,
			outcomes.n > 1 ? " and others" : "", outcomes.of[0].new_value);
	} else if (r == -ENOENT && batch->session != 0) {
		log_info("a session's change for a time ended with the session");
	} else {
		struct knob_batch kept = *batch;
		kept.what = "kept";
		knobs_outcomes_free(&outcomes);
		log_notice("%s%s cannot go back now its time is over: %s", batch->changes[0].name,
			batch->n > 1 ? " and others" : "", err.text);
		knobs_journal_add(&knobs->journal, &kept, &outcomes, err.text);
		knobs_reverts_tell(knobs);
	}
	knobs_outcomes_free(&outcomes);
}

static void on_timer(void *arg)
{
	struct knobs *knobs = arg;
	struct due due;
	/* The administrator who has reserved the knobs has checked their values, so reverts wait
	 * for his release. */
	while (!knobs_reserved(knobs, 0) && take_due(knobs, clock_ns(), &due)) {
		revert(knobs, &due.set);
		revert(knobs, &due.reset);
		for (size_t i = 0; i < due.set.n; i++)
			free(due.values[i]);
	}
	knobs_reverts_schedule(knobs);
}

void knobs_reverts_schedule(struct knobs *knobs)
{
	bool reserved = knobs_reserved(knobs, 0);
	uint64_t now_ns = clock_ns(), due_ns = UINT64_MAX;
	if (knobs->timer > 0)
		daemon_remove_timer(knobs->daemon, knobs->timer);
	knobs->timer = 0;
	for (size_t i = 0; i < knobs->n_reverts; i++)
		if (knobs->reverts[i].due_ns < due_ns)
			due_ns = knobs->reverts[i].due_ns;
	if (reserved && due_ns != UINT64_MAX && knobs->reserved.until_ns > due_ns)
		due_ns = knobs->reserved.until_ns;
	if (reserved && knobs->applied.is && knobs->reserved.until_ns < due_ns)
		due_ns = knobs->reserved.until_ns;
	if (due_ns == UINT64_MAX)
		return;
	knobs->timer = daemon_add_timer(
		knobs->daemon, due_ns > now_ns ? due_ns - now_ns : 1, on_timer, knobs);
	if (knobs->timer < 0)
		log_error("no timer for changes for a time");
}

void knobs_reverts_free(struct knobs *knobs)
{
	while (knobs->n_reverts > 0)
		drop(knobs, 0);
}
