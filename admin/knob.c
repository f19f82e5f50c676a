/* outriderctl knob list, get, history. */
#include "admin/knob.h"

#include "shared/base/columns.h"
#include "shared/base/proquint.h"
#include "shared/base/units.h"
#include "shared/ipc/bus.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

/* Width of the values in a list; a longer value is shown whole by `knob get` and as JSON. */
enum {
	VALUE_COLUMNS = 14,
	VALUE_COLUMNS_MAX = 36,
	VALUE_BYTES = 4 * VALUE_COLUMNS_MAX + 1,
	HELP_INDENT = 6
};

static const char *const scope_names[] = {
	[KNOB_GLOBAL] = "global", [KNOB_MODEL] = "model", [KNOB_SESSION] = "session"};

/* A knob of a process that does not run: from the tables, without a value. */
static json_t *table_json(const struct knob_process *process, const struct config_key *key)
{
	char name[128], range[512];

	config_name(key, name, sizeof name);
	config_range(key, range, sizeof range);
	return json_pack("{s:s,s:s,s:n,s:s,s:s,s:s,s:s,s:s,s:b,s:s,s:b}", "process", process->name,
		"name", name, "value", "type", config_type_name(key->type), "unit",
		config_unit(key), "range", range, "default", key->fallback, "scope",
		scope_names[key->scope], "live", (int)key->live, "help", key->help, "running", 0);
}

static json_t *info_json(const struct knob_process *process, const Outrider__KnobInfo *k)
{
	json_t *json = json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:b,s:o,s:b,s:b,s:b}",
		"process", process->name, "name", json_text(k->name), "value", json_text(k->value),
		"started", json_text(k->started), "type", json_text(k->type), "unit",
		json_text(k->unit), "range", json_text(k->range), "default", json_text(k->fallback),
		"scope", json_text(k->scope), "live", k->live, "help", json_text(k->help),
		"persisted", k->persisted, "on_command_line", k->on_command_line, "running", 1);

	if (json && *k->means)
		json_object_set_new(json, "means", json_text(k->means));
	if (json && k->persisted)
		json_object_set_new(json, "stored", json_text(k->stored));
	if (json && k->next_start_known)
		json_object_set_new(json, "next_start", json_text(k->next_start));
	if (json && k->reverts_in_ns) {
		json_object_set_new(
			json, "reverts_in_s", json_real((double)k->reverts_in_ns / 1e9));
		json_object_set_new(json, "reverts_to", json_text(k->reverts_to));
	}
	return json;
}

static const char *text_of(const json_t *knob, const char *field)
{
	const char *text = json_string_value(json_object_get(knob, field));

	return text ? text : "";
}

static bool is(const json_t *knob, const char *field)
{
	return json_is_true(json_object_get(knob, field));
}

/* Appends all knobs of one process as JSON objects. *status: the first that is not EX_OK, except
 * for a process that is down. */
static void add_process(
	struct ctl *ctl, const struct knob_process *process, json_t *to, int *status)
{
	Outrider__Envelope *reply;
	int code = knob_ask_list(ctl, process, ctl->session, &reply);

	if (code == 0) {
		for (size_t i = 0; i < reply->knobs->n_knobs; i++)
			json_array_append_new(to, info_json(process, reply->knobs->knobs[i]));
		bus_free(&reply);
		return;
	}
	if (code != EX_UNAVAILABLE && *status == 0)
		*status = code;
	for (const struct config_key *key = process->keys; key->name; key++)
		json_array_append_new(to, table_json(process, key));
}

/* Whether the next start will change its value. */
static bool changes_at_start(const json_t *knob)
{
	const json_t *next = json_object_get(knob, "next_start");

	return next && strcmp(json_string_value(next), text_of(knob, "value")) != 0;
}

static const char *or_empty(const char *value)
{
	return *value ? value : "(empty)";
}

/* The value as a list shows it: the present one, its meaning, and the one that the next start sets.
 */
static const char *list_value(const json_t *knob, char *out, size_t bytes)
{
	char value[2 * CONFIG_VALUE_BYTES + 64];

	snprintf(value, sizeof value, "%s",
		is(knob, "running") ? or_empty(text_of(knob, "value")) : "-");
	if (*text_of(knob, "means"))
		snprintf(value, sizeof value, "%s: %s", text_of(knob, "value"),
			text_of(knob, "means"));
	if (changes_at_start(knob))
		snprintf(value, sizeof value, "%s (next start: %s)",
			or_empty(text_of(knob, "value")), or_empty(text_of(knob, "next_start")));
	return columns_shorten(value, VALUE_COLUMNS_MAX, out, bytes);
}

