/*
 * The client side of a broker. A link registers with one peer (registry.h) and then connects to the
 * peer's broker. When the connection to the broker breaks, it does both again; when only the
 * connection for messages breaks, it registers again. It tries with pauses of 20 to 500 ms. Runs in
 * the daemon's loop thread; link_alive may be called from any thread.
 */
#pragma once

#include "shared/ipc/broker.h"

struct link;

struct link_events {
	/* Gets all regions that the peer offers, after hello and whenever it offers another. The
	 * callee attaches those that it wants. If it returns -EMFILE, -ENFILE or -ENOMEM, this is
	 * logged once, and the same comes again every half second until it returns something else;
	 * what it returns then is not looked at. It must dup an fd to keep it: those of the array are
	 * closed after the call. Compare the header's uid with that of the mapped region: after a
	 * restart of its owner the region may be the same and needs no remapping. */
	int (*regions)(
		void *arg, const char *peer, const char *const *names, const int *fds, size_t n);
	/* The connection to a peer that had answered is gone: usually the peer died or left. Mapped
	 * regions stay valid. */
	void (*lost)(void *arg, const char *peer);
	void *arg;
};

/* Connects now if the peer is running, otherwise as soon as it is. Events come from the loop only.
 * Close neither the link nor the broker inside an event. -EPERM: peers.c allows no such connection.
 * -EINVAL: daemon_admin_open has not been called. */
int link_open(struct daemon *daemon, const char *peer, const struct link_events *events,
	struct link **out, struct error *err);
/* For a process that ends: tells the peer so, and closes the link. Calls no event. */
void link_close(struct link **link);
/* Whether regions that this error kept from being taken are brought again, as said above. */
bool link_brings_again(int code);
/* True while the peer is connected (a relaxed load; a hint). */
bool link_alive(const struct link *link);
