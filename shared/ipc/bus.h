/*
 * Sockets that carry protobuf envelopes over ZeroMQ's protocol. A client's is libzmq's; a server reads the protocol itself
 * (bus_server.c says why). Sockets belong to one thread. Every receive checks frame count, size, protobuf syntax and version; what
 * fails is dropped, counted, and logged by name (a server answers with Failure where it knows whom to). Never blocks unless said.
 */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUS_VERSION 1

/* A client's connection to a server. Another connection never has the same. */
struct bus_address {
	uint64_t connection; /* 0: none */
	uint32_t uid, pid;
	bool known; /* uid and pid are the kernel's */
};

/* Whether both are one connection. */
bool bus_same(const struct bus_address *a, const struct bus_address *b);

/* Who opened the connection a message came by, as the kernel has it (SO_PEERCRED); false where it does not say. The process may
 * be gone by now. */
bool bus_peer(const struct bus_address *from, uint32_t *uid, uint32_t *pid);

/* A ZeroMQ context whose threads run already: libzmq aborts the process when it cannot start them, so whether there is memory
 * for them, and descriptors, is found out first. -ENOMEM, -EMFILE or -ENFILE with the reason. */
int bus_context(void **zmq, struct error *err);

struct bus_server;
enum bus_kind { BUS_CLIENTS, BUS_ADMINS };

/* Listens at an ipc:// endpoint: a live server on the path is -EADDRINUSE (probed by connecting), a stale file is replaced;
 * permissions 0600 before anyone can connect. Connections are accepted, and messages sent on, only within bus_receive_from.
 * Beyond the bounds of limits.h others wait to be accepted, which is logged once; while they do, connections that are idle
 * (for 2 s, or less where they have never sent a message) are closed. */
int bus_server(
	const char *endpoint, enum bus_kind kind, struct bus_server **out, struct error *err);
void bus_server_close(struct bus_server **server);
/* A descriptor that is readable while bus_receive_from has something to do, except what bus_pending knows of already. */
int bus_fd(const struct bus_server *server);
bool bus_pending(const struct bus_server *server);
/* gone is told, within bus_receive_from, that a connection which had sent a message has ended, whoever ended it. */
typedef void (*bus_gone)(void *arg, const struct bus_address *who);
void bus_on_gone(struct bus_server *server, bus_gone gone, void *arg);
/* Connects to another server's ipc:// endpoint, without waiting: the connection lies in the same table and its messages come by
 * bus_receive_from. `opened` is told, within bus_receive_from, when the other side has answered the handshake: nothing may be
 * sent before. Its end is told by `gone`. -ENOENT, -ECONNREFUSED: nobody listens; -EAGAIN: its backlog is full; -ENOSPC: as
 * many as may be (LIMIT_PEERS) are open. */
int bus_connect(struct bus_server *server, const char *endpoint, struct bus_address *to);
typedef void (*bus_opened)(void *arg, const struct bus_address *who);
void bus_on_opened(struct bus_server *server, bus_opened opened, void *arg);
/* A connection that the server is to keep, as it keeps those of bus_connect: it takes no place from others, and is never
 * closed to make room. False: it is gone, or LIMIT_PEERS are kept. */
bool bus_claim(struct bus_server *server, const struct bus_address *of);
/* Closes a connection; its end is not told. */
void bus_hang_up(struct bus_server *server, const struct bus_address *of);
/* keeps says of a connection whether it is to stay open, idle as it is, while others wait. */
typedef bool (*bus_keeps)(void *arg, const struct bus_address *who);
void bus_on_crowded(struct bus_server *server, bus_keeps keeps, void *arg);

/* DEALER that connects (and reconnects) to endpoint. */
int bus_client(void *zmq, const char *endpoint, void **out, struct error *err);
void bus_close(void **socket);

/* The path of an ipc:// endpoint, or NULL for another kind. */
const char *bus_ipc_path(const char *endpoint);
/* Whether somebody listens on a Unix socket of this type (SOCK_STREAM for ZeroMQ): 0 and its pid (0 when unknown), or
 * -ECONNREFUSED, -ENOENT, ... */
int bus_probe(const char *path, int type, int *pid);

/* Server: 0 with *envelope (free with bus_free), -EAGAIN when nothing is there, -EPROTO when something was dropped: in that
 * case *from is set and *err says why, so that the caller may answer. Of several connections each has its turn. */
int bus_receive_from(struct bus_server *server, struct bus_address *from,
	Outrider__Envelope **envelope, struct error *err);
/* The next message that this connection has sent already, out of turn: -EAGAIN when none has come whole. */
int bus_receive_one(struct bus_server *server, const struct bus_address *from,
	Outrider__Envelope **envelope, struct error *err);
/* Whether the client is there, and has taken all that was sent to it. */
bool bus_has_room(const struct bus_server *server, const struct bus_address *to);
/* Whether something may be sent to it: bus_send_to would not answer -EAGAIN. */
bool bus_takes(const struct bus_server *server, const struct bus_address *to);
/* -EAGAIN when LIMIT_UNREAD_BYTES wait to be read by the client, -EHOSTUNREACH when it is gone. Sets the version. */
int bus_send_to(
	struct bus_server *server, const struct bus_address *to, Outrider__Envelope *envelope);
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