/* "1 to 15 tokens"; the range of a time has units of its own. */
static const char *range_of(const json_t *knob, char *out, size_t bytes)
{
	const char *unit = strcmp(text_of(knob, "type"), config_type_name(CONFIG_NS)) == 0
				   ? ""
				   : text_of(knob, "unit");

	snprintf(out, bytes, "%s%s%s", text_of(knob, "range"), *unit ? " " : "", unit);
	return out;
}

/* Prints a line of facts, and below it the purpose. */
static void print_line(const json_t *knob, int columns)
{
	char range[512], value[VALUE_BYTES];

	list_value(knob, value, sizeof value);
	range_of(knob, range, sizeof range);
	int at = printf("  %-16s ", text_of(knob, "name"));
	printf("%s%*s %-7s %-7s ", value, columns - columns_of(value), "",
		is(knob, "live") ? "live" : "restart", text_of(knob, "scope"));
	at += columns + 17;
	columns_fold(stdout, range, at, at);
	printf("%*s", HELP_INDENT, "");
	columns_fold(stdout, text_of(knob, "help"), HELP_INDENT, HELP_INDENT);
}

/* The width of the values of one process, so that the column behind them is straight. */
static int value_columns(const json_t *knobs, const char *process)
{
	char value[VALUE_BYTES];
	int most = VALUE_COLUMNS;
	size_t i;
	const json_t *knob;

	json_array_foreach(knobs, i, knob)
	{
		if (strcmp(process, text_of(knob, "process")) != 0)
			continue;
		int columns = columns_of(list_value(knob, value, sizeof value));
		most = columns > most ? columns : most;
	}
	return most;
}

static void print_list(const json_t *knobs)
{
	const char *process = "";
	int columns = VALUE_COLUMNS;
	size_t i;
	json_t *knob;

	json_array_foreach(knobs, i, knob)
	{
		if (strcmp(process, text_of(knob, "process")) != 0)
			printf("%s%s%s\n", *process ? "\n" : "", text_of(knob, "process"),
				is(knob, "running") ? ""
				: knob_process_of(text_of(knob, "process"))->optional
					? " (does not run)"
					: " (does not answer)");
		if (strcmp(process, text_of(knob, "process")) != 0)
			columns = value_columns(knobs, text_of(knob, "process"));
		process = text_of(knob, "process");
		print_line(knob, columns);
	}
	puts("\nColumns: knob, value, when a change acts (live: at once; restart: after a "
	     "restart),\n"
	     "scope (what has a value of its own), range. Below each knob: its purpose.");
}

/* Prints where the value comes from, and what the next start makes of it. */
static void print_origin(const json_t *knob)
{
	const char *value = text_of(knob, "value"), *started = text_of(knob, "started");
	const char *stored = text_of(knob, "stored"), *next = text_of(knob, "next_start");
	bool known = json_object_get(knob, "next_start") != NULL;

	if (is(knob, "on_command_line"))
		printf("  started with %s on the command line, which overrides files\n",
			or_empty(started));
	else if (strcmp(started, value) != 0)
		printf("  started with %s\n", or_empty(started));
	if (!is(knob, "persisted"))
		return;
	if (known && strcmp(stored, next) != 0)
		printf("  %s is stored (--persist or --next-start), but %s overrides it: the next "
		       "start uses %s\n",
			or_empty(stored),
			is(knob, "on_command_line") ? "the command line" : "another drop-in",
			or_empty(next));
	else if (strcmp(stored, value) != 0)
		printf("  from the next start on: %s, stored with --persist or --next-start\n",
			or_empty(stored));
	else
		printf("  from the next start on: the same, stored with --persist or "
		       "--next-start\n");
}

static void print_whole(const json_t *knob)
{
	char left[UNITS_BYTES], range[512];

	printf("%s.%s = %s\n", text_of(knob, "process"), text_of(knob, "name"),
		or_empty(text_of(knob, "value")));
	if (*text_of(knob, "means"))
		printf("  which is %s now\n", text_of(knob, "means"));
	printf("  %s\n", text_of(knob, "help"));
	printf("  %s, %s; default %s; scope %s; %s\n", text_of(knob, "type"),
		range_of(knob, range, sizeof range), or_empty(text_of(knob, "default")),
		text_of(knob, "scope"),
		is(knob, "live") ? "can change while the process runs" : "needs a restart");
	if (json_object_get(knob, "reverts_in_s"))
		printf("  goes back to %s in %s\n", text_of(knob, "reverts_to"),
			units_period((uint64_t)(1e9 * json_real_value(json_object_get(
							      knob, "reverts_in_s"))),
				left));
	print_origin(knob);
}

