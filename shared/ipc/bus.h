/*
 * Sockets that carry protobuf envelopes over ZeroMQ's protocol (ZMTP). A client's socket is
 * libzmq's; a server reads the protocol itself (bus_server.c explains why). A socket belongs to one
 * thread. Every receive checks the number of frames, the size, the protobuf syntax and the version.
 * A message that fails a check is dropped, counted and logged by name; a server answers with a
 * Failure where it knows the sender. No function blocks unless its comment says so.
 */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUS_VERSION 1

/* One connection of a server. No two connections ever have the same address. */
struct bus_address {
	uint64_t connection; /* 0: no connection */
	uint32_t uid, pid;
	bool known; /* uid and pid come from the kernel */
};

/* True when both are the same connection. */
bool bus_same(const struct bus_address *a, const struct bus_address *b);

/* The user and the process that opened the connection, from the kernel (SO_PEERCRED). False when
 * the kernel does not tell. The process may have ended since. */
bool bus_peer(const struct bus_address *from, uint32_t *uid, uint32_t *pid);

/* Makes a ZeroMQ context whose threads run already. libzmq aborts the process when it cannot start
 * them, so this first tests that there is memory and that there are descriptors for them. -ENOMEM,
 * -EMFILE or -ENFILE with the reason. */
int bus_context(void **zmq, struct error *err);

struct bus_server;
enum bus_kind { BUS_CLIENTS, BUS_ADMINS };

/* Opens a server at an ipc:// endpoint. A live server on the path (found by connecting) gives
 * -EADDRINUSE; a stale socket file is replaced. The permissions are 0600 before anyone can connect.
 * The server accepts connections and continues unfinished sends only within bus_receive_from. When
 * the bounds of limits.h are reached, further clients wait to be accepted, which is logged once.
 * While clients wait, idle connections are closed: after 2 s, sooner if they have never sent a
 * message. */
int bus_server(
	const char *endpoint, enum bus_kind kind, struct bus_server **out, struct error *err);
void bus_server_close(struct bus_server **server);
/* bus_fd: a descriptor that is readable while bus_receive_from has work, except for messages that
 * bus_pending reports. */
int bus_fd(const struct bus_server *server);
bool bus_pending(const struct bus_server *server);
/* `gone` is called within bus_receive_from when a connection that had sent a message has ended,
 * whichever side ended it. */
typedef void (*bus_gone)(void *arg, const struct bus_address *who);
void bus_on_gone(struct bus_server *server, bus_gone gone, void *arg);
/* Connects to another server's ipc:// endpoint without waiting. The connection joins this server's
 * table, and its messages come through bus_receive_from. `opened` is called within bus_receive_from
 * when the other side has completed the handshake; send nothing before. `gone` is called when the
 * connection ends. -ENOENT, -ECONNREFUSED: nobody listens. -EAGAIN: the other's backlog is full.
 * -ENOSPC: LIMIT_PEERS such connections are open. */
int bus_connect(struct bus_server *server, const char *endpoint, struct bus_address *to);
typedef void (*bus_opened)(void *arg, const struct bus_address *who);
void bus_on_opened(struct bus_server *server, bus_opened opened, void *arg);
/* Makes the server keep a connection as it keeps those of bus_connect: it does not count among the
 * clients' connections, and is never closed to make room. False: the connection is gone, or
 * LIMIT_PEERS connections are kept already. */
bool bus_claim(struct bus_server *server, const struct bus_address *of);
/* Closes a connection, without a call of `gone`. */
void bus_hang_up(struct bus_server *server, const struct bus_address *of);
/* `keeps` is asked, while others wait for a place, whether an idle connection must stay open. */
typedef bool (*bus_keeps)(void *arg, const struct bus_address *who);
void bus_on_crowded(struct bus_server *server, bus_keeps keeps, void *arg);

/* A DEALER socket that connects, and reconnects, to the endpoint. */
int bus_client(void *zmq, const char *endpoint, void **out, struct error *err);
void bus_close(void **socket);

/* The path of an ipc:// endpoint; NULL for any other kind. */
const char *bus_ipc_path(const char *endpoint);
/* Tests whether somebody listens on the Unix socket at `path`. type: SOCK_STREAM for ZeroMQ.
 * Returns 0 with the listener's pid (0: unknown), or -ECONNREFUSED, -ENOENT, ... */
int bus_probe(const char *path, int type, int *pid);

/* Server: takes the next message; connections take turns. 0: *envelope is the message (free it with
 * bus_free). -EAGAIN: there is none. -EPROTO: a message was dropped; *from is set and *err has the
 * reason, so that the caller can answer. */
int bus_receive_from(struct bus_server *server, struct bus_address *from,
	Outrider__Envelope **envelope, struct error *err);
/* Takes, out of turn, the next message that this connection has already sent. -EAGAIN: no whole
 * message is there. */
int bus_receive_one(struct bus_server *server, const struct bus_address *from,
	Outrider__Envelope **envelope, struct error *err);
/* True when the client is connected and has read everything that was sent to it. */
bool bus_has_room(const struct bus_server *server, const struct bus_address *to);
/* True when a message may be sent to it: bus_send_to would not return -EAGAIN. */
bool bus_takes(const struct bus_server *server, const struct bus_address *to);
/* Sends a message and sets its version. -EAGAIN: the client has left LIMIT_UNREAD_BYTES unread.
 * -EHOSTUNREACH: it is gone. */
int bus_send_to(
	struct bus_server *server, const struct bus_address *to, Outrider__Envelope *envelope);
/* Client: receives a message. timeout_ms -1 waits without limit, 0 polls. -EAGAIN: none came in
 * that time. */
int bus_receive(void *socket, int timeout_ms, Outrider__Envelope **envelope, struct error *err);
/* Client: sends a message and sets its version. Never waits. -EAGAIN: the queue of 1000 messages,
 * which also fills while unconnected, is full. */
int bus_send(void *socket, Outrider__Envelope *envelope);
/* Decodes the bytes of one message and checks size, syntax and version, as every receive does.
 * -EPROTO with the reason. */
int bus_decode(const void *data, size_t bytes, Outrider__Envelope **envelope, struct error *err);
void bus_free(Outrider__Envelope **envelope);

/* `tell` is called once, when an answer has been waited for longer than after_ns. */
struct bus_late {
	uint64_t after_ns;
	void (*tell)(void *arg);
	void *arg;
};

/* Sends one request to an ipc:// endpoint and waits for its reply, for at most timeout_ms (below 0
 * counts as 0). Only time in which this process ran counts (patience.h). The admin commands use
 * this. late: may be NULL. -ETIMEDOUT or -ECONNREFUSED when nobody answers. A Failure reply becomes
 * -EREMOTEIO with the text of the failure. */
int bus_call(void *zmq, const char *endpoint, Outrider__Envelope *request, int timeout_ms,
	const struct bus_late *late, Outrider__Envelope **reply, struct error *err);
