/*
 * The journal of changes: one JSON object per line in STATE/NAME.knobs.jsonl. STATE is the
 * directory that the service manager gave (STATE_DIRECTORY), or else the runtime directory. When
 * the file has grown to JOURNAL_BYTES, the events kept in memory replace it. A disk that accepts no
 * writes does not prevent changes.
 */
#include "shared/ipc/knobs_private.h"

#include "shared/base/file.h"
#include "shared/base/log.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { JOURNAL_BYTES = 2 << 20, LINE_BYTES = 8 * KNOBS_TEXT_MAX + 1024 };
static_assert(2 * KNOBS_EVENTS * (5 * KNOBS_TEXT_MAX + 512) < 2 * JOURNAL_BYTES,
	"what is kept fills at most half of the file: it is written anew seldom");

size_t knobs_journal_count(const struct knob_journal *journal)
{
	return journal->n < KNOBS_EVENTS ? (size_t)journal->n : KNOBS_EVENTS;
}

const struct knob_event *knobs_journal_at(const struct knob_journal *journal, size_t i)
{
	return &journal->events[(journal->n - knobs_journal_count(journal) + i) % KNOBS_EVENTS];
}

static void event_free(struct knob_event *event)
{
	free(event->name);
	free(event->old_value);
	free(event->new_value);
	free(event->reason);
	free(event->removed);
	memset(event, 0, sizeof *event);
}

/* Keeps an event in memory and takes over its texts. */
static void keep(struct knob_journal *journal, const struct knob_event *event)
{
	struct knob_event *to = &journal->events[journal->n++ % KNOBS_EVENTS];
	event_free(to);
	*to = *event;
}

static const char *text_of(const char *text)
{
	return text ? text : "";
}

static json_t *event_json(const struct knob_event *e)
{
	json_t *json = json_pack("{s:I,s:s,s:s,s:s,s:s}", "time_ns", (json_int_t)e->time_ns, "what",
		e->what, "knob", text_of(e->name), "old", text_of(e->old_value), "new",
		text_of(e->new_value));
	if (!json)
		return NULL;
	if (e->session)
		json_object_set_new(
			json, "session", json_sprintf("%llu", (unsigned long long)e->session));
	if (e->for_ns)
		json_object_set_new(json, "for_ns", json_integer((json_int_t)e->for_ns));
	if (e->removed)
		json_object_set_new(json, "removed", json_string(e->removed));
	if (e->persist)
		json_object_set_new(json, "persist", json_true());
	if (e->at_start)
		json_object_set_new(json, "at_start", json_true());
	if (e->who.has_uid) {
		json_object_set_new(json, "uid", json_integer(e->who.uid));
		json_object_set_new(json, "pid", json_integer(e->who.pid));
	}
	if (e->who.program[0])
		json_object_set_new(json, "program", json_string(e->who.program));
	if (e->reason && *e->reason)
		json_object_set_new(json, "reason", json_string(e->reason));
	return json;
}

static const char *string_of(const json_t *json, const char *key)
{
	return text_of(json_string_value(json_object_get(json, key)));
}

static uint64_t number_of(const json_t *json, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(json, key));
	return value > 0 ? (uint64_t)value : 0;
}

/* Reads one line of the file; a line that is not an event is skipped. */
static void take_line(struct knob_journal *journal, const char *line)
{
	json_t *json = json_loads(line, 0, NULL);
	struct knob_event e = {.time_ns = number_of(json, "time_ns"),
		.session = strtoull(string_of(json, "session"), NULL, 10),
		.for_ns = number_of(json, "for_ns"),
		.persist = json_is_true(json_object_get(json, "persist")),
		.at_start = json_is_true(json_object_get(json, "at_start"))};
	if (e.time_ns != 0 && *string_of(json, "knob")) {
		e.who.has_uid = json_is_integer(json_object_get(json, "uid"));
		e.who.uid = (uint32_t)number_of(json, "uid");
		e.who.pid = (uint32_t)number_of(json, "pid");
		snprintf(e.who.program, sizeof e.who.program, "%s", string_of(json, "program"));
		snprintf(e.what, sizeof e.what, "%s", string_of(json, "what"));
		e.name = strdup(string_of(json, "knob"));
		e.old_value = strdup(string_of(json, "old"));
		e.new_value = strdup(string_of(json, "new"));
		e.reason = strdup(string_of(json, "reason"));
		if (json_object_get(json, "removed"))
			e.removed = strdup(string_of(json, "removed"));
		keep(journal, &e);
	}
	json_decref(json);
}

/* Opens the file for reading; NULL when there is none. */
static FILE *open_to_read(const char *path)
{
	int fd = -1;
	FILE *file = file_open_own(path, O_RDONLY, &fd, NULL) == 0 ? fdopen(fd, "r") : NULL;
	if (!file && fd >= 0)
		close(fd);
	return file;
}

static void load(struct knob_journal *journal)
{
	char line[LINE_BYTES];
	FILE *file = open_to_read(journal->path);
	if (!file)
		return;
	/* Reads no more than this program would have left there. A line of NULs has bytes but no
	 * length, so the position bounds the loop. */
	while (ftello(file) < 2 * JOURNAL_BYTES && fgets(line, sizeof line, file))
		take_line(journal, line);
	fclose(file);
}

void knobs_journal_open(struct knob_journal *journal, const char *runtime_dir, const char *process)
{
	const char *state = getenv("STATE_DIRECTORY");
	/* The service manager separates several directories by colons; our unit has one. */
	if (!state || state[0] != '/' || strchr(state, ':'))
		state = runtime_dir;
	if ((size_t)snprintf(journal->path, sizeof journal->path, "%s/%s.knobs.jsonl", state,
		    process) >= sizeof journal->path)
		snprintf(journal->path, sizeof journal->path, "%s/%s.knobs.jsonl", runtime_dir,
			process);
	load(journal);
}

