/*
 * The knobs of a process: its configuration keys. The admin endpoint lists them and changes the
 * live ones while the process runs (KnobList, KnobSet, KnobHistory in proto/admin.proto). There is
 * no second list: the registry of knobs is config.h's table. Everything here runs in the loop
 * thread.
 *
 * A change is made on a copy. Keys are assigned, `check` sees the whole copy, `apply` puts it in
 * force, and only then does the copy become the configuration. So a batch takes effect whole or not
 * at all, whatever fails.
 */
#pragma once

#include "shared/base/config.h"

struct daemon;

/* A batch over several processes goes to each of them step by step. The administrator waits this
 * long for an answer. */
#define KNOBS_STEP_NS UINT64_C(10000000000)
/* A process stays reserved for the administrator this long after a step: between two of its steps
 * lies one with each of the other four processes that have knobs (the gateway is one of them). */
#define KNOBS_RESERVED_NS (4 * KNOBS_STEP_NS + UINT64_C(2000000000))

struct daemon_knobs {
	const struct config_key *keys; /* ended by an entry whose name is NULL */
	/* the configuration in force; changed keys are written to it after apply returned 0 */
	void *config;
	size_t config_bytes;
	/* Checks the relations between the keys of a changed copy; pure. May be NULL. */
	int (*check)(const void *config, struct error *err);
	/* Checks a changed copy that is meant for the next start: refuses what that start would
	 * refuse with the present files and machine, such as a number beyond the model's or a
	 * missing file, provided that the same model will be served. Looks only at keys that differ
	 * from config. May be NULL. */
	int (*fits)(void *arg, const void *next, struct error *err);
	/* Refuses what apply would refuse of a checked, changed copy, as far as that is known
	 * without doing it; changes nothing. With it, no process of a batch has done its part when
	 * another must refuse. May be NULL. */
	int (*rehearse)(void *arg, const void *next, struct error *err);
	/* Puts a checked, changed copy in force, all of it or nothing. config still has the old
	 * values and so shows what changed. */
	int (*apply)(void *arg, const void *next, struct error *err);
	/* Called after each change with the configuration as it will be when all temporary changes
	 * have ended. A service that hands its configuration to a successor hands over this one.
	 * May be NULL. */
	void (*stays)(void *arg, const void *config);
	/* Writes what a key's value in force amounts to where the value leaves it to the process
	 * ("auto"); for other keys sets `out` to "". May be NULL. */
	void (*means)(void *arg, const struct config_key *key, char *out, size_t bytes);
	/* Why a key has no effect as this process runs; NULL: it has. Whoever sets it to another value
	 * than its default is told. May be NULL. */
	const char *(*idle)(void *arg, const struct config_key *key);
	void *arg;

	/* The configuration that reset returns to, if config has already changed since the start;
	 * NULL: config as it is now. */
	const void *started;

	/* The file that this process was started with (struct options); lasting changes are written
	 * below its .d/. NULL or "" refuses lasting changes. */
	const char *config_path;
	/* For each key, in the table's order: the command line set it, and will again at the next
	 * start. May be NULL. */
	const bool *on_command_line;
	/* The KNOB_SESSION keys of one session. session_get copies its configuration to out,
	 * -ENOENT when there is no such session; session_apply changes it. NULL for a service that
	 * has no keys of session scope. */
	int (*session_get)(void *arg, uint64_t uid, void *out, struct error *err);
	int (*session_apply)(void *arg, uint64_t uid, const void *next, struct error *err);
};

/* Call once, before daemon_run, with the resolved configuration. Copies *knobs; what it points to
 * is borrowed until daemon_destroy. -ENOMEM. */
int daemon_knobs_open(struct daemon *daemon, const struct daemon_knobs *knobs, struct error *err);
