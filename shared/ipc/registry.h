/*
 * Which other processes are running, and what each says of itself. A process registers with its
 * peers over their admin endpoints (proto/peer.proto) and tells them when its state changes.
 * Registration follows the connections of peers.h, and gives each side the other's card. A
 * registration lasts as long as the process: it ends with the connection to the region broker,
 * whose end the kernel reports at once. Before that connection exists, it ends with the connection
 * for messages. When afterwards only the connection for messages breaks, the process registers
 * again. Nothing is lost by that, since every message carries a whole state, not a difference.
 *
 * Belongs to the daemon, in its loop thread. A peer that leaves LIMIT_UNREAD_BYTES of messages
 * unread loses that connection.
 */
#pragma once

#include "shared/ipc/bus.h"
#include "shared/ipc/daemon.h"
#include "shared/ipc/peer_card.h"

enum peer_standing {
	PEER_UNKNOWN, /* it has not registered since this process started */
	PEER_REFUSED, /* this process refused it, or it refused this process */
	PEER_REGISTERED,
	PEER_GONE,
};

struct peer {
	const char *name; /* one of the names in peers_all */
	enum peer_standing standing;
	uint64_t since_ns; /* when the standing, or a registered peer's stage, last changed */
	struct peer_card card; /* the last card; its state and settings are kept up to date */
	uint32_t pid; /* from the kernel, or else as the card says */
	char refusal[LIMIT_PEER_TEXT]; /* with PEER_REFUSED: the reason */
};

/* Sets what this process's card contains besides its name. Call before anything connects. */
void registry_describe(struct daemon *daemon, const struct peer_self *self);
/* `changed` is called when a peer has registered, was refused, is gone, or has another state or
 * other settings. One listener. */
void registry_on_change(
	struct daemon *daemon, void (*changed)(void *arg, const struct peer *peer), void *arg);
/* Sets what the peer is told of this process's settings. They are sent with the registration and
 * whenever they change. Loop thread, or before the loop runs; after daemon_admin_open. */
void registry_tell(struct daemon *daemon, const char *name, const struct peer_settings *settings);
/* NULL when name is not that of another process. */
const struct peer *registry_peer(const struct daemon *daemon, const char *name);

/* ---- For link.c, which connects, and broker.c, to which peers connect. ---- */

struct registry_caller {
	void (*registered)(void *arg);
	void (*refused)(void *arg, const char *reason); /* the connection is closed */
	void (*broken)(void *arg); /* the connection broke; the process may still run */
	void *arg;
};

/* Connects to the peer and registers with it. One of the caller's functions is then called with the
 * result, and `broken` when the connection ends. -errno when nobody is there; -EINVAL when this
 * process has no admin endpoint. */
int registry_call(struct daemon *daemon, const char *name, const struct registry_caller *caller);
/* Ends the registration with a peer of this generation (0: any): closes the connection for
 * messages. If this process `ends`, it tells the peer so first; otherwise it first takes the
 * messages that the peer has already sent. */
void registry_part(struct daemon *daemon, const char *name, uint64_t generation, bool ends);
/* Call when a process says hello to the region broker; its registration now ends with that
 * connection. pid: from the kernel. -EPERM with the reason when the process has not registered. */
int registry_join(struct daemon *daemon, const char *name, uint32_t pid, uint64_t generation,
	struct error *err);
