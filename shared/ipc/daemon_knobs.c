#include "shared/ipc/knobs_private.h"

#include "shared/ipc/daemon_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void knobs_outcomes_free(struct knob_outcomes *outcomes)
{
	for (size_t i = 0; i < outcomes->n; i++) {
		free(outcomes->of[i].old_value);
		free(outcomes->of[i].new_value);
		free(outcomes->of[i].removed);
		free(outcomes->of[i].stays_for);
		free(outcomes->of[i].base);
	}
	outcomes->n = 0;
}

const char *knobs_stays_for(const struct knob_outcome *outcome)
{
	/* If the new value is the one that the earlier change would have returned to, there is
	 * nothing to report. */
	bool is_there = outcome->stays_for && !outcome->at_start &&
			strcmp(outcome->stays_for, outcome->new_value) == 0;
	return is_there ? NULL : outcome->stays_for;
}

const void *knobs_config(struct knobs *knobs, uint64_t session, struct error *err)
{
	if (session == 0)
		return knobs->o.config;
	if (!knobs->o.session_get) {
		error_set(err, EINVAL, "%s: it has no knob that can be set for one session",
			knobs->process);
		return NULL;
	}
	return knobs->o.session_get(knobs->o.arg, session, knobs->now, err) < 0 ? NULL : knobs->now;
}

static int find(
	struct knobs *knobs, const char *name, const struct config_key **out, struct error *err)
{
	*out = config_find(knobs->o.keys, name);
	if (*out)
		return 0;
	const struct config_key *nearest = config_nearest(knobs->o.keys, name);
	char own[128] = "";
	if (nearest)
		config_name(nearest, own, sizeof own);
	return error_set(err, EINVAL, "%s: unknown knob %.64s%s%s%s", knobs->process, name,
		nearest ? "; did you mean " : "", own, nearest ? "?" : "");
}

/* Refuses changes that the key does not allow, whatever the value. */
static int check_kind(const struct knobs *knobs, const struct knob_batch *batch,
	const struct config_key *key, struct error *err)
{
	if (batch->session != 0 && key->scope != KNOB_SESSION)
		return error_set(err, EINVAL,
			"%s: %s cannot be set for one session: set it for all", knobs->process,
			key->name);
	if (key->live || batch->persist || batch->reset)
		return 0;
	return error_set(err, EINVAL,
		"%s: %s cannot change while the process runs: set it with --persist, then restart "
		"outrider-%s",
		knobs->process, key->name, knobs->process);
}

/* Refuses the change unless the key has the value that its sender expects. */
static int check_expected(struct knobs *knobs, const struct config_key *key, const void *now,
	const char *expected, struct error *err)
{
	char value[CONFIG_VALUE_BYTES], where[64];
	snprintf(where, sizeof where, "%s, expected value", knobs->process);
	memcpy(knobs->scratch, now, knobs->o.config_bytes);
	int r = config_assign(key, expected, where, knobs->scratch, err);
	if (r < 0 || config_equal(key, knobs->scratch, now))
		return r;
	config_value(key, now, value, sizeof value);
	return error_set(err, ESTALE, "%s: %s is %.100s, not %.100s: nothing was changed",
		knobs->process, key->name, value, expected);
}

/* Loads the configured values into scratch, without this drop-in (NULL: with all). */
static int load_without(struct knobs *knobs, const char *drop_in, struct error *err)
{
	const struct daemon_knobs *o = &knobs->o;
	config_defaults(o->keys, knobs->scratch);
	int r = config_load_without(o->config_path, true, drop_in, o->keys, knobs->scratch, err);
	for (size_t i = 0; r == 0 && i < knobs->n_keys; i++)
		if (o->on_command_line && o->on_command_line[i])
			config_copy(&o->keys[i], knobs->started, knobs->scratch);
	return r;
}

bool knobs_next_start(struct knobs *knobs)
{
	return load_without(knobs, NULL, NULL) == 0;
}

static bool has_control(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			return true;
	return false;
}

