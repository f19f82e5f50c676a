/*
 * The knobs of all processes, as outriderctl sees them: the tables it was built with say which there are (the processes
 * list their own, which are the same in one installation), the processes what they are set to.
 */
#pragma once

#include "admin/ctl.h"
#include "shared/base/config.h"

enum { KNOB_PROCESSES = 5 };

extern const struct knob_process {
	const char *name; /* PEER_... */
	const char *alias; /* what else a person may write; NULL */
	const struct config_key *keys;
	bool optional; /* not every service has it: one that does not listen is not waited for */
} knob_processes[KNOB_PROCESSES];

/* The process of "policy" or "cache"; NULL. */
const struct knob_process *knob_process_of(const char *name);

/* One knob that a person named. */
struct knob_name {
	const struct knob_process *process;
	const char *name; /* within the process; inside what was given to knob_resolve */
	const struct config_key *key; /* NULL: this build knows none, the process may */
};

/* "k_max", "policy.k_max", "cache.budget". An exit status, after saying what it could have been: a name that none has, or
 * several processes. in: only there; NULL: anywhere. */
int knob_resolve(const char *text, const struct knob_process *in, struct knob_name *out);

/* The list of one process: an exit status, without a word where it does not run. *reply is freed with bus_free. */
int knob_ask_list(struct ctl *ctl, const struct knob_process *process, uint64_t session,
	Outrider__Envelope **reply);

/* A change as a person wrote it; texts are borrowed. */
struct knob_wish {
	struct knob_name knob;
	const char *value, *expected; /* expected NULL: whatever it is now */
};
enum { KNOB_WISHES_MAX = 64 };
struct knob_wishes {
	struct knob_wish of[KNOB_WISHES_MAX];
	size_t n;
	bool reset;
};

/* All of them, in however many processes, or none; prints what came of it. An exit status. */
int knob_make(struct ctl *ctl, struct knob_wishes *wishes);

/* One wish more: name is to be value, and is now what --if says of the argument that asks for it. in as for knob_resolve. An
 * exit status. */
int knob_add_wish(struct ctl *ctl, const char *command, const char *argument, const char *name,
	const char *value, const struct knob_process *in, struct knob_wishes *wishes);
/* The same for an argument "NAME=VALUE", which is cut there. */
int knob_add_assignment(struct ctl *ctl, const char *command, char *argument,
	const struct knob_process *in, struct knob_wishes *wishes);
