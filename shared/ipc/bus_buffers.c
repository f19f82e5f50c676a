#include "shared/ipc/bus_private.h"

#include "shared/base/clock.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static_assert(LIMIT_HELD_BYTES >= 2 * (LIMIT_MESSAGE_BYTES + SCRATCH_BYTES) + LIMIT_UNREAD_BYTES,
	"what one connection may hold fits what all of them may");

enum { STEP_BYTES = 4096 }; /* a buffer's size is a multiple of this */

/* Bytes of this process's memory that the connection holds. */
static size_t held(const struct connection *connection)
{
	return connection->in.capacity + connection->out.capacity;
}

void bus_drop(struct bus_server *server, struct connection *connection)
{
	if (connection->fd < 0)
		return;
	if (connection->ready)
		TAILQ_REMOVE(&server->ready, connection, link);
	connection->ready = false;
	/* Closing alone would not do if a child process holds a copy of the descriptor: its events
	 * would still arrive, with a pointer to a connection that no longer exists. */
	(void)epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
	close(connection->fd);
	connection->fd = -1;
	server->held -= held(connection);
	free(connection->in.data);
	free(connection->out.data);
	connection->in = connection->out = (struct buffer){0};
	server->slots[connection->slot] = NULL;
	if (connection->own) {
		server->n_own--;
	} else {
		server->n--;
		atomic_fetch_sub(&bus_connections, 1);
	}
	connection->next = server->ended;
	server->ended = connection;
	if (server->paused)
		(void)bus_start_accepting(server);
}

void bus_cut_off(struct bus_server *server, struct connection *connection, const char *why)
{
	log_limited(LOG_LEVEL_INFO, "%s: the connection of process %d is closed: %s", server->path,
		connection->peer.pid, why);
	bus_drop(server, connection);
}

/* The connection that holds most; among equals, the one that made progress last. A connection that
 * sends or reads holds its share only for a moment. */
static struct connection *largest(const struct bus_server *server)
{
	struct connection *most = NULL;

	for (uint32_t i = 0; i < server->n_slots; i++) {
		struct connection *c = server->slots[i];

		if (!c || held(c) == 0)
			continue;
		if (!most || held(c) > held(most) ||
			(held(c) == held(most) && c->active_ns < most->active_ns))
			most = c;
	}
	return most;
}

/* Closes the connections that hold most until all connections together are within their bound.
 * False when `connection` was among them. */
static bool make_room(struct bus_server *server, struct connection *connection, size_t more)
{
	while (server->held + more > LIMIT_HELD_BYTES) {
		struct connection *most = largest(server);

		if (!most)
			return false;
		log_limited(LOG_LEVEL_NOTICE,
			"%s: process %d is disconnected: the unfinished messages and unread "
			"answers of all connections may have %d bytes, and of these it holds the "
			"most: %zu",
			server->path, most->peer.pid, LIMIT_HELD_BYTES, held(most));
		bus_drop(server, most);
		if (most == connection)
			return false;
	}
	return true;
}

bool bus_grow(
	struct bus_server *server, struct connection *connection, struct buffer *buffer, size_t n)
{
	size_t used = buffer_used(buffer), capacity = buffer->capacity;
	uint8_t *data;

	if (buffer->capacity - buffer->end >= n)
		return true;
	if (capacity - used < n) {
		capacity = (used + n + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
		if (!make_room(server, connection, capacity - buffer->capacity))
			return false;
	}
	if (used > 0 && buffer->begin > 0)
		memmove(buffer->data, buffer->data + buffer->begin, used);
	buffer->begin = 0;
	buffer->end = used;
	if (capacity == buffer->capacity)
		return true;
	data = realloc(buffer->data, capacity);
	if (!data) {
		bus_cut_off(server, connection, "there is no memory for its messages");
		return false;
	}
	server->held += capacity - buffer->capacity;
	buffer->data = data;
	buffer->capacity = capacity;
	return true;
}

void bus_consume(struct bus_server *server, struct buffer *buffer, size_t n)
{
	buffer->begin += n;
	if (buffer->begin < buffer->end)
		return;
	server->held -= buffer->capacity;
	free(buffer->data);
	*buffer = (struct buffer){0};
}

bool bus_append(struct bus_server *server, struct connection *connection, struct buffer *buffer,
	const uint8_t *data, size_t n)
{
	if (!bus_grow(server, connection, buffer, n))
		return false;
	memcpy(buffer->data + buffer->end, data, n);
	buffer->end += n;
	return true;
}

static void watch_writable(struct bus_server *server, struct connection *connection, bool on)
{
	struct epoll_event event = {
		.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = connection};

	if (connection->waits == on)
		return;
	if (epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) < 0)
		bus_cut_off(server, connection, strerror(errno));
	connection->waits = on;
}

/* Returns how many of the bytes the socket took, or -EPIPE when the other end is gone. */
static ssize_t write_some(const struct connection *connection, const uint8_t *data, size_t bytes)
{
	ssize_t n;

	do
		n = send(connection->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	/* The kernel may lack memory for a moment, just as the socket may lack room. */
	if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM))
		return 0;
	return n < 0 ? -EPIPE : n;
}

int bus_put(struct bus_server *server, struct connection *connection, const uint8_t *data, size_t n)
{
	ssize_t sent = 0;

	if (buffer_used(&connection->out) > LIMIT_UNREAD_BYTES)
		return -EAGAIN;
	if (buffer_used(&connection->out) == 0)
		sent = write_some(connection, data, n);
	if (sent < 0) {
		bus_drop(server, connection);
		return -EHOSTUNREACH;
	}
	connection->active_ns = clock_ns();
	if ((size_t)sent == n)
		return 0;
	if (!bus_append(server, connection, &connection->out, data + sent, n - (size_t)sent))
		return -EHOSTUNREACH;
	watch_writable(server, connection, true);
	return connection->fd < 0 ? -EHOSTUNREACH : 0;
}

void bus_flush(struct bus_server *server, struct connection *connection)
{
	struct buffer *out = &connection->out;
	ssize_t sent = write_some(connection, out->data + out->begin, buffer_used(out));

	if (sent < 0) {
		bus_drop(server, connection);
		return;
	}
	bus_consume(server, out, (size_t)sent);
	if (sent > 0)
		connection->active_ns = clock_ns();
	if (buffer_used(out) == 0)
		watch_writable(server, connection, false);
}
