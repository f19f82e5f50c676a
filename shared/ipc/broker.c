#include "shared/ipc/broker.h"

#include "shared/base/descriptors.h"
#include "shared/base/lock_file.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon_private.h"
#include "shared/ipc/hello.h"
#include "shared/ipc/link.h"
#include "shared/ipc/listener.h"
#include "shared/ipc/peers.h"
#include "shared/ipc/registry.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPT_NS 100000000u /* pause before it looks again for a free descriptor */

enum { KEPT_MAX = 16 };

struct connection {
	struct broker *broker;
	int fd; /* -1: unused entry */
	bool joined;
	uint64_t serial, generation;
	uint32_t pid; /* from the kernel; 0: the kernel does not tell */
	char name[LIMIT_NAME];
};

struct named_fd {
	char name[LIMIT_NAME];
	int fd;
};

struct offer {
	char name[LIMIT_NAME];
	int fd; /* borrowed; given to peers that write */
	int read_fd; /* our own, O_RDONLY; -1: it could not be opened, and every peer gets fd */
};

struct broker {
	struct daemon *daemon;
	struct broker_events events;
	int listen_fd, lock_fd;
	int timer; /* 0: none */
	bool crowded; /* a peer waits because no descriptor is free, which was logged */
	bool closes; /* this process is leaving */
	bool activated; /* the socket is the service manager's, and not ours to unlink */
	char path[128];
	uint64_t serial;
	struct connection connections[LIMIT_PEERS];
	struct offer offered[LIMIT_REGIONS];
	size_t n_offered;
	struct named_fd kept[KEPT_MAX];
	size_t n_kept;
};

static void drop(struct connection *connection)
{
	struct broker *broker = connection->broker;
	bool joined = connection->joined;

	if (connection->fd < 0)
		return;
	daemon_remove_fd(broker->daemon, connection->fd);
	close(connection->fd);
	connection->fd = -1;
	connection->joined = false;
	if (joined) {
		log_info("%s left", connection->name);
		registry_part(
			broker->daemon, connection->name, connection->generation, broker->closes);
		if (broker->events.left)
			broker->events.left(broker->events.arg, connection->name);
	}
}

static void refuse(struct connection *connection, const char *reason)
{
	struct hello_answer answer;

	log_limited(LOG_LEVEL_NOTICE, "a hello was refused: %s", reason);
	hello_answer_init(&answer, HELLO_REFUSED, daemon_name(connection->broker->daemon),
		daemon_generation(connection->broker->daemon));
	snprintf(answer.reason, sizeof answer.reason, "%s", reason);
	(void)hello_send(connection->fd, &answer, sizeof answer, NULL, 0);
	drop(connection);
}

static int send_regions(struct connection *connection, const struct named_fd *regions, size_t n)
{
	struct hello_answer answer;
	int fds[LIMIT_REGIONS];

	hello_answer_init(&answer, HELLO_REGIONS, daemon_name(connection->broker->daemon),
		daemon_generation(connection->broker->daemon));
	answer.n = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		memcpy(answer.regions[i], regions[i].name, LIMIT_NAME);
		fds[i] = regions[i].fd;
	}
	return hello_send(connection->fd, &answer, sizeof answer, fds, n);
}

static int reading_fd(const struct offer *offer)
{
	return offer->read_fd >= 0 ? offer->read_fd : offer->fd;
}

static void give_offered(struct connection *connection)
{
	struct broker *broker = connection->broker;
	struct named_fd regions[LIMIT_REGIONS];
	int code;

	for (size_t i = 0; i < broker->n_offered; i++) {
		const struct offer *offer = &broker->offered[i];

		memcpy(regions[i].name, offer->name, LIMIT_NAME);
		regions[i].fd = peers_region_writer(offer->name, connection->name)
					? offer->fd
					: reading_fd(offer);
	}
	code = send_regions(connection, regions, broker->n_offered);
	/* A peer that does not read its packets is disconnected; when it comes back it gets the
	 * whole set. */
	if (code < 0) {
		log_notice("%s: cannot hand over regions: %s", connection->name, strerror(-code));
		drop(connection);
	}
}

static struct named_fd *find_named(struct named_fd *list, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(list[i].name, name) == 0)
			return &list[i];
	return NULL;
}

static void give_all(struct broker *broker)
{
	for (size_t i = 0; i < LIMIT_PEERS; i++)
		if (broker->connections[i].fd >= 0 && broker->connections[i].joined)
			give_offered(&broker->connections[i]);
}

