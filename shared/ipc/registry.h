/*
 * Who of the other processes is there, as they say themselves: each registers with its peers over their admin endpoints
 * (proto/peer.proto), and tells them when its state changes. Whoever connects in peers.h registers; both then have the other's
 * card. A registration lasts as long as the process: it ends with the connection to the region broker, whose end the kernel
 * tells at once. When only the connection for messages breaks, the process registers again, and nothing is lost by it, since
 * every message says how things are, and not what has changed.
 *
 * Belongs to the daemon, in its loop thread. A peer that leaves LIMIT_UNREAD_BYTES of messages unread loses that connection.
 */
#pragma once

#include "shared/ipc/bus.h"
#include "shared/ipc/daemon.h"
#include "shared/ipc/peer_card.h"

enum peer_standing {
	PEER_UNKNOWN, /* has not registered since this process started */
	PEER_REFUSED, /* it was refused, or refuses us */
	PEER_REGISTERED,
	PEER_GONE,
};

struct peer {
	const char *name; /* one of peers_all */
	enum peer_standing standing;
	uint64_t
		since_ns; /* when the standing, or the stage of one that is registered, became this */
	struct peer_card card; /* the last one; its state and settings are up to date */
	uint32_t pid; /* as the kernel has it, else as it says */
	char refusal[LIMIT_PEER_TEXT]; /* PEER_REFUSED: why */
};

/* What the card of this process has beside its name. Before anything connects. */
void registry_describe(struct daemon *daemon, const struct peer_self *self);
/* changed is told that a peer has registered, is refused or gone, or is in another state or has other settings. One listener. */
void registry_on_change(
	struct daemon *daemon, void (*changed)(void *arg, const struct peer *peer), void *arg);
/* What the peer is told of this process's settings: with the registration, and each time that they are others. Loop thread, or
 * before the loop runs; after daemon_admin_open. */
void registry_tell(struct daemon *daemon, const char *name, const struct peer_settings *settings);
/* NULL for what is not the name of another process. */
const struct peer *registry_peer(const struct daemon *daemon, const char *name);

/* ---- For link.c, which connects, and broker.c, which is connected to. ---- */

struct registry_caller {
	void (*registered)(void *arg);
	void (*refused)(void *arg, const char *reason); /* the connection is closed */
	void (*broken)(void *arg); /* the connection is, not necessarily the process */
	void *arg;
};

/* Connects to the peer and registers with it: one of the caller's functions is told what came of it, and of its end. -errno
 * when nobody is there; -EINVAL when this process has no admin endpoint. */
int registry_call(struct daemon *daemon, const char *name, const struct registry_caller *caller);
/* What the peer has sent is taken, it is told that this process ends if it does, and all connections to it are closed. */
void registry_part(struct daemon *daemon, const char *name, uint64_t generation, bool ends);
/* A process that says so connects to the region broker: from then on its registration ends with that connection. pid: the
 * kernel's. -EPERM with the reason when it has not registered. */
int registry_join(struct daemon *daemon, const char *name, uint32_t pid, uint64_t generation,
	struct error *err);
