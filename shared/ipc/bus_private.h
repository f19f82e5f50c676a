/*
 * What bus_server.c (messages), bus_places.c (who may connect) and bus_buffers.c (bytes that wait) share. Nobody else
 * includes it.
 */
#pragma once

#include "shared/ipc/bus.h"
#include "shared/ipc/zmtp.h"

#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/types.h>

enum {
	SCRATCH_BYTES = 64 << 10, /* of one read */
	SLOT_BITS = 16, /* of a connection's address; above them is a serial number */
};

struct buffer {
	uint8_t *data;
	size_t begin, end, capacity; /* what waits is [begin, end) */
};

struct connection {
	int fd; /* -1: closed */
	uint32_t slot; /* its place in the server's table */
	uint64_t address; /* never that of another connection */
	struct ucred peer; /* who opened it */
	bool has_peer; /* and the kernel knows */
	struct zmtp zmtp;
	struct buffer in, out;
	uint64_t
		active_ns; /* when it got further last: was accepted, opened, sent a message or took one */
	bool known; /* its end is told: a message of it was handed out, or it was made by bus_connect */
	bool own; /* to another process of this service: not among those that make room for others */
	bool opener; /* made by bus_connect */
	bool ready; /* it is in the list of those that may have something */
	bool waits; /* for room in its socket */
	TAILQ_ENTRY(connection) link; /* of that list */
	struct connection *next; /* of those that have ended */
};

TAILQ_HEAD(connections, connection);

struct bus_server {
	char *path;
	enum bus_kind kind;
	uint32_t most; /* connections, those of its own aside */
	int listen_fd, epoll_fd, timer_fd;
	struct connection **slots; /* n_slots; NULL: free */
	uint32_t n_slots, next_slot;
	uint32_t n, n_own; /* connections that are not its own, and that are */
	uint64_t serial;
	size_t held; /* by the buffers of all connections */
	struct connections ready; /* may have a message */
	struct connection *ended; /* closed; their end is to be told */
	bool paused; /* nobody is accepted before a connection closes or the next tick */
	bool ticks;
	uint64_t
		crowded_ns; /* when somebody had to wait last, which was logged; 0: nobody has to */
	uint8_t *packed; /* the message that is sent */
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

/* Whether it has begun a message that it has not finished. */
static inline bool connection_in_message(const struct connection *connection)
{
	return connection_is_open(connection) &&
	       (buffer_used(&connection->in) > 0 || connection->zmtp.frames > 0);
}

struct bus_address connection_address(const struct connection *connection);

/* bus_buffers.c. A connection may be closed by any of these: its fd is -1 then, and its memory stays until bus_server.c has
 * told its end. */
void bus_drop(struct bus_server *server, struct connection *connection);
/* The same, and the log says why. */
void bus_cut_off(struct bus_server *server, struct connection *connection, const char *why);
/* Room for n more bytes at the buffer's end, at the cost of those who hold most; false when this connection is closed. */
bool bus_grow(
	struct bus_server *server, struct connection *connection, struct buffer *buffer, size_t n);
/* The same, with bytes to put there. */
bool bus_append(struct bus_server *server, struct connection *connection, struct buffer *buffer,
	const uint8_t *data, size_t n);
/* n bytes from its beginning are done with. Empty, it gives its memory back. */
void bus_consume(struct bus_server *server, struct buffer *buffer, size_t n);
/* Sends bytes, and keeps what the socket does not take. -EAGAIN: so much is kept already that these are not; -EHOSTUNREACH:
 * the connection is closed. */
int bus_put(
	struct bus_server *server, struct connection *connection, const uint8_t *data, size_t n);
/* There is room in its socket. */
void bus_flush(struct bus_server *server, struct connection *connection);

/* bus_places.c */

/* Connections of all servers of this process. */
extern _Atomic uint32_t bus_connections;
int bus_start_accepting(struct bus_server *server);
/* Somebody waits at the socket. */
void bus_accept(struct bus_server *server);
/* A socket that is connected; NULL: it was closed, and the log says why. */
struct connection *bus_add(struct bus_server *server, int fd);
/* Counts it as one of the server's own; false when there are too many. */
bool bus_own(struct bus_server *server, struct connection *connection);
/* The timer has rung. */
void bus_tick(struct bus_server *server);