static void close_file(struct knob_journal *journal)
{
	if (journal->fd >= 0)
		close(journal->fd);
	journal->fd = -1;
}

void knobs_journal_close(struct knob_journal *journal)
{
	close_file(journal);
	for (size_t i = 0; i < KNOBS_EVENTS; i++)
		event_free(&journal->events[i]);
}

static int open_file(struct knob_journal *journal, struct error *err)
{
	struct stat st;
	int r = file_open_own(journal->path, O_WRONLY | O_APPEND | O_CREAT, &journal->fd, err);
	if (r < 0)
		return r;
	if (fstat(journal->fd, &st) < 0)
		return -errno;
	journal->bytes = (size_t)st.st_size;
	return 0;
}

/* Writes a whole line, or leaves the file as it was. */
static int write_line(int fd, const struct knob_event *event, size_t *bytes)
{
	json_t *json = event_json(event);
	char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
	int r = text ? 0 : -ENOMEM;
	json_decref(json);
	if (r == 0) {
		size_t n = strlen(text);
		text[n] = '\n'; /* in place of the NUL */
		ssize_t written = write(fd, text, n + 1);
		if (written == (ssize_t)n + 1)
			*bytes += n + 1;
		else
			r = written < 0 ? -errno : -ENOSPC;
		if (written > 0 && r < 0 && ftruncate(fd, (off_t)*bytes) < 0)
			r = -errno;
	}
	free(text);
	return r;
}

/* Replaces the file with a new one that holds the events kept in memory. */
static int rewrite(struct knob_journal *journal, struct error *err)
{
	char fresh[sizeof journal->path + 8];
	size_t bytes = 0;
	/* Anything other than a regular file is not replaced either. */
	close_file(journal);
	int opened = open_file(journal, err);
	if (opened == -EEXIST)
		return opened;
	snprintf(fresh, sizeof fresh, "%s.new", journal->path);
	unlink(fresh);
	int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int r = fd < 0 ? -errno : 0;
	for (size_t i = 0; r == 0 && i < knobs_journal_count(journal); i++)
		r = write_line(fd, knobs_journal_at(journal, i), &bytes);
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0 && rename(fresh, journal->path) < 0)
		r = -errno;
	if (r < 0)
		unlink(fresh);
	close_file(journal);
	return r;
}

/* Writes the newest event; after failures, all events that the file missed. */
static int write_newest(struct knob_journal *journal, struct error *err)
{
	if (journal->failing)
		return rewrite(journal, err);
	int r = journal->fd < 0 ? open_file(journal, err) : 0;
	if (r == 0)
		r = write_line(journal->fd,
			knobs_journal_at(journal, knobs_journal_count(journal) - 1),
			&journal->bytes);
	if (r == 0 && journal->bytes > JOURNAL_BYTES)
		r = rewrite(journal, err);
	return r;
}

void knobs_journal_cut(char *text)
{
	size_t n = strnlen(text, KNOBS_TEXT_MAX);
	text[n] = '\0';
	/* Text from a peer or a person may not be UTF-8, which JSON requires. */
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
			*c = '?';
}

static char *cut(const char *text)
{
	char *copy = strndup(text, KNOBS_TEXT_MAX);
	if (copy)
		knobs_journal_cut(copy);
	return copy;
}

/* Adds the outcome of one knob's change. removed: as in struct knob_outcome. */
static void add(struct knob_journal *journal, const struct knob_batch *batch, const char *name,
	const char *old_value, const char *new_value, const char *removed, bool at_start,
	const char *reason)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	struct knob_event event = {
		.time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
		.session = batch->session,
		.for_ns = batch->for_ns,
		.persist = batch->persist,
		.at_start = at_start,
		.who = batch->who,
		.name = cut(name),
		.old_value = cut(old_value),
		.new_value = cut(new_value),
		.reason = cut(reason),
		.removed = removed ? cut(removed) : NULL,
	};
	snprintf(event.what, sizeof event.what, "%s", batch->what);
	keep(journal, &event);
	struct error err = {""};
	int r = write_newest(journal, &err);
	if (r < 0 && !journal->failing && r == -EEXIST)
		log_error("%s: changes are made, but not written down there", err.text);
	else if (r < 0 && !journal->failing)
		log_error("%s: %s: changes are made, but not written down there", journal->path,
			strerror(-r));
	if (r == 0 && journal->failing)
		log_notice("%s: changes are written down again", journal->path);
	if (r < 0)
		close_file(journal);
	journal->failing = r < 0;
}

void knobs_journal_add(struct knob_journal *journal, const struct knob_batch *batch,
	const struct knob_outcomes *outcomes, const char *reason)
{
	char name[128], stays[KNOBS_TEXT_MAX];
	for (size_t i = 0; i < outcomes->n; i++) {
		const struct knob_outcome *o = &outcomes->of[i];
		if (o->idle)
			continue;
		config_name(o->key, name, sizeof name);
		if (*reason == '\0' && knobs_stays_for(o))
			snprintf(stays, sizeof stays, "it no longer goes back to %s", o->stays_for);
		else
			stays[0] = '\0';
		add(journal, batch, name, text_of(o->old_value), text_of(o->new_value), o->removed,
			o->at_start, *stays ? stays : reason);
	}
	/* The batch failed before it had outcomes: record what was requested. */
	for (size_t i = 0; outcomes->n == 0 && i < batch->n; i++)
		add(journal, batch, batch->changes[i].name, "", text_of(batch->changes[i].value),
			NULL, batch->at_start, reason);
}