static struct offer *find_offer(struct broker *broker, const char *name)
{
	for (size_t i = 0; i < broker->n_offered; i++)
		if (strcmp(broker->offered[i].name, name) == 0)
			return &broker->offered[i];
	return NULL;
}

static void show_offered(struct connection *connection, const char *name)
{
	const struct offer *found = find_offer(connection->broker, name);
	struct named_fd region = {.fd = -1};
	int code;

	if (found) {
		memcpy(region.name, found->name, LIMIT_NAME);
		region.fd = reading_fd(found);
	}
	code = send_regions(connection, &region, found ? 1 : 0);
	if (code < 0)
		drop(connection);
}

static void forget(struct broker *broker, struct named_fd *kept)
{
	log_info("region %s is no longer kept for its owner", kept->name);
	close(kept->fd);
	*kept = broker->kept[--broker->n_kept];
}

/* Gives a kept region back to its owner's successor, or drops it. */
static void serve_owner(struct connection *connection, const struct hello *hello)
{
	struct broker *broker = connection->broker;
	const char *owner = peers_region_owner(hello->region);
	struct named_fd *kept;
	int code;

	if (!owner || strcmp(owner, hello->name) != 0) {
		char reason[160];

		snprintf(reason, sizeof reason, "region \"%s\" is not %s's", hello->region,
			hello->name);
		refuse(connection, reason);
		return;
	}
	kept = find_named(broker->kept, broker->n_kept, hello->region);
	if (kept && hello->kind == HELLO_RECOVER) {
		log_info("%s: its successor gets region %s back", hello->name, hello->region);
		code = send_regions(connection, kept, 1);
	} else {
		if (kept)
			forget(broker, kept);
		code = send_regions(connection, NULL, 0);
	}
	if (code < 0)
		drop(connection);
}

static void join(struct connection *connection, const struct hello *hello)
{
	struct broker *broker = connection->broker;
	struct error err = {""};

	if (registry_join(broker->daemon, hello->name, connection->pid, hello->generation, &err) <
		0) {
		refuse(connection, err.text);
		return;
	}
	/* The lock file allows one process of a name, so an older connection belongs to a dead
	 * process whose end we have not seen yet. */
	for (size_t i = 0; i < LIMIT_PEERS; i++) {
		struct connection *other = &broker->connections[i];

		if (other != connection && other->fd >= 0 && other->joined &&
			strcmp(other->name, hello->name) == 0)
			drop(other);
	}
	memcpy(connection->name, hello->name, sizeof connection->name);
	connection->joined = true;
	connection->generation = hello->generation;
	log_info("%s joined: process %d, generation %llu", hello->name, hello->pid,
		(unsigned long long)hello->generation);
	if (broker->events.joined)
		broker->events.joined(
			broker->events.arg, hello->name, hello->pid, hello->generation);
	if (connection->joined)
		give_offered(connection);
}

static void handle_hello(struct connection *connection, const struct hello *hello)
{
	const char *self = daemon_name(connection->broker->daemon);
	char reason[160];

	if (!peers_known(hello->name)) {
		snprintf(reason, sizeof reason, "\"%s\" is not a process of this service",
			hello->name);
		refuse(connection, reason);
	} else if (hello->kind == HELLO_RECOVER || hello->kind == HELLO_FORGET) {
		serve_owner(connection, hello);
	} else if (hello->kind == HELLO_AGAIN) {
		refuse(connection, "who asks for regions again has not joined");
	} else if (!peers_may_connect(hello->name, self)) {
		snprintf(reason, sizeof reason, "%s may not connect to %s", hello->name, self);
		refuse(connection, reason);
	} else if (hello->kind == HELLO_LOOK) {
		show_offered(connection, hello->region);
	} else {
		join(connection, hello);
	}
}

static void handle_connection(void *arg)
{
	struct connection *connection = arg;
	struct hello hello;
	struct error err = {""};
	int code = hello_receive(connection->fd, &hello, &err);

	if (code == -EAGAIN)
		return;
	if (code == -EPROTO)
		refuse(connection, err.text);
	else if (code < 0)
		drop(connection);
	else if (connection->joined && hello.kind == HELLO_AGAIN)
		give_offered(connection);
	else if (connection->joined)
		refuse(connection, "a second hello on one connection");
	else
		handle_hello(connection, &hello);
}

/* An entry for a new connection: an unused one, or else that of the oldest connection that has not
 * said hello. */
static struct connection *place(struct broker *broker)
{
	struct connection *oldest = NULL;

