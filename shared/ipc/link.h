/*
 * The other end of a broker: registers with one peer (registry.h), and then connects to its broker; both are done again whenever
 * they break (retry every 20 ms to 500 ms). Runs in the daemon's loop thread; link_alive may be asked from any thread.
 */
#pragma once

#include "shared/ipc/broker.h"

struct link;

struct link_events {
	/* All regions the peer offers, after hello and whenever it offers another. The callee attaches what it wants:
	 * it dups the fd to keep it (the array's are closed after the call). Compare header uid with what is mapped: the same
	 * region after a restart of its owner needs no remapping. */
	void (*regions)(
		void *arg, const char *peer, const char *const *names, const int *fds, size_t n);
	/* The peer, which had answered, died or left; mapped regions stay valid. */
	void (*lost)(void *arg, const char *peer);
	void *arg;
};

/* -EPERM when peers.c knows no such connection, -EINVAL before daemon_admin_open. Connects now when the peer is there, else as soon as it is; events come
 * from the loop only. Close neither the link nor the broker inside events. */
int link_open(struct daemon *daemon, const char *peer, const struct link_events *events,
	struct link **out, struct error *err);
void link_close(struct link **link);
/* Whether the peer is connected now (relaxed atomic; a hint). */
bool link_alive(const struct link *link);
