/*
 * The work of `outrider up`: it starts children, restarts those that die, and speaks systemd's
 * protocol with them, so that daemons need no other (sd_notify(3), sd_listen_fds(3),
 * sd_watchdog_enabled(3)). One thread, one poll loop.
 *
 * supervisor.c: the loop; child.c: the life of a child; notify.c: the messages of a child, and its
 * descriptor store.
 */
#pragma once

#include "client/cli/stop.h"
#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	CHILD_ARGUMENTS_MAX = 128,
	CHILD_STORE_MAX = 16,
	SUPERVISOR_CHILDREN_MAX = 8,
	CHILD_REFUSALS_MAX = 5,
	CHILD_STARVED_MAX = 5,
	CHILD_EARLY_MAX = 5,
	CHILD_STOP_S_MAX = 10, /* from SIGTERM to SIGKILL */
};

#define CHILD_ERROR_MARK ": error: " /* as log.h writes it */

enum child_state {
	CHILD_WAITING, /* will be started at start_ns */
	CHILD_STARTING,
	CHILD_READY,
	CHILD_GIVEN_UP, /* it came up once, but another start can only fail */
};

struct stored_fd {
	char name[64];
	int fd;
};

struct child {
	const char *name;
	/* [0] is the program; the last is followed by NULL */
	const char *arguments[CHILD_ARGUMENTS_MAX + 1];
	int n_arguments;
	enum child_state state;
	pid_t pid; /* 0: none */
	int notify_fd, output_fd;
	char notify_name[64]; /* an abstract socket */
	uint64_t start_ns; /* when it will be, or was, started */
	uint64_t deadline_ns; /* by when it must be ready, or feed its watchdog; 0: no deadline */
	uint64_t kill_ns; /* when it gets SIGKILL; 0: it does not */
	uint64_t backoff_ns;
	bool was_ready; /* in any of its lives */
	bool killed; /* in this life, by this process, with SIGABRT or SIGKILL */
	bool needed; /* when it is given up, all others are ended too */
	/* in regions that other processes keep open: if it is given up for lack of memory, these
	 * leave no memory for the others */
	bool holds_memory;
	/* lives in a row, none of them long, that the kernel ended for lack of memory */
	int starved;
	/* lives in a row that ended, before the child was ready, with a status that a restart
	 * cannot cure */
	int refusals;
	int early; /* lives that ended before the child was ever ready */
	bool quiet; /* only its error messages are passed on */
	char degraded[128]; /* what it says it lacks; "": nothing */
	int status; /* wait status of the last life */
	/* last_line: of this life; its last error message, if there was one */
	char last_line[512], line[512];
	size_t line_bytes;
	struct stored_fd store[CHILD_STORE_MAX];
	size_t n_stored;
};

struct supervisor {
	struct child children[SUPERVISOR_CHILDREN_MAX];
	int n_children;
	uint64_t watchdog_ns; /* 0: none */
	uint64_t due_ns; /* when the loop has to look again at the latest; 0: never */
	int stop_fd; /* from stop_open */
	int signal_fd; /* readable when children have ended */
	struct stop stop; /* the signal that asked to stop; number 0: none did */
	bool oom_known; /* oom_kills could be read */
	/* in our control group, which is also the children's, at the last look */
	uint64_t oom_kills;
	uint64_t oom_ns; /* when it was last seen to rise; 0: never */
	/* a process that was killed just now was killed by the kernel for lack of memory */
	bool starving;
	bool stopping;
	bool all_ready; /* all children have been ready once */
	/* since when all are ready, plus the time in which they may still connect to each other; 0:
	 * not all are ready */
	uint64_t settle_ns;
	uint64_t started_ns;
	int exit_status;
	char cause
		/* why everything ends: the child that was given up, and its own words; "" when a
		 * signal asked for it */
		[704];
	void (*on_ready)(void *arg); /* called once, when all children are ready */
	/* called when everything ends because a child is given up */
	void (*on_failure)(void *arg, const char *why);
	void *arg;
};

/* Runs until a signal asks to stop, or until a child that is needed is given up. Returns the exit
 * status: 0 for SIGTERM and SIGINT, by which a person or a service manager ends it, 129 for SIGHUP,
 * which means that the terminal went away, and 70 instead of 0 when a child crashed as it ended. */
int supervisor_run(struct supervisor *supervisor);
/* Adds an argument for a child; false when it has too many. */
bool child_argument(struct child *child, const char *argument);

/* child.c */
int child_prepare(struct child *child, struct error *err);
/* In a new process of ours: it will end with `parent`, blocks no signal, reads nothing and writes
 * to output. */
void child_stdio(int output, pid_t parent);
int child_start(struct supervisor *supervisor, struct child *child);
/* Reads the child's output and passes it on. */
void child_output(struct child *child);
/* Its process ended with status: logs that and plans the next life, which it does not get when
 * everything ends. Returns the exit status for the whole if there is no hope, else 0. */
int child_ended(struct supervisor *supervisor, struct child *child, int status);
/* Kills the child if it is late; starts it if that is due. Returns as child_ended. */
int child_tick(struct supervisor *supervisor, struct child *child, uint64_t now_ns);
/* When child_tick must be called next; UINT64_MAX: no time is set. */
uint64_t child_next_ns(const struct child *child);
/* For a pause in which this process could not look at its children, late_ns longer than planned:
 * begins their deadlines anew. */
void child_forgive(struct child *child, uint64_t now_ns, uint64_t late_ns, uint64_t watchdog_ns);
void child_close(struct child *child);

/* notify.c: handles the messages of a child. */
int notify_open(struct child *child, struct error *err);
void notify_receive(struct supervisor *supervisor, struct child *child);
void store_close(struct child *child);
