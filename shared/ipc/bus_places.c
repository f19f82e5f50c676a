#include "shared/ipc/bus_private.h"
#include "shared/ipc/listener.h"

#include "shared/base/clock.h"
#include "shared/base/descriptors.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
/* Once a handshake has begun it takes a millisecond. */
#define HANDSHAKE_NS (10000 * MS)
/* How long a connection may be idle while others wait for its place: one that has never sent
 * anything, one that has begun its first message, and one that has sent messages. */
#define IDLE_SILENT_NS (100 * MS)
#define IDLE_MESSAGE_NS (500 * MS)
#define IDLE_ASKED_NS (2000 * MS)
#define TICK_NS (100 * MS)
#define OVER_NS (2000 * MS)

/* accepted at once, so that a burst of clients does not delay the clients that are connected */
enum { ACCEPTS = 64 };

static_assert(
	LIMIT_CLIENTS + LIMIT_PEERS < 1 << SLOT_BITS && LIMIT_ADMINS + LIMIT_PEERS < 1 << SLOT_BITS,
	"a connection's address holds its slot");

_Atomic uint32_t bus_connections;

static void tick_later(struct bus_server *server, bool on)
{
	const struct timespec every = {.tv_nsec = on ? TICK_NS : 0};
	const struct itimerspec spec = {.it_interval = every, .it_value = every};

	if (server->ticks != on && timerfd_settime(server->timer_fd, 0, &spec, NULL) == 0)
		server->ticks = on;
}

static void pause_accepting(struct bus_server *server)
{
	server->paused = epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, server->listen_fd, NULL) == 0;
	tick_later(server, true);
}

int bus_start_accepting(struct bus_server *server)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = &server->listen_fd};

	/* If the kernel has no memory for it now, the next tick tries again. */
	if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, server->listen_fd, &event) < 0)
		return -errno;
	server->paused = false;
	return 0;
}

struct connection *bus_add(struct bus_server *server, int fd)
{
	struct connection *connection = calloc(1, sizeof *connection);
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
	socklen_t n = sizeof connection->peer;

	if (!connection || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
		log_limited(LOG_LEVEL_NOTICE, "%s: a connection was refused: %s", server->path,
			strerror(errno));
		free(connection);
		close(fd);
		return NULL;
	}
	while (server->slots[server->next_slot])
		server->next_slot = (server->next_slot + 1) % server->n_slots;
	connection->fd = fd;
	connection->slot = server->next_slot;
	connection->address = ++server->serial << SLOT_BITS | connection->slot;
	connection->active_ns = clock_ns();
	connection->has_peer = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &connection->peer, &n) == 0;
	server->slots[connection->slot] = connection;
	server->n++;
	atomic_fetch_add(&bus_connections, 1);
	tick_later(server, true);
	(void)bus_put(server, connection, zmtp_greeting, sizeof zmtp_greeting);
	return connection->fd >= 0 ? connection : NULL;
}

bool bus_own(struct bus_server *server, struct connection *connection)
{
	if (connection->own)
		return true;
	if (server->n_own == LIMIT_PEERS)
		return false;
	connection->own = true;
	server->n_own++;
	server->n--;
	atomic_fetch_sub(&bus_connections, 1);
	return true;
}

static bool is_readable(int fd)
{
	struct pollfd item = {.fd = fd, .events = POLLIN};

	return poll(&item, 1, 0) > 0;
}

/* How long this connection may be idle while others wait. */
static uint64_t patience_ns(const struct connection *connection)
{
	if (connection->known)
		return IDLE_ASKED_NS;
	return connection_in_message(connection) ? IDLE_MESSAGE_NS : IDLE_SILENT_NS;
}

static bool yields(
	const struct bus_server *server, const struct connection *connection, uint64_t now_ns)
{
	const struct bus_address address = connection_address(connection);

	return !connection->own && now_ns - connection->active_ns > patience_ns(connection) &&
	       !(server->keeps && server->keeps(server->keeps_arg, &address));
}

/* True when a is to be closed before b: a connection that has never sent a message goes first, then
 * the one idle for longer. */
