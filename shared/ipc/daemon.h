/*
 * What every daemon is: one loop thread (sockets, timers, signals, ZeroMQ), readiness, watchdog and fd store over
 * libsystemd's protocol (which `outrider up` speaks too), and an admin endpoint that answers status.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct daemon;
struct _Outrider__Envelope;

struct daemon_options {
	const char *name;	 /* PEER_... */
	const char *runtime_dir; /* resolved with peers_runtime_dir */
	uint64_t watchdog_stall_ns; /* alive() must have returned true within this; 0 = loop only */
};

/* Blocks SIGTERM, SIGINT, SIGHUP for the whole process (call before starting threads) and reads them in the loop. */
int daemon_create(const struct daemon_options *options, struct daemon **out, struct error *err);
void daemon_destroy(struct daemon **daemon);

const char *daemon_name(const struct daemon *daemon);
const char *daemon_runtime_dir(const struct daemon *daemon);
/* A number that grows with each start of this process (CLOCK_REALTIME ns at start): who holds what. */
uint64_t daemon_generation(const struct daemon *daemon);
void *daemon_zmq(struct daemon *daemon); /* the ZeroMQ context */

/* Loop sources; handlers run in the loop thread. remove is safe inside handlers. events: POLLIN, POLLOUT. */
typedef void (*daemon_handler)(void *arg);
int daemon_add_fd(struct daemon *daemon, int fd, short events, daemon_handler handler, void *arg);
void daemon_set_events(struct daemon *daemon, int fd, short events);
void daemon_remove_fd(struct daemon *daemon, int fd);
int daemon_add_zmq(struct daemon *daemon, void *socket, daemon_handler handler, void *arg); /* POLLIN */
int daemon_add_timer(struct daemon *daemon, uint64_t period_ns, daemon_handler handler, void *arg); /* id */
void daemon_remove_timer(struct daemon *daemon, int id);

/* Any thread: makes the loop call wakeup soon (an eventfd; coalesced; no system call when one is already pending). */
void daemon_on_wakeup(struct daemon *daemon, daemon_handler handler, void *arg);
void daemon_wakeup(struct daemon *daemon);

/* The watchdog is fed only while alive() says true (NULL: always). */
void daemon_on_alive(struct daemon *daemon, bool (*alive)(void *arg), void *arg);

/* Admin messages other than StatusRequest (answered by the daemon itself): fill reply's body and return true, or return false:
 * "not understood". Strings and repeated fields the handler puts in must be malloc'd: the reply is freed with protobuf-c. */
typedef bool (*daemon_admin)(void *arg, const struct _Outrider__Envelope *request, struct _Outrider__Envelope *reply);
/* Binds ipc://RUNTIME_DIR/NAME.ctl. */
int daemon_admin_open(struct daemon *daemon, daemon_admin handler, void *arg, struct error *err);

/* One line for status: "loading", "ready", "degraded: drafter gone". READY=1 is sent by daemon_ready, once. */
void daemon_set_state(struct daemon *daemon, const char *format, ...) __attribute__((format(printf, 2, 3)));
void daemon_ready(struct daemon *daemon);
void daemon_progress(struct daemon *daemon); /* EXTEND_TIMEOUT_USEC while loading */

/* The fd store: put, and what a predecessor left (-ENOENT when nothing). */
void daemon_store_fd(struct daemon *daemon, const char *name, int fd);
int daemon_stored_fd(struct daemon *daemon, const char *name, int *fd);
/* A listening socket by FileDescriptorName (socket activation); -ENOENT when not activated. */
int daemon_listen_fd(struct daemon *daemon, const char *name, int *fd);

/* Until SIGTERM or SIGINT (0), daemon_stop (its status). SIGHUP calls nothing yet: configuration is read at start. */
int daemon_run(struct daemon *daemon);
void daemon_stop(struct daemon *daemon, int exit_status);
