/*
 * The server's side of the bus. It does what a ROUTER socket of libzmq does, but without libzmq,
 * whose use of resources cannot be bounded. libzmq aborts the process when no descriptor is left
 * for another connection (ipc_listener.cpp, signaler.cpp). It keeps every frame of an unfinished
 * message, and a thousand whole messages of each connection. It limits neither the number of
 * connections nor their idle time. A relay in front of libzmq would have to read the same protocol,
 * would need twice the descriptors and copies, and would hide who connected. The protocol is small
 * (zmtp.h), so the server reads it itself. Clients use libzmq.
 *
 * One message of each connection is in memory at a time; further messages wait in its socket.
 * Connections that have a message take turns. Three bounds hold (limits.h): the number of
 * connections, the unread answers of one connection, and the bytes of all connections together. No
 * function here waits.
 */
#include "shared/ipc/bus_private.h"
#include "shared/ipc/listener.h"

#include "shared/base/clock.h"
#include "shared/base/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	EVENTS = 256, /* of one epoll_wait */
	STEPS = 64, /* reads without a message in one call of bus_receive_from */
	GROWTH_BYTES = 16 << 10, /* the least by which a long message's buffer grows */
};

bool bus_same(const struct bus_address *a, const struct bus_address *b)
{
	return a->connection != 0 && a->connection == b->connection;
}

bool bus_peer(const struct bus_address *from, uint32_t *uid, uint32_t *pid)
{
	*uid = from->uid;
	*pid = from->pid;
	return from->known;
}

struct bus_address connection_address(const struct connection *connection)
{
	return (struct bus_address){
		.connection = connection->address,
		.known = connection->has_peer,
		.uid = connection->peer.uid,
		.pid = (uint32_t)connection->peer.pid,
	};
}

static struct connection *find(const struct bus_server *server, const struct bus_address *to)
{
	uint32_t slot = to->connection & ((1u << SLOT_BITS) - 1);
	struct connection *connection = slot < server->n_slots ? server->slots[slot] : NULL;

	return connection && connection->address == to->connection ? connection : NULL;
}

static void make_ready(struct bus_server *server, struct connection *connection)
{
	if (connection->ready || connection->fd < 0)
		return;
	connection->ready = true;
	TAILQ_INSERT_TAIL(&server->ready, connection, link);
}

/* Collects what has happened at the sockets since the last call. */
static void look(struct bus_server *server)
{
	struct epoll_event events[EVENTS];
	int n = epoll_wait(server->epoll_fd, events, EVENTS, 0);
	bool accepts = false, ticks = false;

	for (int i = 0; i < n; i++) {
		struct connection *connection = events[i].data.ptr;

		if (events[i].data.ptr == &server->listen_fd) {
			accepts = true;
		} else if (events[i].data.ptr == &server->timer_fd) {
			ticks = true;
		} else if (connection->fd >= 0) {
			if (events[i].events & EPOLLOUT)
				bus_flush(server, connection);
			if (events[i].events & ~(uint32_t)EPOLLOUT)
				make_ready(server, connection);
		}
	}
	/* After the events of present connections: one that has sent something does not count as
	 * idle. */
	if (ticks)
		bus_tick(server);
	if (accepts)
		bus_accept(server);
}

/* Decodes a connection's message for the owner: 0, or -EPROTO with the reason. */
static int hand_out(struct connection *connection, const struct zmtp_event *event,
	Outrider__Envelope **envelope, struct error *err)
{
	connection->known = true;
	connection->active_ns = clock_ns();
	if (event->frames != 1)
		return error_set(err, EPROTO, "message of %llu frames, expected 1",
			(unsigned long long)event->frames);
	/* A message that is too large has no data, and is refused before its bytes are looked at.
	 */
	return bus_decode(event->data, (size_t)event->bytes, envelope, err);
}

static void tell_opened(struct bus_server *server, const struct connection *connection)
{
	const struct bus_address address = connection_address(connection);

	if (connection->opener && server->opened)
		server->opened(server->opened_arg, &address);
}

