/*
 * What every daemon has: one loop thread (sockets, timers, signals); readiness, watchdog and fd
 * store over libsystemd's protocol, which `outrider up` speaks too; and an admin endpoint that
 * answers status. Functions belong to the loop thread unless their comment says "any thread".
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
	const char *name; /* one of PEER_... (peers.h) */
	const char *runtime_dir; /* from peers_runtime_dir */
	/* The service manager's watchdog is fed while alive() has returned true within this time.
	 * 0: alive() must return true at each feed. Without daemon_on_alive a loop that turns is
	 * enough. */
	uint64_t watchdog_stall_ns;
};

/* Creates the daemon. Ignores SIGPIPE and SIGXFSZ, and takes what the service manager passed (fd
 * store, listening sockets). Blocks SIGTERM, SIGINT and SIGHUP for the whole process, so call it
 * before any thread starts; the loop reads these signals. Before the loop runs, a start may hang on
 * what it reads. SIGTERM or SIGINT then ends the process with status 0, unless it reaches
 * daemon_run or daemon_destroy within 2 s. */
int daemon_create(const struct daemon_options *options, struct daemon **out, struct error *err);
void daemon_destroy(struct daemon **daemon);

const char *daemon_name(const struct daemon *daemon);
const char *daemon_runtime_dir(const struct daemon *daemon);
/* A number that grows with each start of this process; it tells a process from its predecessors. It
 * is CLOCK_MONOTONIC in ns at the start: that clock never steps back, and no region outlives the
 * boot that it counts from. */
uint64_t daemon_generation(const struct daemon *daemon);

/* Sources of the loop. Add and remove them in the loop thread, or before daemon_run; handlers run
 * in the loop thread. daemon_remove_fd is safe inside handlers. events: POLLIN, POLLOUT, or 0 for
 * errors and hang-ups only, which are always reported. -ENOSPC when there are too many sources. The
 * handler of a bus server may receive once or more often: it is called again while messages are
 * there. After 10 ms of that, the other sources and the timers get their turn. */
typedef void (*daemon_handler)(void *arg);
int daemon_add_fd(struct daemon *daemon, int fd, short events, daemon_handler handler, void *arg);
void daemon_set_events(struct daemon *daemon, int fd, short events);
void daemon_remove_fd(struct daemon *daemon, int fd);
int daemon_add_server(
	struct daemon *daemon, struct bus_server *server, daemon_handler handler, void *arg);

/* Calls the handler every period_ns, first after one period, accurate to a millisecond. Returns the
 * timer's id (> 0) or -ENOSPC. */
int daemon_add_timer(struct daemon *daemon, uint64_t period_ns, daemon_handler handler, void *arg);
void daemon_remove_timer(struct daemon *daemon, int id);

/* daemon_wakeup, from any thread, makes the loop call the handler soon. It writes to an eventfd;
 * calls are coalesced, and one that finds a wake-up pending makes no system call. */
void daemon_on_wakeup(struct daemon *daemon, daemon_handler handler, void *arg);
void daemon_wakeup(struct daemon *daemon);

/* The watchdog is fed only while alive() returns true. NULL: always. */
void daemon_on_alive(struct daemon *daemon, bool (*alive)(void *arg), void *arg);

/* Handles every admin message except StatusRequest and those about knobs, which the daemon answers
 * itself (daemon_knobs.h). Fills reply's body and returns 0. -EOPNOTSUPP: the message is not one of
 * the handler's. -ENOMEM: no reply is sent, whatever is in `reply`. Strings and repeated fields of
 * the reply must be malloc'd: protobuf-c frees it. */
typedef int (*daemon_admin)(
	void *arg, const struct Outrider__Envelope *request, struct Outrider__Envelope *reply);
/* Makes the reply a refusal. code: an errno. session: 0 when it concerns none. Without memory the
 * body stays unset. */
