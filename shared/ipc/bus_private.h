/*
 * What bus_server.c (messages), bus_places.c (admission of connections) and bus_buffers.c (waiting
 * bytes) share. No other file includes it. All of it belongs to the thread that calls the server.
 */
#pragma once

#include "shared/ipc/bus.h"
#include "shared/ipc/zmtp.h"

#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/types.h>

enum {
	SCRATCH_BYTES = 64 << 10, /* read at once */
	/* bits of a connection's address that hold its slot; the bits above hold a serial number */
	SLOT_BITS = 16,
};

struct buffer {
	uint8_t *data;
	size_t begin, end, capacity; /* the bytes that wait are data[begin, end) */
};

struct connection {
	int fd; /* -1: closed */
	uint32_t slot; /* its index in the server's table */
	uint64_t address; /* never equal to that of another connection */
	struct ucred peer; /* the process that opened it */
	bool has_peer; /* the kernel filled in `peer` */
	struct zmtp zmtp;
	struct buffer in, out;
	/* when it last made progress: was accepted, opened, sent a message or took one */
	uint64_t active_ns;
	/* its end will be reported: a message of it was handed out, or bus_connect made it */
	bool known;
	/* it leads to another process of this service, and is never closed to make room */
	bool own;
	bool opener; /* made by bus_connect */
	bool ready; /* it is in the server's list `ready` */
	bool waits; /* for room in its socket */
	TAILQ_ENTRY(connection) link; /* in the list `ready` */
	struct connection *next; /* in the list of connections that have ended */
};

TAILQ_HEAD(connections, connection);

struct bus_server {
	char *path;
	enum bus_kind kind;
	uint32_t most; /* most connections from outside; the server's own are not counted */
	int listen_fd, epoll_fd, timer_fd;
	struct connection **slots; /* n_slots entries; NULL: free */
	uint32_t n_slots, next_slot;
	uint32_t n, n_own; /* connections from outside, and the server's own */
	uint64_t serial;
	size_t held; /* bytes that the buffers of all connections hold */
	struct connections ready; /* connections that may have a message */
	struct connection *ended; /* closed connections whose end is still to be reported */
	bool paused; /* no connection is accepted until one closes or until the next tick */
	bool ticks;
	/* when a client last had to wait for a place, which was logged; 0: no client waits */
	uint64_t crowded_ns;
	uint8_t *packed; /* the message that is being sent */
	size_t packed_bytes;
	bus_gone gone;
	bus_opened opened;
	bus_keeps keeps;
	void *gone_arg, *opened_arg, *keeps_arg;
	uint8_t scratch[SCRATCH_BYTES];
};

static inline size_t buffer_used(const struct buffer *buffer)
{
	return buffer->end - buffer->begin;
}

static inline bool connection_is_open(const struct connection *connection)
{
	return connection->zmtp.phase == ZMTP_AT_TRAFFIC;
}

/* True when the connection has begun a message and not finished it. */
static inline bool connection_in_message(const struct connection *connection)
{
	return connection_is_open(connection) &&
	       (buffer_used(&connection->in) > 0 || connection->zmtp.frames > 0);
}

struct bus_address connection_address(const struct connection *connection);

/* bus_buffers.c. Each of these functions may close a connection. Its fd is -1 then, and its memory
 * stays until bus_server.c has reported its end. */
void bus_drop(struct bus_server *server, struct connection *connection);
/* Like bus_drop, and logs the reason. */
void bus_cut_off(struct bus_server *server, struct connection *connection, const char *why);
/* Makes room for n more bytes at the buffer's end. If the server's bound is reached, it closes the
 * connections that hold most; false when this connection is among them. */
bool bus_grow(
	struct bus_server *server, struct connection *connection, struct buffer *buffer, size_t n);
/* Like bus_grow, and copies n bytes there. */
bool bus_append(struct bus_server *server, struct connection *connection, struct buffer *buffer,
	const uint8_t *data, size_t n);
/* Removes n bytes from the buffer's beginning. An empty buffer frees its memory. */
void bus_consume(struct bus_server *server, struct buffer *buffer, size_t n);
/* Sends n bytes, and keeps those that the socket does not take. -EAGAIN: too much is kept already,
 * so none of these were taken. -EHOSTUNREACH: the connection is closed. */
int bus_put(
	struct bus_server *server, struct connection *connection, const uint8_t *data, size_t n);
/* Call when its socket has room again: sends the bytes that wait. */
void bus_flush(struct bus_server *server, struct connection *connection);

/* bus_places.c */

/* Number of connections of all servers of this process. */
extern _Atomic uint32_t bus_connections;
int bus_start_accepting(struct bus_server *server);
/* Call when a client waits at the listening socket. */
void bus_accept(struct bus_server *server);
/* Adds a connected socket to the table. NULL: it was closed, and the log has the reason. */
struct connection *bus_add(struct bus_server *server, int fd);
/* Counts the connection as one of the server's own. False when there are too many. */
bool bus_own(struct bus_server *server, struct connection *connection);
/* Call when the timer has fired. */
void bus_tick(struct bus_server *server);
