/*
 * Puts a batch of changes in force: it is applied, and then committed or taken back. When a batch
 * concerns several processes, all of them apply their part before any commits. Until the commit,
 * earlier temporary changes, the drop-in and the journal are untouched, so taking the batch back
 * means applying the former values. A batch of one process is applied and committed in one go.
 */
#include "shared/ipc/knobs_private.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int prefixed(const struct knobs *knobs, int r, struct error *err)
{
	return r < 0 ? error_prefix(err, r, "%s", knobs->process) : r;
}

static int put_in_force(
	struct knobs *knobs, uint64_t session, const void *config, struct error *err)
{
	return prefixed(knobs,
		session ? knobs->o.session_apply(knobs->o.arg, session, config, err)
			: knobs->o.apply(knobs->o.arg, config, err),
		err);
}

/* Reduces the copy to what changes now: keys that wait for the next start keep their values. False
 * when nothing changes. */
static bool only_now(struct knobs *knobs, const void *now, const struct knob_outcomes *outcomes)
{
	bool changes = false;
	for (size_t i = 0; i < outcomes->n; i++) {
		const struct config_key *key = outcomes->of[i].key;
		if (outcomes->of[i].at_start)
			config_copy(key, now, knobs->next);
		changes |= !config_equal(key, now, knobs->next);
	}
	return changes;
}

int knobs_try(struct knobs *knobs, const struct knob_batch *batch, struct error *err)
{
	struct knob_outcomes outcomes = {.n = 0};
	const void *now;
	int r = knobs_plan(knobs, batch, &now, &outcomes, err);
	if (r == 0 && batch->persist) {
		r = knobs_drop_in_prepare(knobs, &outcomes, knobs->next, batch->reset, err);
		if (r == 0)
			knobs_drop_in_abandon(knobs);
	}
	if (r == 0 && only_now(knobs, now, &outcomes) && batch->session == 0 && knobs->o.rehearse)
		r = prefixed(knobs, knobs->o.rehearse(knobs->o.arg, knobs->next, err), err);
	knobs_outcomes_free(&outcomes);
	return r;
}

/* Notes for each stored value whether the next start will use it, or something that comes after the
 * drop-in overrides it. */
static void note_what_comes_later(struct knobs *knobs, struct knob_outcomes *outcomes)
{
	const struct daemon_knobs *o = &knobs->o;
	if (!knobs_next_start(knobs))
		return;
	for (size_t i = 0; i < outcomes->n; i++) {
		struct knob_outcome *outcome = &outcomes->of[i];
		if (o->on_command_line && o->on_command_line[outcome->key - o->keys])
			outcome->note = "the command line sets it again at the next start";
		else if (!config_equal(outcome->key, knobs->wanted, knobs->scratch))
			outcome->note = "another drop-in sets it again at the next start";
	}
}

/* A reset of what is in force leaves the stored value, which comes back at the next start. */
static void note_what_stays_stored(struct knobs *knobs, struct knob_outcomes *outcomes)
{
	if (knobs_drop_in_read(knobs, NULL) < 0)
		return;
	for (size_t i = 0; i < outcomes->n; i++) {
		struct knob_outcome *outcome = &outcomes->of[i];
		if (knobs->given[outcome->key - knobs->o.keys])
			outcome->note = "a stored value stays for the next start; knob reset "
					"--persist removes it";
	}
}

/* Of what is in force now, and means something. */
static void note_what_is_idle(const struct knobs *knobs, struct knob_outcomes *outcomes)
{
	const struct daemon_knobs *o = &knobs->o;
	for (size_t i = 0; i < outcomes->n; i++) {
		struct knob_outcome *outcome = &outcomes->of[i];
		const char *why = o->idle ? o->idle(o->arg, outcome->key) : NULL;
		if (why && !*outcome->note && !outcome->at_start &&
			!config_is_default(outcome->key, o->config))
			outcome->note = why;
	}
}

