/*
 * What daemon.c (the loop), daemon_start.c (signals before the loop), daemon_notify.c (the service
 * manager), daemon_admin.c (the admin endpoint) and registry.c (the peers) share. No other file
 * includes it.
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
	struct bus_server *server; /* NULL: the source is a plain descriptor */
	int fd;
	short events;
	bool used;
	uint64_t serial; /* tells a new source from an older one in the same place */
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

/* A descriptor that the service manager stores or passed. */
struct stored {
	char name[LIMIT_NAME];
	int fd; /* -1: it could not be duplicated */
	bool listening;
	dev_t dev;
	ino_t ino;
};

/* What registry.c keeps about one peer. */
struct registry_entry {
	struct peer peer;
	/* of the connection for its messages; none while it is not connected */
	struct bus_address address;
	struct registry_caller caller;
	bool calls; /* this process connects to it */
	bool asks; /* this process has sent its card and waits for the answer */
	bool joined; /* it is connected to our broker */
	uint32_t told; /* state_serial of the state that was sent to it last */
	struct peer_settings settings; /* our settings, as the peer must know them */
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
	uint64_t start_ns; /* also the generation */
	int signal_fd, wakeup_fd;
	int lock_fd; /* of broker_claim; -1: broker_open has it, or nobody does */
	int start_fd; /* of daemon_start.c; -1: its thread does not run */
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
	uint64_t stall_ns, alive_ns; /* alive_ns: when alive() last returned true */

	pthread_mutex_t state_lock; /* protects state */
	char state[STATE_BYTES];
	atomic_uint state_serial; /* incremented by each change of state */
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

/* daemon_trace.c. False: no memory; freeing the reply frees what was put into it. */
bool daemon_fill_trace(const Outrider__TraceRequest *request, Outrider__Envelope *reply);
/* daemon_knobs.c. Does nothing when there are no knobs. */
void daemon_knobs_close(struct daemon *daemon);

/* daemon_start.c. daemon_create starts the watch, after blocking the signals; daemon_run or
 * daemon_destroy ends it. daemon_start_over may be called any number of times. */
int daemon_start_watch(struct daemon *daemon, struct error *err);
void daemon_start_over(struct daemon *daemon);

/* daemon_notify.c */
void daemon_collect_passed(struct daemon *daemon);
void daemon_close_passed(struct daemon *daemon);
void daemon_close_stored(struct daemon *daemon);
int daemon_watchdog_start(struct daemon *daemon);
void daemon_stopping(struct daemon *daemon);

/* registry.c */
/* Sends a refusal to a connection of the admin endpoint. code: an errno. A connection that is gone
 * needs no answer. */
void daemon_answer_failure(struct daemon *daemon, const struct bus_address *to, uint64_t request_id,
	int code, const char *text);
void registry_open(struct daemon *daemon); /* call when the admin endpoint is open */
/* True: it was a message of a peer and has been handled. */
bool registry_take(
	struct daemon *daemon, const struct bus_address *from, const Outrider__Envelope *envelope);
/* Tells the peers of the state, if it has changed. */
void registry_announce(struct daemon *daemon);
