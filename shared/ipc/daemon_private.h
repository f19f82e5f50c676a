/*
 * What daemon.c (the loop), daemon_start.c (signals before it), daemon_notify.c (the service manager) and daemon_admin.c (the
 * admin endpoint) share.
 * Nobody else includes it.
 */
#pragma once

#include "shared/ipc/bus.h"
#include "shared/ipc/daemon.h"
#include "shared/ipc/registry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
	SOURCES_MAX = 96,
	TIMERS_MAX = 32,
	PASSED_MAX = 64, /* descriptors the service manager passed */
	STORED_MAX = 32, /* names this process has put into the fd store */
	STATE_BYTES = 512,
	REGISTRY_PEERS = 3, /* the other processes */
};

struct source {
	struct bus_server *server; /* NULL: only a descriptor */
	int fd;
	short events;
	bool used;
	uint64_t serial; /* tells a new source in an old place */
	daemon_handler handler;
	void *arg;
};

struct timer {
	bool used;
	int id;
	uint64_t period_ns, next_ns;
	daemon_handler handler;
	void *arg;
};

/* A descriptor in the service manager's store, or passed by it. */
struct stored {
	char name[LIMIT_NAME];
	int fd; /* -1: only remembered */
	bool listening;
	dev_t dev;
	ino_t ino;
};

/* What registry.c keeps of one peer. */
struct registry_entry {
	struct peer peer;
	struct bus_address address; /* of its messages; none while it is not connected */
	struct registry_caller caller;
	bool calls; /* this process connects to it */
	bool asks; /* and waits for the answer */
	bool joined; /* it is connected to our broker */
	uint32_t told; /* state_serial of the state that it was sent last */
	struct peer_settings settings; /* what it is to know of ours */
	bool settings_told;
};

struct registry {
	struct peer_self self;
	struct registry_entry entries[REGISTRY_PEERS];
	void (*changed)(void *arg, const struct peer *peer);
	void *changed_arg;
};

struct daemon {
	char name[LIMIT_NAME];
	char runtime_dir[108];
	uint64_t start_ns; /* the generation, too */
	int signal_fd, wakeup_fd;
	int start_fd; /* daemon_start.c's; -1: its thread does not run */
	pthread_t start_thread;

	struct source sources[SOURCES_MAX];
	struct timer timers[TIMERS_MAX];
	uint64_t serial;
	int timer_id;

	daemon_handler wakeup;
	void *wakeup_arg;
	atomic_bool wakeup_pending;
	atomic_bool stop;
	atomic_int exit_status;

	bool (*alive)(void *arg);
	void *alive_arg;
	uint64_t stall_ns, alive_ns; /* alive_ns: when it last said true */

	pthread_mutex_t state_lock; /* protects state */
	char state[STATE_BYTES];
	atomic_uint state_serial; /* grows with each change */
	struct registry registry;
	atomic_bool ready;

	struct stored passed[PASSED_MAX];
	size_t n_passed;
	struct stored stored[STORED_MAX];
	size_t n_stored;

	struct bus_server *admin_server;
	daemon_admin admin;
	void *admin_arg;
	void (*detail)(void *arg, struct daemon_details *to);
	void *detail_arg;
	struct knobs *knobs; /* NULL: daemon_knobs_open was not called */
};

/* daemon_trace.c. False: no memory; what is in reply is freed with it. */
bool daemon_fill_trace(const Outrider__TraceRequest *request, Outrider__Envelope *reply);
/* daemon_knobs.c; no more than freeing when there are none. */
void daemon_knobs_close(struct daemon *daemon);

/* daemon_start.c: from daemon_create, whose signals are blocked by then, to daemon_run or daemon_destroy; the latter any number
 * of times. */
int daemon_start_watch(struct daemon *daemon, struct error *err);
void daemon_start_over(struct daemon *daemon);

/* daemon_notify.c */
void daemon_collect_passed(struct daemon *daemon);
void daemon_close_passed(struct daemon *daemon);
int daemon_watchdog_start(struct daemon *daemon);
void daemon_stopping(struct daemon *daemon);

/* registry.c */
/* A refusal, to a connection of the admin endpoint; code is an errno. One that is gone needs no answer. */
void daemon_answer_failure(struct daemon *daemon, const struct bus_address *to, uint64_t request_id,
	int code, const char *text);
void registry_open(struct daemon *daemon); /* the admin endpoint is open */
/* True: it was a message of a peer, and is dealt with. */
bool registry_take(
	struct daemon *daemon, const struct bus_address *from, const Outrider__Envelope *envelope);
/* Tells the peers when the state has changed. */
void registry_announce(struct daemon *daemon);
