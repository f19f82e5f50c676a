/*
 * The knobs of a process: its configuration keys, which the admin endpoint lists and, where they are live, changes
 * while it runs (KnobList, KnobSet, KnobHistory in proto/admin.proto). There is no second list: what config.h's table
 * says is what the registry says. Everything here runs in the loop thread.
 *
 * A change is made on a copy: keys are assigned, `check` sees the whole, `apply` puts it in force, and only then is the
 * copy the configuration. So a batch is all or nothing, whatever fails.
 */
#pragma once

#include "shared/base/config.h"

struct daemon;

/* A batch over several processes asks each of them step by step. Who makes it waits so long for an answer; */
#define KNOBS_STEP_NS UINT64_C(10000000000)
/* and so long is it reserved after a step: between two steps with one process lies one with each of the other three. */
#define KNOBS_RESERVED_NS (3 * KNOBS_STEP_NS + UINT64_C(2000000000))

struct daemon_knobs {
	const struct config_key *keys; /* ended by name == NULL */
	void *config; /* what is in force; the keys that changed are written after apply returned 0 */
	size_t config_bytes;
	/* The relations between keys, of a changed copy; pure. May be NULL. */
	int (*check)(const void *config, struct error *err);
	/* Of a changed copy that is for the next start: what that would refuse with the files and the machine there are, a
	 * number beyond the model's or a file that is not there, as long as the model is to be the one that is served. Only
	 * of what differs from config. May be NULL. */
	int (*fits)(void *arg, const void *next, struct error *err);
	/* Of a checked, changed copy: what apply would refuse, as far as that is known without doing it; changes nothing. So that of
	 * a batch over several processes none has done its part when one must refuse. May be NULL. */
	int (*rehearse)(void *arg, const void *next, struct error *err);
	/* Puts a checked, changed copy in force, all of it or nothing. It is config's old value that tells what changed. */
	int (*apply)(void *arg, const void *next, struct error *err);
	/* After each change: what will be in force when every change for a time has ended, for who has a successor go on with
	 * it. A successor knows of no time that runs. May be NULL. */
	void (*stays)(void *arg, const void *config);
	/* What the value in force of a key comes to, where it leaves that to the process ("auto"); out stays "" for others. May
	 * be NULL. */
	void (*means)(void *arg, const struct config_key *key, char *out, size_t bytes);
	void *arg;

	/* What reset goes back to, where config is something else already; NULL: config as it is now. */
	const void *started;

	/* The file this process was started with (struct options), below whose .d/ lasting changes are written; NULL or ""
	 * refuses those. */
	const char *config_path;
	/* For each key, in the table's order, whether the command line set it: it will again at the next start. May be NULL. */
	const bool *on_command_line;
	/* KNOB_SESSION keys of one session: its configuration, -ENOENT when there is no such session, and the change of it.
	 * NULL where nothing has session scope. */
	int (*session_get)(void *arg, uint64_t uid, void *out, struct error *err);
	int (*session_apply)(void *arg, uint64_t uid, const void *next, struct error *err);
};

/* Once, before daemon_run, with the configuration resolved; copies *knobs, what it points to is borrowed until
 * daemon_destroy. -ENOMEM. */
int daemon_knobs_open(struct daemon *daemon, const struct daemon_knobs *knobs, struct error *err);