/* Writes only the keys that changed: other threads may be reading the keys that cannot change. */
static void write_config(
	struct knobs *knobs, const struct knob_outcomes *outcomes, const void *from)
{
	for (size_t i = 0; i < outcomes->n; i++)
		if (!outcomes->of[i].at_start)
			config_copy(outcomes->of[i].key, from, knobs->o.config);
}

int knobs_apply(struct knobs *knobs, const struct knob_batch *batch, struct error *err)
{
	struct knob_outcomes *outcomes = &knobs->applied.outcomes;
	const void *now;
	assert(!knobs->applied.is && outcomes->n == 0);
	int r = knobs_plan(knobs, batch, &now, outcomes, err);
	bool prepared = false;
	if (r == 0) {
		memcpy(knobs->before, now, knobs->o.config_bytes);
		memcpy(knobs->wanted, knobs->next, knobs->o.config_bytes);
	}
	if (r == 0 && batch->persist) {
		r = knobs_drop_in_prepare(knobs, outcomes, knobs->wanted, batch->reset, err);
		prepared = r == 0;
	}
	bool changes = r == 0 && only_now(knobs, knobs->before, outcomes);
	if (changes)
		r = put_in_force(knobs, batch->session, knobs->next, err);
	if (r < 0) {
		if (prepared)
			knobs_drop_in_abandon(knobs);
		knobs_outcomes_free(outcomes);
		return r;
	}
	if (batch->session == 0)
		write_config(knobs, outcomes, knobs->next);
	knobs->applied.is = true;
	knobs->applied.changed = changes;
	knobs->applied.prepared = prepared;
	knobs->applied.batch = *batch;
	knobs->applied.batch.n = 0;
	return 0;
}

int knobs_commit(struct knobs *knobs, struct knob_outcomes *outcomes, struct error *err)
{
	const struct knob_batch *batch = &knobs->applied.batch;
	assert(knobs->applied.is);
	if (knobs->applied.prepared) {
		/* On failure the commit discards the prepared file. */
		knobs->applied.prepared = false;
		int r = knobs_drop_in_commit(knobs, err);
		if (r < 0) {
			knobs_take_back(knobs, "it could not be stored");
			return r;
		}
	}
	*outcomes = knobs->applied.outcomes;
	knobs->applied.outcomes.n = 0;
	knobs->applied.is = false;
	if (batch->persist)
		note_what_comes_later(knobs, outcomes);
	else if (batch->reset && batch->session == 0)
		note_what_stays_stored(knobs, outcomes);
	if (batch->session == 0)
		note_what_is_idle(knobs, outcomes);
	knobs->n_changes++;
	knobs_reverts_replace(knobs, batch, outcomes);
	knobs_reverts_tell(knobs);
	knobs_journal_add(&knobs->journal, batch, outcomes, "");
	return 0;
}

int knobs_set(struct knobs *knobs, const struct knob_batch *batch, struct knob_outcomes *outcomes,
	struct error *err)
{
	outcomes->n = 0;
	int r = knobs_apply(knobs, batch, err);
	return r < 0 ? r : knobs_commit(knobs, outcomes, err);
}

/* Puts the former values of the changed keys in force again. */
static int restore(struct knobs *knobs, const struct knob_outcomes *outcomes, struct error *err)
{
	uint64_t session = knobs->applied.batch.session;
	if (session != 0)
		return put_in_force(knobs, session, knobs->before, err);
	memcpy(knobs->scratch, knobs->o.config, knobs->o.config_bytes);
	for (size_t i = 0; i < outcomes->n; i++)
		if (!outcomes->of[i].at_start)
			config_copy(outcomes->of[i].key, knobs->before, knobs->scratch);
	int r = put_in_force(knobs, 0, knobs->scratch, err);
	if (r == 0)
		write_config(knobs, outcomes, knobs->before);
	return r;
}

/* Marks as idle every outcome whose value was the same all along, so that the journal records only
 * the others. Returns the first of these; NULL: none. */
