/*
 * What every daemon is: one loop thread (sockets, timers, signals), readiness, watchdog and fd store over
 * libsystemd's protocol (which `outrider up` speaks too), and an admin endpoint that answers status.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct bus_server;
struct daemon;
struct Outrider__Envelope;

struct daemon_options {
	const char *name; /* PEER_... */
	const char *runtime_dir; /* resolved with peers_runtime_dir */
	/* The service manager's watchdog is fed while alive() has returned true within this time. 0: it must be true each time
	 * (without daemon_on_alive a loop that turns is enough). */
	uint64_t watchdog_stall_ns;
};

/* Also ignores SIGPIPE and SIGXFSZ and collects what the service manager passed (fd store, listening sockets). Blocks
 * SIGTERM, SIGINT, SIGHUP for the whole process (call before starting threads) and reads them in the loop. Before the loop runs
 * SIGTERM or SIGINT ends the process all the same, with status 0, unless it has come to daemon_run or daemon_destroy within 2 s:
 * what a start reads may hang. */
int daemon_create(const struct daemon_options *options, struct daemon **out, struct error *err);
void daemon_destroy(struct daemon **daemon);

const char *daemon_name(const struct daemon *daemon);
const char *daemon_runtime_dir(const struct daemon *daemon);
/* A number that grows with each start of this process: who holds what. CLOCK_MONOTONIC ns at start: it never steps back, and
 * no region outlives the boot that it counts from. */
uint64_t daemon_generation(const struct daemon *daemon);

/* Loop sources, to be added and removed in the loop thread (or before daemon_run); handlers run there. remove is
 * safe inside handlers. events: POLLIN, POLLOUT (0: only errors and hang-ups, which are always reported).
 * -ENOSPC when there are too many. A bus server's handler receives once, or as often as it likes: it is called again while
 * something is there. After 10 ms of that, the other sources and the timers get their turn. */
typedef void (*daemon_handler)(void *arg);
int daemon_add_fd(struct daemon *daemon, int fd, short events, daemon_handler handler, void *arg);
void daemon_set_events(struct daemon *daemon, int fd, short events);
void daemon_remove_fd(struct daemon *daemon, int fd);
int daemon_add_server(
	struct daemon *daemon, struct bus_server *server, daemon_handler handler, void *arg);

/* Every period_ns, first after one period, to a millisecond; returns its id (> 0) or -ENOSPC. */
int daemon_add_timer(struct daemon *daemon, uint64_t period_ns, daemon_handler handler, void *arg);
void daemon_remove_timer(struct daemon *daemon, int id);

/* Any thread: makes the loop call wakeup soon (an eventfd; coalesced; no system call when one is already pending). */
void daemon_on_wakeup(struct daemon *daemon, daemon_handler handler, void *arg);
void daemon_wakeup(struct daemon *daemon);

/* The watchdog is fed only while alive() says true (NULL: always). */
void daemon_on_alive(struct daemon *daemon, bool (*alive)(void *arg), void *arg);

/* Admin messages other than StatusRequest and those about knobs (answered by the daemon itself; daemon_knobs.h): fill
 * reply's body and return 0, or -EOPNOTSUPP: none of the handler's, or -ENOMEM: whatever is in reply is not sent. Strings and
 * repeated fields the handler puts in must be malloc'd: the reply is freed with protobuf-c. */
typedef int (*daemon_admin)(
	void *arg, const struct Outrider__Envelope *request, struct Outrider__Envelope *reply);
/* A refusal as the reply's body: code an errno, session 0 when it is about none. Without memory the body stays unset. */
void daemon_failure(struct Outrider__Envelope *reply, int code, uint64_t session, const char *text);
/* Binds ipc://RUNTIME_DIR/NAME.ctl, for administrators and peers (registry.h); handler may be NULL: only StatusRequest is
 * understood. */
int daemon_admin_open(struct daemon *daemon, daemon_admin handler, void *arg, struct error *err);
/* Called for each StatusRequest: adds its "key=value" lines to Status.detail with daemon_detail. */
struct daemon_details;
void daemon_on_detail(
	struct daemon *daemon, void (*detail)(void *arg, struct daemon_details *to), void *arg);
void daemon_detail(struct daemon_details *to, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same of a file, by its path from the root on, however it was named. */
void daemon_detail_file(struct daemon_details *to, const char *key, const char *path);

/* One line for status: "loading", "ready", "degraded: drafter gone"; goes to the service manager as STATUS= when it
 * changes. Any thread. daemon_ready sends READY=1, once, and sets "ready" before where the state is not "degraded: ..."
 * already: who waits for it hears of both in that order. */
void daemon_set_state(struct daemon *daemon, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void daemon_ready(struct daemon *daemon);
/* Whether a service manager starts this process again when it ends; else a person reads its errors at once. */
bool daemon_has_manager(void);
/* For main, when a start has failed with this status and everything is given back; returns the status to end with. Under a
 * service manager that knows no longer pauses between starts (systemd 252), a status that may pass ends the process two
 * seconds later, or with the SIGTERM before. So does lack of memory where a predecessor was ready: it had enough, and
 * EX_TEMPFAIL says that there may be enough again. `outrider up` makes its own pauses, and a person wants none. */
int daemon_start_failed(int status);
/* While loading, every few seconds: asks the service manager for 30 s more (EXTEND_TIMEOUT_USEC). Any thread. */
void daemon_progress(struct daemon *daemon);

/* The fd store: put (what the manager already has under that name is not sent again; another file of the name is
 * replaced), a duplicate, the caller's, of what a predecessor left (-ENOENT when nothing), and out with it: neither this
 * process nor the manager holds it when that returns (the manager has a second to let it go). daemon_ready does so with
 * all that a predecessor left and that was not put again. */
void daemon_store_fd(struct daemon *daemon, const char *name, int fd);
int daemon_stored_fd(struct daemon *daemon, const char *name, int *fd);
void daemon_unstore_fd(struct daemon *daemon, const char *name);
/* A duplicate, the caller's, of a listening socket by FileDescriptorName (socket activation); -ENOENT when not
 * activated. */
int daemon_listen_fd(struct daemon *daemon, const char *name, int *fd);

/* Until SIGTERM or SIGINT (0), or daemon_stop (its status; any thread). SIGHUP calls nothing yet: configuration is read
 * at start. */
int daemon_run(struct daemon *daemon);
/* Whether it has been told to: from then on others may be going as well, which is no news. */
bool daemon_is_stopping(struct daemon *daemon);
void daemon_stop(struct daemon *daemon, int exit_status);