void daemon_failure(struct Outrider__Envelope *reply, int code, uint64_t session, const char *text);
/* Binds ipc://RUNTIME_DIR/NAME.ctl for administrators and peers (registry.h). handler NULL: the
 * service has no messages of its own. */
int daemon_admin_open(struct daemon *daemon, daemon_admin handler, void *arg, struct error *err);
/* `detail` is called for each StatusRequest and adds "key=value" lines to Status.detail with
 * daemon_detail. */
struct daemon_details;
void daemon_on_detail(
	struct daemon *daemon, void (*detail)(void *arg, struct daemon_details *to), void *arg);
void daemon_detail(struct daemon_details *to, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Like daemon_detail, for a file: writes its absolute path, however it was named. */
void daemon_detail_file(struct daemon_details *to, const char *key, const char *path);

/* Sets the one line that status shows: "loading", "ready", "degraded: drafter gone". A change goes
 * to the service manager as STATUS=. Any thread. daemon_ready sends READY=1, once; before that it
 * sets "ready", unless the state is "degraded: ...". So a program that waits for readiness hears of
 * the state first. */
void daemon_set_state(struct daemon *daemon, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void daemon_ready(struct daemon *daemon);
/* True when a service manager started this process and restarts it; otherwise a person reads its
 * errors at once. */
bool daemon_has_manager(void);
/* True when the service manager started this process in place of one that was ready; otherwise it is the
 * first of its service, as far as anybody knows. */
bool daemon_succeeds(void);
/* main calls this when the start has failed with `status` and everything is freed; returns the
 * status to exit with. systemd 252 cannot lengthen its pauses between starts. So under systemd this
 * waits two seconds, or until SIGTERM, before it returns a status whose cause may be temporary. If
 * memory was lacking and a predecessor was ready, the status becomes EX_TEMPFAIL: memory sufficed
 * once and may suffice again. No pause under `outrider up`, which makes its own, nor for a person.
 */
int daemon_start_failed(int status);
/* Call every few seconds while loading: asks the service manager for 30 s more
 * (EXTEND_TIMEOUT_USEC). Any thread. */
void daemon_progress(struct daemon *daemon);

/* The fd store.
 * - daemon_store_fd sends a descriptor to the manager, unless it already holds that file under that
 *   name; another file of that name is replaced.
 * - daemon_stored_fd duplicates a descriptor that a predecessor left; the duplicate is the
 *   caller's. -ENOENT: there is none.
 * - daemon_unstore_fd removes a name: when it returns, neither this process nor the manager holds
 *   the file. The manager has a second to let go of it.
 *
 * daemon_ready removes everything that a predecessor left and that was not stored again. */
void daemon_store_fd(struct daemon *daemon, const char *name, int fd);
int daemon_stored_fd(struct daemon *daemon, const char *name, int *fd);
void daemon_unstore_fd(struct daemon *daemon, const char *name);
/* Duplicates a listening socket by its FileDescriptorName (socket activation); the duplicate is the
 * caller's. -ENOENT when the process was not activated by a socket. */
int daemon_listen_fd(struct daemon *daemon, const char *name, int *fd);

/* Runs this process's program anew, with the same arguments and one more variable in the environment. For
 * the peers it is as if the process had been killed, and for the program as if the service manager
 * had started it: it gets what lies in the store. Memory of a device is left out, which the
 * driver could keep for this process, and leaves the store. The thread of the loop; all others end. Returns only on failure,
 * with -errno. */
int daemon_run_anew(struct daemon *daemon, const char *name, const char *value, char **argv);

/* Runs the loop until SIGTERM or SIGINT (returns 0), or until daemon_stop (returns its status; any
 * thread). SIGHUP does nothing yet: configuration is read at the start. */
int daemon_run(struct daemon *daemon);
/* True once the process has been told to stop. From then on its peers may be stopping too, which
 * needs no log line. Any thread. */
bool daemon_is_stopping(struct daemon *daemon);
void daemon_stop(struct daemon *daemon, int exit_status);