/* Parses bytes of a connection up to the end of one message. Returns what hand_out returns, or
 * -EAGAIN: no message is complete, and *want contiguous bytes are needed for the next. *used bytes
 * were consumed. The connection may be closed. */
static int take(struct bus_server *server, struct connection *connection, const uint8_t *data,
	size_t bytes, size_t *used, size_t *want, Outrider__Envelope **envelope, struct error *err)
{
	uint8_t pong[ZMTP_HEADER_BYTES + 5 + ZMTP_PING_BYTES];
	struct zmtp_event event;
	size_t n;

	for (*used = 0; connection->fd >= 0; *used += n) {
		switch (zmtp_step(&connection->zmtp, data + *used, bytes - *used, &n, &event)) {
		case ZMTP_MORE:
			*used += n;
			*want = event.want;
			return -EAGAIN;
		case ZMTP_GREETED:
			(void)bus_put(server, connection, zmtp_ready, zmtp_ready_bytes);
			break;
		case ZMTP_OPEN:
			connection->active_ns = clock_ns();
			tell_opened(server, connection);
			break;
		case ZMTP_PING:
			(void)bus_put(server, connection, pong,
				zmtp_pong(pong, event.data, (size_t)event.bytes));
			break;
		case ZMTP_MESSAGE:
			*used += n;
			return hand_out(connection, &event, envelope, err);
		case ZMTP_BROKEN:
			bus_cut_off(server, connection, event.why);
			break;
		}
	}
	return -EAGAIN;
}