	for (size_t i = 0; i < LIMIT_PEERS; i++) {
		struct connection *connection = &broker->connections[i];

		if (connection->fd < 0)
			return connection;
		if (!connection->joined && (!oldest || connection->serial < oldest->serial))
			oldest = connection;
	}
	if (oldest)
		drop(oldest);
	return oldest;
}

static void accept_again(void *arg)
{
	struct broker *broker = arg;

	daemon_remove_timer(broker->daemon, broker->timer);
	broker->timer = 0;
	daemon_set_events(broker->daemon, broker->listen_fd, POLLIN);
}

/* No descriptor is left for another peer. The socket stays readable, so looking again at once would
 * never end. */
static void accept_later(struct broker *broker)
{
	if (!broker->crowded)
		log_notice("%s: the limit of %llu open files (LimitNOFILE, ulimit -n) leaves no "
			   "room for another connection: it waits",
			broker->path, (unsigned long long)descriptors_limit());
	broker->crowded = true;
	broker->timer = daemon_add_timer(broker->daemon, ACCEPT_NS, accept_again, broker);
	if (broker->timer > 0)
		daemon_set_events(broker->daemon, broker->listen_fd, 0);
}

static void handle_accept(void *arg)
{
	struct broker *broker = arg;
	struct connection *connection;
	struct error err = {""};
	int fd = listener_accept(broker->listen_fd, LIMIT_RESERVE_PEERS);

	if (fd == -EMFILE || fd == -ENFILE)
		accept_later(broker);
	if (fd < 0)
		return;
	broker->crowded = false;
	if (hello_check_user(fd, &err) < 0) {
		log_limited(LOG_LEVEL_NOTICE, "a hello was refused: %s", err.text);
		close(fd);
		return;
	}
	connection = place(broker);
	if (!connection ||
		daemon_add_fd(broker->daemon, fd, POLLIN, handle_connection, connection) < 0) {
		log_limited(LOG_LEVEL_NOTICE, "a connection was refused: %d peers are connected",
			LIMIT_PEERS);
		close(fd);
		return;
	}
	connection->fd = fd;
	connection->joined = false;
	connection->pid = hello_pid(fd);
	connection->serial = ++broker->serial;
}

int broker_claim(struct daemon *daemon, struct error *err)
{
	char path[300], pid[24] = "unknown";
	pid_t holder;

	if (daemon->lock_fd >= 0)
		return 0;
	peers_lock_path(daemon->runtime_dir, daemon->name, path, sizeof path);
	int code = lock_file_take(path, &daemon->lock_fd, &holder, err);
	if (code != -EWOULDBLOCK)
		return code;
	if (holder > 0)
		snprintf(pid, sizeof pid, "%ld", (long)holder);
	return error_set(err, EADDRINUSE, "%s already runs in %s: process %s", daemon->name,
		daemon->runtime_dir, pid);
}

int broker_open(struct daemon *daemon, const struct broker_events *events, struct broker **out,
	struct error *err)
{
	struct broker *broker = calloc(1, sizeof *broker);
	int code;

	*out = NULL;
	if (!broker)
		return error_set(
			err, ENOMEM, "region broker: no memory for %zu bytes", sizeof *broker);
	broker->daemon = daemon;
	if (events)
		broker->events = *events;
	broker->listen_fd = broker->lock_fd = -1;
	for (size_t i = 0; i < LIMIT_PEERS; i++)
		broker->connections[i] = (struct connection){.broker = broker, .fd = -1};
	peers_socket_path(
		daemon_runtime_dir(daemon), daemon_name(daemon), broker->path, sizeof broker->path);
	code = broker_claim(daemon, err);
	if (code < 0)
		goto failed;
	broker->lock_fd = daemon->lock_fd;
	daemon->lock_fd = -1;
	broker->activated = daemon_listen_fd(daemon, daemon_name(daemon), &broker->listen_fd) == 0;
	if (broker->activated)
		code = fcntl(broker->listen_fd, F_SETFL, O_NONBLOCK) < 0
			       ? error_set(err, errno, "%s: %s", broker->path, strerror(errno))
			       : 0;
	else
		code = listener_open(
			broker->path, SOCK_SEQPACKET, LIMIT_PEERS, &broker->listen_fd, err);
	if (code == 0)
		code = daemon_add_fd(daemon, broker->listen_fd, POLLIN, handle_accept, broker);
	if (code < 0)
		goto failed;
	*out = broker;
	return 0;
failed:
	if (broker->listen_fd >= 0)
		close(broker->listen_fd);
	if (broker->lock_fd >= 0)
		close(broker->lock_fd);
	free(broker);
	return code;
}