static bool is_before(const struct connection *a, const struct connection *b)
{
	return a->known != b->known ? !a->known : a->active_ns < b->active_ns;
}

/* Closes an idle connection for a client that waits. A connection that has sent something not read
 * yet is not idle. libzmq's clients reconnect automatically. */
static bool make_place(struct bus_server *server)
{
	uint64_t now_ns = clock_ns();
	struct connection *found = NULL;

	for (uint32_t i = 0; i < server->n_slots; i++) {
		struct connection *c = server->slots[i];

		if (c && yields(server, c, now_ns) && (!found || is_before(c, found)) &&
			!is_readable(c->fd))
			found = c;
	}
	if (found)
		bus_drop(server, found);
	return found != NULL;
}

/* Logs once that clients wait; not again until say_over. */
static void say_crowded(struct bus_server *server, int code)
{
	const char *is_or_are = server->n == 1 ? " is" : "s are";
	bool first = server->crowded_ns == 0;

	server->crowded_ns = clock_ns();
	if (!first)
		return;
	if (server->n == server->most)
		log_notice("%s: %u connection%s open, which is the limit: others wait until one "
			   "closes or is idle",
			server->path, server->n, is_or_are);
	else if (code == -EMFILE)
		log_notice(
			"%s: %u connection%s open, and the limit of %llu open files "
			"(LimitNOFILE, ulimit -n) leaves no room for more: others wait until one "
			"closes or is idle",
			server->path, server->n, is_or_are,
			(unsigned long long)descriptors_limit());
	else
		log_notice("%s: %u connection%s open, and the system has no room for more: others "
			   "wait until one closes or is idle",
			server->path, server->n, is_or_are);
}

/* Logs that no client has waited for some time. Without that pause, clients that come and go would
 * cause a log line each time. */
static void say_over(struct bus_server *server)
{
	if (server->crowded_ns == 0 || clock_ns() - server->crowded_ns < OVER_NS ||
		is_readable(server->listen_fd))
		return;
	log_notice("%s: there is room for connections again", server->path);
	server->crowded_ns = 0;
}

/* How many connections this server may have: its part of the descriptors that the connections of
 * this process hold or could hold. A crowd of clients thus leaves places for administrators, and
 * vice versa. */
static uint32_t places(const struct bus_server *server)
{
	uint64_t all = listener_free(server->listen_fd) + atomic_load(&bus_connections);
	uint64_t shared = all > LIMIT_RESERVE ? all - LIMIT_RESERVE : 0;
	uint64_t part = server->kind == BUS_CLIENTS ? shared - shared / 4 : shared / 4;

	return part < server->most ? (uint32_t)part : server->most;
}

void bus_accept(struct bus_server *server)
{
	for (int i = 0; i < ACCEPTS; i++) {
		int fd = server->n >= places(server)
				 ? -EMFILE
				 : listener_accept(server->listen_fd, LIMIT_RESERVE);

		if (fd >= 0) {
			(void)bus_add(server, fd);
			continue;
		}
		if (fd == -EAGAIN || !is_readable(server->listen_fd))
			return;
		say_crowded(server, fd);
		tick_later(server, true);
		if (!make_place(server)) {
			pause_accepting(server);
			return;
		}
	}
}

void bus_tick(struct bus_server *server)
{
	uint64_t times, now_ns = clock_ns();
	bool needed = false;

	if (read(server->timer_fd, &times, sizeof times) < 0)
		return;
	if (server->paused)
		(void)bus_start_accepting(server);
	for (uint32_t i = 0; i < server->n_slots; i++) {
		struct connection *c = server->slots[i];

		/* A process that this one has connected to may still be loading its model, and may
		 * take its time. */
		if (!c || c->own || connection_is_open(c))
			continue;
		needed = true;
		if (now_ns - c->active_ns > HANDSHAKE_NS && !is_readable(c->fd))
			bus_cut_off(server, c, "its handshake is not complete after 10 s");
	}
	say_over(server);
	if (!needed && !server->paused && server->crowded_ns == 0)
		tick_later(server, false);
}