static const struct knob_outcome *only_changed(struct knob_outcomes *outcomes)
{
	const struct knob_outcome *first = NULL;
	for (size_t i = 0; i < outcomes->n; i++) {
		struct knob_outcome *o = &outcomes->of[i];
		o->idle = o->at_start || strcmp(o->old_value, o->new_value) == 0;
		if (!o->idle && !first)
			first = o;
	}
	return first;
}

void knobs_take_back(struct knobs *knobs, const char *why)
{
	struct knob_outcomes *outcomes = &knobs->applied.outcomes;
	struct knob_batch batch = knobs->applied.batch;
	struct error err = {""};
	if (!knobs->applied.is)
		return;
	if (knobs->applied.prepared)
		knobs_drop_in_abandon(knobs);
	int r = knobs->applied.changed ? restore(knobs, outcomes, &err) : 0;
	const struct knob_outcome *first = only_changed(outcomes);
	knobs->applied.is = false;
	batch.persist = false;
	if (r == 0 && first) {
		batch.what = "undone";
		log_notice("%s back to %s: %s", first->key->name, first->old_value, why);
		knobs_journal_add(&knobs->journal, &batch, outcomes, why);
	} else if (r == -ENOENT && batch.session != 0) {
		log_info("a session ended before a change of it was taken back");
	} else if (r < 0 && first) {
		log_error("%s cannot go back to %s: %s", first->key->name, first->old_value,
			err.text);
		/* The change stays in force. If it was temporary it still ends in time; otherwise
		 * earlier reverts of its keys go on. */
		if (batch.for_ns != 0)
			knobs_reverts_replace(knobs, &batch, outcomes);
		knobs_reverts_tell(knobs);
		knobs_journal_add(&knobs->journal, &batch, outcomes, err.text);
	}
	knobs_outcomes_free(outcomes);
}

void knobs_forget_holder(struct knobs *knobs)
{
	if (knobs->reserved.pidfd >= 0) {
		daemon_remove_fd(knobs->daemon, knobs->reserved.pidfd);
		close(knobs->reserved.pidfd);
	}
	knobs->reserved.pidfd = -1;
}

static void on_holder_ended(void *arg)
{
	knobs_release(
		arg, "the program that changed several processes ended before it had finished");
}

/* Watches the administrator's process, so that one killed in the middle of a batch keeps nobody
 * waiting. A process that is not visible from here (pid 0) keeps its reservation for the full time.
 * False: it has ended already. */
static bool watch_holder(struct knobs *knobs, const struct knob_who *who)
{
	if (!who->has_uid || who->pid == 0)
		return true;
	int fd = (int)syscall(SYS_pidfd_open, who->pid, 0);
	if (fd < 0)
		return errno != ESRCH;
	if (daemon_add_fd(knobs->daemon, fd, POLLIN, on_holder_ended, knobs) < 0)
		close(fd);
	else
		knobs->reserved.pidfd = fd;
	return true;
}

void knobs_reserve(struct knobs *knobs, uint64_t id, const struct knob_who *who, uint64_t for_ns)
{
	knobs_forget_holder(knobs);
	knobs->reserved.id = id;
	knobs->reserved.until_ns = clock_ns() + for_ns;
	knobs->reserved.who = *who;
	if (watch_holder(knobs, who))
		knobs_reverts_schedule(knobs);
	else
		on_holder_ended(knobs);
}

void knobs_release(struct knobs *knobs, const char *why)
{
	knobs_forget_holder(knobs);
	knobs->reserved.id = 0;
	knobs_take_back(knobs, why);
	/* Reverts that fell due during the reservation have waited. */
	knobs_reverts_schedule(knobs);
}

bool knobs_reserved(struct knobs *knobs, uint64_t id)
{
	if (knobs->reserved.id != 0 && clock_ns() >= knobs->reserved.until_ns)
		knobs_release(
			knobs, "the program that changed several processes did not finish in time");
	return knobs->reserved.id != 0 && knobs->reserved.id != id;
}