/* Reads at most `bytes` bytes. Returns their number, 0 when there are none, -EPIPE at the end. */
static ssize_t read_bytes(const struct connection *connection, uint8_t *data, size_t bytes)
{
	ssize_t n;

	do
		n = recv(connection->fd, data, bytes, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	return n <= 0 ? -EPIPE : n;
}

/* Reads once and parses the bytes. */
static int read_some(struct bus_server *server, struct connection *connection, size_t want,
	Outrider__Envelope **envelope, struct error *err)
{
	struct buffer *in = &connection->in;
	size_t used = 0, waits = buffer_used(in), room = sizeof server->scratch;
	uint8_t *data = server->scratch;
	ssize_t n;
	int code;

	/* The buffer of an unfinished message grows with the bytes that arrive: the length that it
	 * announces costs nothing. */
	if (waits > 0) {
		room = waits < GROWTH_BYTES ? GROWTH_BYTES : waits;
		if (room > want - waits)
			room = want - waits;
		if (!bus_grow(server, connection, in, room))
			return -EAGAIN;
		data = in->data + in->end;
	}
	n = read_bytes(connection, data, room);
	if (n < 0)
		bus_drop(server, connection);
	if (n <= 0)
		return -EAGAIN;
	if (waits > 0) {
		in->end += (size_t)n;
		code = take(server, connection, in->data + in->begin, buffer_used(in), &used, &want,
			envelope, err);
		if (connection->fd >= 0)
			bus_consume(server, in, used);
		return code;
	}
	code = take(server, connection, data, (size_t)n, &used, &want, envelope, err);
	if (connection->fd >= 0 && used < (size_t)n)
		(void)bus_append(server, connection, in, data + used, (size_t)n - used);
	return code;
}

/* Takes the next message of a connection that may have one. */
static int serve(struct bus_server *server, struct connection *connection,
	Outrider__Envelope **envelope, struct error *err)
{
	struct buffer *in = &connection->in;
	size_t used = 0, want = 1;
	int code = -EAGAIN;

	if (buffer_used(in) > 0) {
		code = take(server, connection, in->data + in->begin, buffer_used(in), &used, &want,
			envelope, err);
		if (connection->fd >= 0)
			bus_consume(server, in, used);
	}
	if (code == -EAGAIN && connection->fd >= 0)
		code = read_some(server, connection, want, envelope, err);
	/* Its buffer may hold more, but the other connections come first. */
	if (code != -EAGAIN && connection->fd >= 0 && buffer_used(in) > 0)
		make_ready(server, connection);
	return code;
}

static void tell_ends(struct bus_server *server)
{
	struct connection *connection;

	while ((connection = server->ended)) {
		const struct bus_address address = connection_address(connection);
		bool tell = connection->known && server->gone;

		server->ended = connection->next;
		free(connection);
		if (tell)
			server->gone(server->gone_arg, &address);
	}
}

int bus_receive_from(struct bus_server *server, struct bus_address *from,
	Outrider__Envelope **envelope, struct error *err)
{
	*envelope = NULL;
	*from = (struct bus_address){0};
	tell_ends(server);
	/* Each time, so that a connection that sends without end does not hide the others. */
	look(server);
	for (int i = 0; i < STEPS && !TAILQ_EMPTY(&server->ready); i++) {
		struct connection *connection = TAILQ_FIRST(&server->ready);
		int code;

		TAILQ_REMOVE(&server->ready, connection, link);
		connection->ready = false;
		code = serve(server, connection, envelope, err);
		if (code == -EAGAIN)
			continue;
		*from = connection_address(connection);
		return code;
	}
	return -EAGAIN;
}

int bus_receive_one(struct bus_server *server, const struct bus_address *from,
	Outrider__Envelope **envelope, struct error *err)
{
	struct connection *connection = find(server, from);

	*envelope = NULL;
	return connection ? serve(server, connection, envelope, err) : -EHOSTUNREACH;
}

/* Packs a message, with its header, into server->packed at *from, *n bytes. */
static int pack(struct bus_server *server, Outrider__Envelope *envelope, size_t *from, size_t *n)
{
	uint8_t header[ZMTP_HEADER_BYTES];
	size_t bytes, n_header;

	envelope->version = BUS_VERSION;
	bytes = outrider__envelope__get_packed_size(envelope);
	if (bytes > LIMIT_MESSAGE_BYTES)
		return -EMSGSIZE;
	if (ZMTP_HEADER_BYTES + bytes > server->packed_bytes) {
		uint8_t *larger = realloc(server->packed, ZMTP_HEADER_BYTES + bytes);

		if (!larger)
			return -ENOMEM;
		server->packed = larger;
		server->packed_bytes = ZMTP_HEADER_BYTES + bytes;
	}
	outrider__envelope__pack(envelope, server->packed + ZMTP_HEADER_BYTES);
	n_header = zmtp_header(header, bytes);
	*from = ZMTP_HEADER_BYTES - n_header;
	*n = n_header + bytes;
	memcpy(server->packed + *from, header, n_header);
	return 0;
}

bool bus_has_room(const struct bus_server *server, const struct bus_address *to)
{
	const struct connection *connection = find(server, to);

	return connection && buffer_used(&connection->out) == 0;
}

bool bus_takes(const struct bus_server *server, const struct bus_address *to)
{
	const struct connection *connection = find(server, to);

	return !connection || buffer_used(&connection->out) <= LIMIT_UNREAD_BYTES;
}

int bus_send_to(
	struct bus_server *server, const struct bus_address *to, Outrider__Envelope *envelope)
{
	struct connection *connection = find(server, to);
	size_t from, n;
	int code;

	if (!connection)
		return -EHOSTUNREACH;
	code = pack(server, envelope, &from, &n);
	if (code == 0)
		code = bus_put(server, connection, server->packed + from, n);
	/* Long messages are rare, so the memory for one is not kept. */
	if (server->packed_bytes > SCRATCH_BYTES) {
		free(server->packed);
		server->packed = NULL;
		server->packed_bytes = 0;
	}
	return code;
}

int bus_connect(struct bus_server *server, const char *endpoint, struct bus_address *to)
{
	const char *path = bus_ipc_path(endpoint);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct connection *connection;
	int fd, code;

	*to = (struct bus_address){0};
	if (!path || strlen(path) >= sizeof address.sun_path)
		return -EINVAL;
	if (server->n_own == LIMIT_PEERS)
		return -ENOSPC;
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* A Unix socket connects at once or not at all; -EAGAIN when the backlog is full. */
	if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
		code = -errno;
		close(fd);
		return code;
	}
	connection = bus_add(server, fd);
	if (!connection)
		return -ECONNRESET;
	(void)bus_own(server, connection);
	connection->opener = connection->known = true;
	*to = connection_address(connection);
	return 0;
}