/* The knobs that the arguments name, or a process's, or all. */
static int collect(struct ctl *ctl, int argc, char **argv, json_t *to)
{
	int status = 0;

	for (size_t i = 0; argc == 0 && i < KNOB_PROCESSES; i++)
		add_process(ctl, &knob_processes[i], to, &status);
	for (int i = 0; status == 0 && i < argc; i++) {
		const struct knob_process *process = knob_process_of(argv[i]);
		struct knob_name name;
		json_t *all, *knob;
		size_t at, before = json_array_size(to);

		if (process) {
			add_process(ctl, process, to, &status);
			continue;
		}
		status = knob_resolve(argv[i], NULL, &name);
		if (status)
			break;
		all = json_array();
		add_process(ctl, name.process, all, &status);
		json_array_foreach(all, at, knob) if (strcmp(text_of(knob, "name"), name.name) == 0)
			json_array_append(to, knob);
		json_decref(all);
		if (status == 0 && json_array_size(to) == before)
			status = ctl_fail(EX_DATAERR, "%s has no knob \"%.64s\"",
				name.process->name, name.name);
	}
	return status;
}

/* Only the process itself knows the values of its knobs. */
static int need_running(const struct ctl *ctl, const json_t *knobs)
{
	const json_t *knob;
	size_t i;

	json_array_foreach(knobs, i, knob)
	{
		const char *process = text_of(knob, "process");

		if (!is(knob, "running"))
			return ctl_fail(EX_UNAVAILABLE,
				"%s is not running in %s, so %s has no value now; outriderctl knob "
				"list %s shows the allowed values",
				process, ctl->runtime_dir, text_of(knob, "name"), process);
	}
	return EX_OK;
}

static int show(struct ctl *ctl, int argc, char **argv, bool whole)
{
	json_t *knobs = json_array(), *knob;
	int status = collect(ctl, argc, argv, knobs);
	size_t i;

	if (status == 0 && whole)
		status = need_running(ctl, knobs);
	if (status == 0 && ctl->json)
		return ctl_print_json(json_pack("{s:o}", "knobs", knobs));
	if (status == 0 && !whole)
		print_list(knobs);
	if (status == 0 && whole)
		json_array_foreach(knobs, i, knob) print_whole(knob);
	json_decref(knobs);
	return status;
}

int ctl_knob_list(struct ctl *ctl, int argc, char **argv)
{
	return show(ctl, argc, argv, false);
}

int ctl_knob_get(struct ctl *ctl, int argc, char **argv)
{
	if (argc == 0)
		return ctl_fail(EX_USAGE, "knob get: expected a knob");
	return show(ctl, argc, argv, true);
}

struct entry {
	const struct knob_process *process;
	const Outrider__KnobEvent *event;
};

static int by_time(const void *a, const void *b)
{
	uint64_t x = ((const struct entry *)a)->event->time_ns,
		 y = ((const struct entry *)b)->event->time_ns;

	return x < y ? -1 : x > y;
}

static void who(const Outrider__KnobEvent *e, char *out, size_t bytes)
{
	const struct passwd *user = e->has_uid ? getpwuid(e->uid) : NULL;

	if (!e->has_uid)
		snprintf(out, bytes, "%s", *e->program ? e->program : "the process itself");
	else if (user)
		snprintf(out, bytes, "%s (%s %u)", user->pw_name, e->program, e->pid);
	else
		snprintf(out, bytes, "user %u (%s %u)", e->uid, e->program, e->pid);
}

static json_t *event_json(const struct entry *entry)
{
	const Outrider__KnobEvent *e = entry->event;
	char by[160];

	who(e, by, sizeof by);
	return json_pack("{s:s,s:o,s:o,s:o,s:o,s:I,s:f,s:b,s:b,s:o,s:o,s:o,s:o}", "process",
		entry->process->name, "name", json_text(e->name), "what", json_text(e->what), "old",
		json_text(e->old_value), "new", json_text(e->new_value), "time_ns",
		(json_int_t)e->time_ns, "for_s", (double)e->for_ns / 1e9, "persist", e->persist,
		"at_start", e->at_start, "session", json_sprintf("%" PRIu64, e->session_uid), "who",
		json_text(by), "reason", json_text(e->reason), "removed",
		e->has_removed ? json_text(e->removed) : json_null());
}

