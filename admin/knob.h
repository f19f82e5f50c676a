/*
 * The knobs of all processes, as outriderctl sees them. Which ones there are is known from the
 * tables in this program (each process has the same, in one installation); their values come from
 * the processes.
 */
#pragma once

#include "admin/ctl.h"
#include "shared/base/config.h"

enum { KNOB_PROCESSES = 5 };

extern const struct knob_process {
	const char *name; /* PEER_... */
	const char *alias; /* another name that a person may write; NULL */
	const struct config_key *keys;
	/* not every service has it, so outriderctl does not wait for it when it does not listen */
	bool optional;
} knob_processes[KNOB_PROCESSES];

/* The process with this name or alias, such as "policy" or "cache"; NULL. */
const struct knob_process *knob_process_of(const char *name);

/* A knob that a person named. */
struct knob_name {
	const struct knob_process *process;
	const char *name; /* within the process; points into the text given to knob_resolve */
	const struct config_key *key; /* NULL: this build has no such key, but the process may */
};

/* Finds the knob for "k_max", "policy.k_max" or "cache.budget". Returns an exit status; prints what
 * the name could have been if no process has it, or several do. in: looks only there; NULL:
 * anywhere. */
int knob_resolve(const char *text, const struct knob_process *in, struct knob_name *out);

/* The list of one process: an exit status; without a message if the process does not run. *reply is
 * freed with bus_free. */
int knob_ask_list(struct ctl *ctl, const struct knob_process *process, uint64_t session,
	Outrider__Envelope **reply);

/* A wanted change; its texts are borrowed. */
struct knob_wish {
	struct knob_name knob;
	const char *value, *expected; /* expected NULL: the present value does not matter */
};
enum { KNOB_WISHES_MAX = 64 };
struct knob_wishes {
	struct knob_wish of[KNOB_WISHES_MAX];
	size_t n;
	bool reset;
};

/* Makes all changes, in however many processes, or none; prints the result. An exit status. */
int knob_make(struct ctl *ctl, struct knob_wishes *wishes);

/* Adds a change: name gets the value, if its present value is that of --if for the argument. `in`:
 * as for knob_resolve. An exit status. */
int knob_add_wish(struct ctl *ctl, const char *command, const char *argument, const char *name,
	const char *value, const struct knob_process *in, struct knob_wishes *wishes);
/* The same for an argument "NAME=VALUE", which is cut there. */
int knob_add_assignment(struct ctl *ctl, const char *command, char *argument,
	const struct knob_process *in, struct knob_wishes *wishes);
