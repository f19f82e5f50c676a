/*
 * ZeroMQ sockets that carry protobuf envelopes. Sockets belong to one thread. Every receive checks frame count, size,
 * protobuf syntax and version; what fails is dropped, counted, and logged by name (a server answers with Failure where it
 * knows whom to). Never blocks unless said.
 */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUS_VERSION 1

/* A peer's routing id, as ROUTER gives it. */
struct bus_address {
	uint8_t bytes[64];
	size_t n;
	char peer[48]; /* who ZeroMQ says is connected, for bus_peer; "" */
};

/* Who opened the connection a message came by, as the kernel has it (SO_PEERCRED): false where that is not a Unix socket,
 * or ZeroMQ does not tell. The process may be gone by now. */
bool bus_peer(const struct bus_address *from, uint32_t *uid, uint32_t *pid);

/* A ZeroMQ context whose threads run already: libzmq aborts the process when it cannot start them, so whether there is memory
 * for them is found out first. -ENOMEM with the reason. */
int bus_context(void **zmq, struct error *err);

/* ROUTER bound at endpoint. ipc: a live server on the path is -EADDRINUSE (probed by connecting), a stale file is
 * replaced; permissions 0600 before anyone can connect. */
int bus_server(void *zmq, const char *endpoint, void **out, struct error *err);
/* DEALER that connects (and reconnects) to endpoint. */
int bus_client(void *zmq, const char *endpoint, void **out, struct error *err);
void bus_close(void **socket);

/* The path of an ipc:// endpoint, or NULL for another kind. */
const char *bus_ipc_path(const char *endpoint);
/* Whether somebody listens on a Unix socket of this type (SOCK_STREAM for ZeroMQ): 0 and its pid (0 when unknown), or
 * -ECONNREFUSED, -ENOENT, ... */
int bus_probe(const char *path, int type, int *pid);

/* Server: 0 with *envelope (free with bus_free), -EAGAIN when nothing is there, -EPROTO when something was dropped: in that
 * case *from is set and *err says why, so that the caller may answer. */
int bus_receive_from(
	void *socket, struct bus_address *from, Outrider__Envelope **envelope, struct error *err);
/* -EAGAIN when the peer's queue is full, -EHOSTUNREACH when it is gone. Sets the version. */
int bus_send_to(void *socket, const struct bus_address *to, Outrider__Envelope *envelope);
/* Client. timeout_ms -1 waits; 0 polls. -EAGAIN when nothing came in that time. */
int bus_receive(void *socket, int timeout_ms, Outrider__Envelope **envelope, struct error *err);
/* Sets the version. Never waits: -EAGAIN when the queue (1000 messages, also while not connected) is full. */
int bus_send(void *socket, Outrider__Envelope *envelope);
/* What every receive does with a message's bytes: size, syntax and version are checked. -EPROTO with the reason. */
int bus_decode(const void *data, size_t bytes, Outrider__Envelope **envelope, struct error *err);
void bus_free(Outrider__Envelope **envelope);

/* Whom to tell that an answer is late: once, when it was waited for so long. */
struct bus_late {
	uint64_t after_ns;
	void (*tell)(void *arg);
	void *arg;
};

/* One request, one reply, to ipc endpoint, within timeout_ms, at least 0 (as patience.h counts it): what admin commands are
 * made of. late: NULL for nobody. -ETIMEDOUT or -ECONNREFUSED when nobody answers; a Failure reply becomes -EREMOTEIO with its
 * text. */
int bus_call(void *zmq, const char *endpoint, Outrider__Envelope *request, int timeout_ms,
	const struct bus_late *late, Outrider__Envelope **reply, struct error *err);
