/*
 * The region broker of a daemon: a Unix socket (SOCK_SEQPACKET) where peers say hello and receive
 * descriptors of regions (SCM_RIGHTS). The connection then stays open, and each side learns of the
 * other's death when it closes. Runs in the daemon's loop thread.
 *
 * The broker refuses, with the reason, a hello of another protocol version and of a process that is
 * none of the four. To join, a process must also be allowed to connect (peers.c) and must have
 * registered (registry.h). To look at a region, it must be allowed to connect. To recover or give
 * up a region, it must own the region. A connection of another user is closed without an answer.
 */
#pragma once

#include "shared/ipc/daemon.h"
#include "shared/ipc/region.h"

struct broker;

struct broker_events {
	/* A peer joined, perhaps again: its name, pid and generation (daemon_generation). Called
	 * before it is given the regions, so a region that is offered now is among them. */
	void (*joined)(void *arg, const char *peer, int pid, uint64_t generation);
	void (*left)(void *arg, const char *peer);
	void *arg;
};

/* For a process that has much to load before broker_open: takes RUNTIME_DIR/self.lock now, so that others
 * know of it (peers_runs). Errors as broker_open. */
int broker_claim(struct daemon *daemon, struct error *err);
/* Takes RUNTIME_DIR/self.lock, held until broker_close or the process's death, so that two
 * processes of one name never run in one directory. Then binds RUNTIME_DIR/self.sock, or takes the
 * listening socket that systemd passed under the name "self". A live process there gives
 * -EADDRINUSE with its pid; a stale socket file is replaced. events may be NULL. */
int broker_open(struct daemon *daemon, const struct broker_events *events, struct broker **out,
	struct error *err);
/* For a process that ends: tells the peers so, and closes the socket, the regions that it kept, and
 * the lock. Calls no event. */
void broker_close(struct broker **broker);
/* The daemon that the broker was opened for. */
struct daemon *broker_daemon(const struct broker *broker);

/* Offers a region to every peer that says hello, now and later; replaces an offered region of the
 * same name. Peers that write to it (peers.h) get a descriptor for writing, all others one that is
 * O_RDONLY. The O_RDONLY one is also put into the service manager's fd store under the region's
 * name. Without /proc there is no O_RDONLY descriptor and all get the other, which is logged.
 * Borrows region until broker_close. At most LIMIT_REGIONS. */
void broker_offer(struct broker *broker, const struct region *region);
/* The same for memory of a device, which is not a region: its descriptor under this name. fd:
 * borrowed until broker_close, or until another is offered. If it cannot be opened for reading only,
 * everybody gets it as it is. */
void broker_offer_fd(struct broker *broker, const char *name, int fd);
/* Ends an offer: then neither this process nor the service manager holds its descriptor, and peers stop
 * keeping it as soon as they hear. What they have mapped stays mapped. */
void broker_withdraw(struct broker *broker, const char *name);
/* Keeps a peer's region that this process has mapped, to hand it to the owner's successor on
 * request. Duplicates the descriptor as O_RDONLY; replaces a kept region of the same name. The
 * region is offered to nobody else. A failure is logged, but for those after which the link
 * brings the region again, and logs that itself (link_brings_again). */
int broker_keep(struct broker *broker, const struct region *region);
/* The same for what broker_offer_fd has given out. */
int broker_keep_fd(struct broker *broker, const char *name, int fd);
/* Call when the link to `owner` has told which regions it offers: drops all others that are kept
 * for it, which nobody needs any more. */
void broker_keep_only(struct broker *broker, const char *owner, const char *const *names, size_t n);

/* ---- Regions that peers keep for us, and regions of theirs (broker_recover.c). ---- */

/* Call at start, before broker_open. Fetches the descriptor of this process's own region
 * `region_name` from the fd store, or else from any live peer that keeps it. The descriptor is the
 * caller's to close; region_adopt takes it over. -ENOENT when nobody has it. Waits up to 300 ms per
 * peer. */
int broker_recover(struct daemon *daemon, const char *region_name, int *fd);
/* Fetches the descriptor of a region that `peer` offers, without joining the peer: for a process
 * that must see the region's content before it can do its own part. The descriptor is the caller's.
 * -ENOENT: the peer is not running. Any other error comes from a running peer, with the reason.
 * -EAGAIN: it does not offer the region yet, or is too busy. -ETIMEDOUT: no answer within 300 ms.
 * -EPERM, -EPROTO: it refuses, or is of another build, and would answer the same again. */
int broker_look(
	struct daemon *daemon, const char *peer, const char *region, int *fd, struct error *err);
/* Call with the broker open, for an own region that was recovered and does not fit. The service
 * manager and the peers that answer stop keeping it, so that there is room for a new one. Waits up
 * to 300 ms per peer, and up to a second for the manager. */
void broker_abandon(struct broker *broker, const char *region_name);