/* Makes one change on the copy. now: the configuration that it changes. */
static int plan_one(struct knobs *knobs, const struct knob_batch *batch, size_t i, const void *now,
	struct knob_outcomes *outcomes, struct error *err)
{
	const struct knob_change *change = &batch->changes[i];
	const struct config_key *key = change->key;
	int r = key ? 0 : find(knobs, change->name, &key, err);
	assert(r < 0 || key);
	if (r == 0)
		r = check_kind(knobs, batch, key, err);
	for (size_t j = 0; r == 0 && j < outcomes->n; j++)
		if (outcomes->of[j].key == key)
			r = error_set(
				err, EINVAL, "%s: %s is given twice", knobs->process, key->name);
	if (r == 0 && change->expected)
		r = check_expected(knobs, key, now, change->expected, err);
	if (r == 0 && !batch->reset && has_control(change->value))
		r = error_set(err, EINVAL, "%s: the value of %s has control characters in it",
			knobs->process, key->name);
	if (r < 0)
		return r;
	if (!batch->reset)
		r = config_assign(key, change->value, knobs->process, knobs->next, err);
	else if (batch->session != 0)
		config_copy(key, knobs->o.config, knobs->next);
	else if (!batch->persist)
		config_copy(key, knobs->started, knobs->next);
	else if ((r = load_without(knobs, KNOBS_DROP_IN, err)) == 0)
		config_copy(key, knobs->scratch, knobs->next);
	outcomes->of[outcomes->n++] = (struct knob_outcome){.key = key, .note = ""};
	return r;
}

static char *value_of(const struct config_key *key, const void *config)
{
	char value[CONFIG_VALUE_BYTES];
	config_value(key, config, value, sizeof value);
	return strdup(value);
}

/* Makes the texts of an outcome before anything changes: after that nothing may fail. */
static int describe(struct knobs *knobs, const struct knob_batch *batch, const void *now,
	struct knob_outcome *outcome, struct error *err)
{
	const struct config_key *key = outcome->key;
	const struct knob_revert *earlier = knobs_revert_of(knobs, key, batch->session);
	outcome->old_value = value_of(key, now);
	outcome->new_value = value_of(key, knobs->next);
	outcome->at_start = batch->at_start || (!key->live && batch->persist);
	/* Not so for a session: setting an equal value stops it from following the value of all
	 * sessions, and resetting makes it follow again. */
	outcome->idle = config_equal(key, now, knobs->next) && !earlier && batch->session == 0 &&
			batch->for_ns == 0 && !batch->persist && !batch->at_start;
	/* A second temporary change ends where the first would have: at the value that was set
	 * permanently. */
	outcome->follows = earlier ? earlier->value == NULL
				   : batch->session != 0 && config_equal(key, now, knobs->o.config);
	if (batch->for_ns != 0 && !outcome->follows)
		outcome->base = strdup(earlier ? earlier->value : outcome->old_value);
	bool ends = earlier && batch->for_ns == 0;
	if (ends)
		outcome->stays_for = strdup(earlier->value ? earlier->value : "that of all");
	if (!outcome->old_value || !outcome->new_value || (ends && !outcome->stays_for) ||
		(batch->for_ns != 0 && !outcome->follows && !outcome->base))
		return error_set(
			err, ENOMEM, "%s: no memory to change %s", knobs->process, key->name);
	return 0;
}

static int check_batch(const struct knobs *knobs, const struct knob_batch *batch, struct error *err)
{
	if (batch->n == 0 || batch->n > KNOBS_BATCH_MAX)
		return error_set(err, EINVAL, "%s: %zu changes at once; allowed are 1 to %d",
			knobs->process, batch->n, KNOBS_BATCH_MAX);
	if (batch->for_ns > KNOBS_FOR_NS_MAX)
		return error_set(err, EINVAL, "%s: a change for a time may last at most 30 days",
			knobs->process);
	if (batch->persist && (batch->for_ns != 0 || batch->session != 0))
		return error_set(err, EINVAL,
			"%s: a stored change cannot be for a time or for one session",
			knobs->process);
	if (batch->reset && batch->for_ns != 0)
		return error_set(err, EINVAL, "%s: a reset cannot be for a time", knobs->process);
	if (batch->persist && !knobs->file[0])
		return error_set(err, EINVAL,
			"%s was started without a configuration file: there is no file to store a "
			"change in",
			knobs->process);
	return batch->for_ns ? knobs_reverts_room(knobs, batch->n, err) : 0;
}

