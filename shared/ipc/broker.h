/*
 * The region broker of a daemon: a Unix socket (SOCK_SEQPACKET) where peers say hello and get descriptors of regions
 * (SCM_RIGHTS). The connection stays open: its end is how each side learns of the other's death.
 * Runs in the daemon's loop thread. A hello of another protocol version, of a process peers.c does not let in, of one that has
 * not registered (registry.h), or of another user is refused with the reason.
 */
#pragma once

#include "shared/ipc/daemon.h"
#include "shared/ipc/region.h"

struct broker;

struct broker_events {
	/* A peer said hello (again): its name, pid and generation (its start counter, see link.h). */
	void (*joined)(void *arg, const char *peer, int pid, uint64_t generation);
	void (*left)(void *arg, const char *peer);
	void *arg;
};

/* Takes RUNTIME_DIR/self.lock (held until broker_close, or death), so that two of one name never run in one
 * directory. Then binds RUNTIME_DIR/self.sock, or takes the listening socket systemd gave under the name "self". A live
 * process on it: -EADDRINUSE with its pid. A stale socket file is replaced. */
/* events may be NULL. */
int broker_open(struct daemon *daemon, const struct broker_events *events, struct broker **out,
	struct error *err);
void broker_close(struct broker **broker);
/* The one it was opened for. */
struct daemon *broker_daemon(const struct broker *broker);

/* Regions given to each peer that says hello, now and later; replaces one of the same name. Who writes to it (peers.h) gets a
 * descriptor for that, everybody else one that is O_RDONLY. The latter is also put into the service manager's fd store under
 * the region's name. Without /proc there is none that is O_RDONLY, which is logged. Borrows region until broker_close. At
 * most LIMIT_REGIONS. */
void broker_offer(struct broker *broker, const struct region *region);
/* A peer's region this process has mapped, kept to hand to the owner's successor when it asks. Keeps an O_RDONLY descriptor of
 * its own; replaces one of the same name. Not offered to anybody else. */
void broker_keep(struct broker *broker, const struct region *region);
/* A peer's link has said what it offers: what is kept of it beside that is of no use to anybody. */
void broker_keep_only(struct broker *broker, const char *owner, const char *const *names, size_t n);

/* ---- What peers keep of ours, and have (broker_recover.c). ---- */

/* At start, before broker_open: finds the fd of our own region `name` from the fd store, else from any live peer
 * that keeps it; the caller's to close (region_adopt takes it). -ENOENT when nobody has it. Waits up to 300 ms per peer. */
int broker_recover(struct daemon *daemon, const char *region_name, int *fd);
/* A region that the peer offers, without joining it: for who has to know what is in it before it can do its part. The fd is
 * the caller's. -ENOENT: nobody is there. All else is the answer of one who is, with the reason: -EAGAIN: it offers no such
 * region yet, or has no time for us; -ETIMEDOUT: none within 300 ms; -EPERM, -EPROTO: it refuses, or is of another build, and
 * would again. */
int broker_look(
	struct daemon *daemon, const char *peer, const char *region, int *fd, struct error *err);
/* Of our own region `name`, which was recovered and does not fit: the service manager and the peers that answer keep it no
 * longer, so that there is room for another. Only who has the broker open may. */
void broker_abandon(struct broker *broker, const char *region_name);