static void print_event(const struct entry *entry)
{
	const Outrider__KnobEvent *e = entry->event;
	char when[CTL_WALL_BYTES], by[160], period[CONFIG_TIME_BYTES];

	who(e, by, sizeof by);
	printf("%s  %-6s %s.%s: %s -> %s", ctl_wall(e->time_ns, when), e->what,
		entry->process->name, e->name, or_empty(e->old_value), or_empty(e->new_value));
	if (e->session_uid)
		printf(", session %s", PROQUINT(e->session_uid));
	if (e->for_ns)
		printf(", for %s", config_time(e->for_ns, period, sizeof period));
	if (e->persist || e->at_start)
		printf(", %sfrom the next start on%s", e->at_start ? "" : "now and ",
			strcmp(e->what, "set") == 0 ? ", stored" : "");
	if (e->has_removed)
		printf(", the stored value %s removed", or_empty(e->removed));
	printf("%s%s, by %s\n", *e->reason ? ": " : "", e->reason, by);
}

/* Whether one of the arguments names this knob. */
static bool wanted(const struct entry *entry, int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		struct knob_name name;

		if (knob_process_of(argv[i]) == entry->process)
			return true;
		if (!knob_process_of(argv[i]) && knob_resolve(argv[i], NULL, &name) == 0 &&
			name.process == entry->process &&
			strcmp(name.name, entry->event->name) == 0)
			return true;
	}
	return argc == 0;
}

static int check_names(int argc, char **argv)
{
	struct knob_name name;
	int status = 0;

	for (int i = 0; status == 0 && i < argc; i++)
		if (!knob_process_of(argv[i]))
			status = knob_resolve(argv[i], NULL, &name);
	return status;
}

/* silent: the processes that did not answer, as a list. */
static int print_history(const struct ctl *ctl, struct entry *entries, size_t n, json_t *silent)
{
	json_t *events = ctl->json ? json_array() : NULL, *process;
	size_t at;

	qsort(entries, n, sizeof *entries, by_time);
	for (size_t i = ctl->last && n > ctl->last ? n - ctl->last : 0; i < n; i++) {
		if (events)
			json_array_append_new(events, event_json(&entries[i]));
		else
			print_event(&entries[i]);
	}
	if (events)
		return ctl_print_json(json_pack("{s:o,s:O}", "changes", events, "silent", silent));
	if (n == 0)
		puts("nothing was changed");
	json_array_foreach(silent, at, process) printf(
		"%s does not answer: its changes are missing here\n", json_string_value(process));
	return 0;
}

int ctl_knob_history(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope *replies[KNOB_PROCESSES] = {NULL};
	struct entry *entries = NULL;
	json_t *silent = json_array();
	size_t n = 0, room = 0, answered = 0;
	int status = check_names(argc, argv);

	for (size_t p = 0; status == 0 && p < KNOB_PROCESSES; p++) {
		Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
		Outrider__KnobHistoryRequest body = OUTRIDER__KNOB_HISTORY_REQUEST__INIT;

		request.body_case = OUTRIDER__ENVELOPE__BODY_KNOB_HISTORY_REQUEST;
		request.knob_history_request = &body;
		int code = (knob_processes[p].optional ? ctl_ask : ctl_ask_patiently)(ctl,
			knob_processes[p].name, &request, OUTRIDER__ENVELOPE__BODY_KNOB_HISTORY,
			3000, &replies[p], NULL);
		if (code == -ECONNREFUSED && knob_processes[p].optional)
			continue;
		if (code < 0) {
			json_array_append_new(silent, json_string(knob_processes[p].name));
			continue;
		}
		answered++;
		room += replies[p]->knob_history->n_events;
	}
	if (status == 0 && answered == 0)
		status = ctl_fail(EX_UNAVAILABLE, "no process answers in %s; " CTL_NO_SERVICE,
			ctl->runtime_dir);
	if (status == 0) {
		entries = calloc(room + 1, sizeof *entries);
		if (!entries)
			status = ctl_fail(EX_OSERR, "no memory for %zu changes", room);
	}
	for (size_t p = 0; entries && p < KNOB_PROCESSES; p++)
		for (size_t i = 0; replies[p] && i < replies[p]->knob_history->n_events; i++) {
			entries[n] = (struct entry){
				&knob_processes[p], replies[p]->knob_history->events[i]};
			n += wanted(&entries[n], argc, argv);
		}
	if (status == 0)
		status = print_history(ctl, entries, n, silent);
	json_decref(silent);
	free(entries);
	for (size_t p = 0; p < KNOB_PROCESSES; p++)
		bus_free(&replies[p]);
	return status;
}