static int check_relations(const struct knobs *knobs, const void *config, struct error *err)
{
	int r = knobs->o.check(config, err);
	return r < 0 ? error_prefix(err, r, "%s", knobs->process) : r;
}

/* Checks that a process could start with the changed copy. The copy holds keys only, so that values
 * which this process has derived for itself (such as memory) impose no bound. */
static int check_next_start(struct knobs *knobs, bool reset, struct error *err)
{
	memset(knobs->scratch, 0, knobs->o.config_bytes);
	for (const struct config_key *key = knobs->o.keys; key->name; key++)
		config_copy(key, knobs->next, knobs->scratch);
	int r = knobs->o.check ? check_relations(knobs, knobs->scratch, err) : 0;
	/* A reset brings back the values of the other files: they are no worse than the stored
	 * value that is removed. */
	if (r < 0 || reset || !knobs->o.fits)
		return r;
	r = knobs->o.fits(knobs->o.arg, knobs->scratch, err);
	return r < 0 ? error_prefix(err, r, "%s", knobs->process) : r;
}

int knobs_plan(struct knobs *knobs, const struct knob_batch *batch, const void **now,
	struct knob_outcomes *outcomes, struct error *err)
{
	int r = check_batch(knobs, batch, err);
	if (r < 0)
		return r;
	*now = knobs_config(knobs, batch->session, err);
	if (!*now)
		return -ENOENT;
	memcpy(knobs->next, *now, knobs->o.config_bytes);
	for (size_t i = 0; r == 0 && i < batch->n; i++)
		r = plan_one(knobs, batch, i, *now, outcomes, err);
	if (r == 0 && knobs->o.check && !batch->at_start)
		r = check_relations(knobs, knobs->next, err);
	if (r == 0 && batch->persist)
		r = check_next_start(knobs, batch->reset, err);
	for (size_t i = 0; r == 0 && i < outcomes->n; i++)
		r = describe(knobs, batch, *now, &outcomes->of[i], err);
	return r;
}

static void knobs_free(struct knobs **out)
{
	struct knobs *knobs = *out;
	if (!knobs)
		return;
	knobs_reverts_free(knobs);
	knobs_forget_holder(knobs);
	if (knobs->applied.prepared)
		knobs_drop_in_abandon(knobs);
	knobs_outcomes_free(&knobs->applied.outcomes);
	knobs_journal_close(&knobs->journal);
	free(knobs->next);
	free(knobs->before);
	free(knobs->wanted);
	free(knobs->now);
	free(knobs->started);
	free(knobs->scratch);
	free(knobs->stored);
	free(knobs->given);
	free(knobs);
	*out = NULL;
}

int daemon_knobs_open(struct daemon *daemon, const struct daemon_knobs *options, struct error *err)
{
	struct knobs *knobs = calloc(1, sizeof *knobs);
	size_t bytes = options->config_bytes;
	if (knobs) {
		knobs->daemon = daemon;
		knobs->process = daemon_name(daemon);
		knobs->o = *options;
		knobs->n_keys = config_count(options->keys);
		knobs->journal.fd = -1;
		knobs->reserved.pidfd = -1;
		knobs->next = malloc(bytes);
		knobs->before = malloc(bytes);
		knobs->wanted = malloc(bytes);
		knobs->now = malloc(bytes);
		knobs->started = malloc(bytes);
		/* Zeroed: a configuration may have padding that nothing sets. */
		knobs->scratch = calloc(1, bytes);
		knobs->stored = calloc(1, bytes);
		knobs->given = calloc(knobs->n_keys + 1, sizeof *knobs->given);
	}
	if (!knobs || !knobs->next || !knobs->before || !knobs->wanted || !knobs->now ||
		!knobs->started || !knobs->scratch || !knobs->stored || !knobs->given) {
		knobs_free(&knobs);
		return error_set(err, ENOMEM, "no memory for the knobs");
	}
	memcpy(knobs->started, options->started ? options->started : options->config, bytes);
	knobs->o.started = knobs->started;
	knobs_drop_in_init(knobs);
	knobs_journal_open(&knobs->journal, daemon_runtime_dir(daemon), knobs->process);
	knobs_restarted(knobs);
	daemon->knobs = knobs;
	return 0;
}

void daemon_knobs_close(struct daemon *daemon)
{
	knobs_free(&daemon->knobs);
}