bool bus_claim(struct bus_server *server, const struct bus_address *of)
{
	struct connection *connection = find(server, of);

	return connection && bus_own(server, connection);
}

void bus_hang_up(struct bus_server *server, const struct bus_address *of)
{
	struct connection *connection = find(server, of);

	if (!connection)
		return;
	connection->known = false;
	bus_drop(server, connection);
}

static int open_all(struct bus_server *server, const char *path, struct error *err)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = &server->timer_fd};
	int code;

	server->path = strdup(path);
	server->n_slots = server->most + LIMIT_PEERS;
	server->slots = calloc(server->n_slots, sizeof(struct connection *));
	if (!server->path || !server->slots)
		return error_set(err, ENOMEM, "%s: no memory for its connections", path);
	server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	server->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (server->epoll_fd < 0 || server->timer_fd < 0 ||
		epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, server->timer_fd, &event) < 0)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	code = listener_open(path, SOCK_STREAM, SOMAXCONN, &server->listen_fd, err);
	if (code == 0 && bus_start_accepting(server) < 0)
		code = error_set(err, errno, "%s: %s", path, strerror(errno));
	return code;
}

int bus_server(const char *endpoint, enum bus_kind kind, struct bus_server **out, struct error *err)
{
	const char *path = bus_ipc_path(endpoint);
	struct bus_server *server;
	int code;

	*out = NULL;
	if (!path)
		return error_set(err, EINVAL, "%s: only ipc:// is served", endpoint);
	server = calloc(1, sizeof *server);
	if (!server)
		return error_set(err, ENOMEM, "%s: no memory for %zu bytes", path, sizeof *server);
	server->kind = kind;
	server->most = kind == BUS_CLIENTS ? LIMIT_CLIENTS : LIMIT_ADMINS;
	server->listen_fd = server->epoll_fd = server->timer_fd = -1;
	TAILQ_INIT(&server->ready);
	code = open_all(server, path, err);
	if (code < 0)
		bus_server_close(&server);
	*out = server;
	return code;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void bus_server_close(struct bus_server **server)
{
	struct bus_server *s = *server;

	if (!s)
		return;
	/* Unlinked before it is closed: while it listens no successor replaces the file, so it is
	 * still ours. */
	if (s->listen_fd >= 0)
		unlink(s->path);
	s->gone = NULL;
	s->paused = false;
	for (uint32_t i = 0; s->slots && i < s->n_slots; i++)
		if (s->slots[i])
			bus_drop(s, s->slots[i]);
	tell_ends(s);
	close_fd(s->listen_fd);
	close_fd(s->timer_fd);
	close_fd(s->epoll_fd);
	free(s->slots);
	free(s->path);
	free(s->packed);
	free(s);
	*server = NULL;
}

int bus_fd(const struct bus_server *server)
{
	return server->epoll_fd;
}

bool bus_pending(const struct bus_server *server)
{
	return !TAILQ_EMPTY(&server->ready) || server->ended;
}

void bus_on_gone(struct bus_server *server, bus_gone gone, void *arg)
{
	server->gone = gone;
	server->gone_arg = arg;
}

void bus_on_opened(struct bus_server *server, bus_opened opened, void *arg)
{
	server->opened = opened;
	server->opened_arg = arg;
}

void bus_on_crowded(struct bus_server *server, bus_keeps keeps, void *arg)
{
	server->keeps = keeps;
	server->keeps_arg = arg;
}