void broker_close(struct broker **broker)
{
	struct broker *b = *broker;

	if (!b)
		return;
	b->events = (struct broker_events){0};
	b->closes = true;
	for (size_t i = 0; i < LIMIT_PEERS; i++)
		drop(&b->connections[i]);
	while (b->n_kept > 0)
		close(b->kept[--b->n_kept].fd);
	while (b->n_offered > 0)
		if (b->offered[--b->n_offered].read_fd >= 0)
			close(b->offered[b->n_offered].read_fd);
	if (b->timer > 0)
		daemon_remove_timer(b->daemon, b->timer);
	daemon_remove_fd(b->daemon, b->listen_fd);
	close(b->listen_fd);
	/* Unlinked before the lock is released: afterwards the path might belong to a successor's
	 * socket. The lock file stays; if it were unlinked, two starting processes could lock two
	 * different files of one name. */
	if (!b->activated)
		unlink(b->path);
	close(b->lock_fd);
	free(b);
	*broker = NULL;
}

struct daemon *broker_daemon(const struct broker *broker)
{
	return broker->daemon;
}

/* Copied and terminated: the name lies in the header, in memory that peers may write to. */
static void region_name(const struct region *region, char out[LIMIT_NAME])
{
	memcpy(out, region->header->name, LIMIT_NAME);
	out[LIMIT_NAME - 1] = '\0';
}

/* read_only: a descriptor for reading, or -errno. */
static void offer(struct broker *broker, const char *name, int fd, int read_only)
{
	struct offer *offered = find_offer(broker, name);

	if (!offered) {
		assert(broker->n_offered < LIMIT_REGIONS);
		offered = &broker->offered[broker->n_offered++];
	} else if (offered->read_fd >= 0) {
		close(offered->read_fd);
	}
	snprintf(offered->name, LIMIT_NAME, "%s", name);
	offered->fd = fd;
	offered->read_fd = read_only;
	daemon_store_fd(broker->daemon, name, reading_fd(offered));
	give_all(broker);
}

void broker_offer(struct broker *broker, const struct region *region)
{
	char name[LIMIT_NAME];
	int read_only = region_read_only(region->fd);

	region_name(region, name);
	if (read_only < 0)
		log_notice("region %s: processes that only read it could write to it, because it "
			   "cannot be opened for reading only (/proc/self/fd): %s",
			name, strerror(-read_only));
	offer(broker, name, region->fd, read_only);
}

void broker_withdraw(struct broker *broker, const char *name)
{
	struct offer *offered = find_offer(broker, name);

	if (offered == NULL)
		return;
	if (offered->read_fd >= 0)
		close(offered->read_fd);
	broker->n_offered--;
	memmove(offered, offered + 1,
		(size_t)(broker->offered + broker->n_offered - offered) * sizeof(*offered));
	give_all(broker);
	daemon_unstore_fd(broker->daemon, name);
}

void broker_offer_fd(struct broker *broker, const char *name, int fd)
{
	offer(broker, name, fd, region_read_only(fd));
}

int broker_keep(struct broker *broker, const struct region *region)
{
	char name[LIMIT_NAME];

	region_name(region, name);
	return broker_keep_fd(broker, name, region->fd);
}

int broker_keep_fd(struct broker *broker, const char *name, int of)
{
	struct named_fd *kept;
	int fd = region_read_only(of);

	if (fd < 0)
		fd = fcntl(of, F_DUPFD_CLOEXEC, 0);
	if (fd < 0) {
		int code = -errno;

		if (!link_brings_again(code))
			log_error("region %s cannot be kept for its owner: %s", name,
				strerror(-code));
		return code;
	}
	kept = find_named(broker->kept, broker->n_kept, name);
	if (kept) {
		close(kept->fd);
	} else if (broker->n_kept < KEPT_MAX) {
		kept = &broker->kept[broker->n_kept++];
	} else {
		log_error("region %s cannot be kept for its owner: %d regions are kept already",
			name, KEPT_MAX);
		close(fd);
		return -ENOSPC;
	}
	snprintf(kept->name, LIMIT_NAME, "%s", name);
	kept->fd = fd;
	return 0;
}

static bool among(const char *const *names, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

void broker_keep_only(struct broker *broker, const char *owner, const char *const *names, size_t n)
{
	for (size_t i = broker->n_kept; i-- > 0;) {
		struct named_fd *kept = &broker->kept[i];
		const char *of = peers_region_owner(kept->name);

		if (of && strcmp(of, owner) == 0 && !among(names, n, kept->name))
			forget(broker, kept);
	}
}
