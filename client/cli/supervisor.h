/*
 * What `outrider up` does: runs children, restarts those that die, and speaks systemd's protocol to them, so that
 * a daemon has one code path (sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)). One thread, one poll loop.
 *
 * supervisor.c: the loop; child.c: a child's life; notify.c: what a child says, and its descriptor store.
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
};

#define CHILD_ERROR_MARK ": error: " /* as log.h writes them */

enum child_state {
	CHILD_WAITING, /* to be started at start_ns */
	CHILD_STARTING,
	CHILD_READY,
	CHILD_GIVEN_UP, /* it came up once, but starting it again can only fail again */
};

struct stored_fd {
	char name[64];
	int fd;
};

struct child {
	const char *name;
	const char *arguments[CHILD_ARGUMENTS_MAX + 1]; /* [0] the program; ended by NULL */
	int n_arguments;
	enum child_state state;
	pid_t pid; /* 0: none */
	int notify_fd, output_fd;
	char notify_name[64]; /* abstract */
	uint64_t start_ns; /* when it is, or was, started */
	uint64_t deadline_ns; /* to be ready, or to feed its watchdog; 0: none */
	uint64_t kill_ns; /* SIGKILL then; 0: no */
	uint64_t backoff_ns;
	bool was_ready; /* in any of its lives */
	bool needed; /* given up, it takes all the others with it */
	bool holds_memory; /* in regions that others keep: given up for lack of memory, it would leave none to them */
	int starved; /* lives in a row that the kernel ended for lack of memory, none of them long */
	int refusals; /* lives in a row that ended, before they were ready, with a status that restarting does not cure */
	int early; /* lives that ended before any was ready */
	bool quiet; /* only its errors are passed on */
	char degraded[128]; /* what it says it lacks, "" when nothing */
	int status; /* wait status of the last life */
	char last_line[512], line[512]; /* last_line: of this life, its last error if it said one */
	size_t line_bytes;
	struct stored_fd store[CHILD_STORE_MAX];
	size_t n_stored;
};

struct supervisor {
	struct child children[SUPERVISOR_CHILDREN_MAX];
	int n_children;
	uint64_t watchdog_ns; /* 0: none */
	uint64_t due_ns; /* when the loop is to look again at the latest; 0: at no time */
	int stop_fd; /* stop_open's */
	int signal_fd; /* of ended children */
	struct stop stop; /* what asked to stop; number 0: nothing did */
	bool oom_known; /* the count could be read, once */
	uint64_t oom_kills; /* in our control group, which is the children's, when we looked last */
	uint64_t oom_ns; /* when it was seen to rise last; 0: never */
	bool starving; /* just now: who was killed was so by the kernel, for lack of memory */
	bool stopping;
	bool all_ready; /* has been, once */
	uint64_t
		settle_ns; /* all are ready, and until then may still find each other; 0: not all are */
	uint64_t started_ns;
	int exit_status;
	char cause
		[704]; /* why everything ends: who was given up and its own words; "" when asked to */
	void (*on_ready)(void *arg); /* once, when all are */
	void (*on_failure)(
		void *arg, const char *why); /* everything ends because a child is given up */
	void *arg;
};

/* Runs until told to stop, or until a child is given up that is needed; returns the exit status: 0 for SIGTERM and SIGINT, by
 * which a person or a manager ends it, 129 for SIGHUP, which is a terminal that went away. */
int supervisor_run(struct supervisor *supervisor);
/* Another argument for a child; false when it has too many. */
bool child_argument(struct child *child, const char *argument);

/* child.c */
int child_prepare(struct child *child, struct error *err);
/* In a new process of ours: it ends with parent, blocks no signal, reads nothing and writes to output. */
void child_stdio(int output, pid_t parent);
int child_start(struct supervisor *supervisor, struct child *child);
/* Reads what it wrote and passes it on. */
void child_output(struct child *child);
/* Its process ended with status: says so and plans the next life. Returns the exit status for the whole when that is
 * hopeless, else 0. */
int child_ended(struct supervisor *supervisor, struct child *child, int status);
/* Kills what is late; starts what is due. Returns as child_ended. */
int child_tick(struct supervisor *supervisor, struct child *child, uint64_t now_ns);
/* When child_tick is needed next; UINT64_MAX: not by time. */
uint64_t child_next_ns(const struct child *child);
/* Nobody was fed for a time in which we could not look, late_ns of it after we should have: limits begin anew. */
void child_forgive(struct child *child, uint64_t now_ns, uint64_t late_ns, uint64_t watchdog_ns);
void child_close(struct child *child);

/* notify.c: takes in what the child said. */
int notify_open(struct child *child, struct error *err);
void notify_receive(struct supervisor *supervisor, struct child *child);
void store_close(struct child *child);
