#include "shared/ipc/link.h"

#include "shared/base/descriptors.h"
#include "shared/base/log.h"
#include "shared/ipc/hello.h"
#include "shared/ipc/peers.h"
#include "shared/ipc/registry.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_NS_MIN 20000000ull
#define RETRY_NS_MAX 500000000ull

struct link {
	struct daemon *daemon;
	struct link_events events;
	char peer[LIMIT_NAME];
	char path[128];
	int fd; /* -1: not connected to the broker */
	int timer; /* 0: none */
	int again; /* the timer that asks for the regions again; 0: none */
	uint64_t retry_ns;
	uint64_t generation; /* of the peer whose broker it connected to */
	atomic_bool alive; /* connected, and the peer has answered our hello */
	bool short_of_room; /* for the regions, which was logged */
	char complaint[256]; /* the last reason for a refusal; logged once, not twice a second */
};

static void retry(void *arg);

static void schedule(struct link *link)
{
	int id;

	if (link->timer)
		daemon_remove_timer(link->daemon, link->timer);
	id = daemon_add_timer(link->daemon, link->retry_ns, retry, link);
	link->timer = id > 0 ? id : 0;
	if (id < 0)
		log_error("%s: cannot connect again: %s", link->peer, strerror(-id));
	link->retry_ns = link->retry_ns * 2 < RETRY_NS_MAX ? link->retry_ns * 2 : RETRY_NS_MAX;
}

static void say_gone(struct link *link)
{
	const struct peer *peer = registry_peer(link->daemon, link->peer);
	/* The end of a peer that is expected to stop, or that says it stops, needs no notice. */
	bool expected = daemon_is_stopping(link->daemon) ||
			(peer && peer->card.state.stage >= PEER_STOPPING);

	log_write(expected ? LOG_LEVEL_INFO : LOG_LEVEL_NOTICE, "%s is gone", link->peer);
}

/* Closes both connections. ends: this process ends. */
static void hang_up(struct link *link, bool ends)
{
	bool was_alive = atomic_exchange_explicit(&link->alive, false, memory_order_relaxed);

	registry_part(link->daemon, link->peer, 0, ends);
	if (link->again)
		daemon_remove_timer(link->daemon, link->again);
	link->again = 0;
	if (link->fd >= 0) {
		daemon_remove_fd(link->daemon, link->fd);
		close(link->fd);
		link->fd = -1;
	}
	if (was_alive && !ends) {
		say_gone(link);
		if (link->events.lost)
			link->events.lost(link->events.arg, link->peer);
	}
}

static void complain(struct link *link, const char *reason)
{
	if (strncmp(link->complaint, reason, sizeof link->complaint - 1) == 0)
		return;
	snprintf(link->complaint, sizeof link->complaint, "%.*s", (int)sizeof link->complaint - 1,
		reason);
	log_error("%s: %s", link->peer, reason);
}

static void start_over(struct link *link)
{
	hang_up(link, false);
	schedule(link);
}

/* The peer would say the same again in 20 ms. */
static void start_over_refused(struct link *link, const char *reason)
{
	complain(link, reason);
	link->retry_ns = RETRY_NS_MAX;
	start_over(link);
}

bool link_brings_again(int code)
{
	return code == -EMFILE || code == -ENFILE || code == -ENOMEM;
}

static void ask_later(struct link *link);

static void ask_again(void *arg)
{
	struct link *link = arg;
	struct hello hello;

	daemon_remove_timer(link->daemon, link->again);
	link->again = 0;
	hello_init(&hello, HELLO_AGAIN, daemon_name(link->daemon), daemon_generation(link->daemon));
	/* A connection that has ended is noticed where it is read. */
	if (hello_send(link->fd, &hello, sizeof hello, NULL, 0) < 0)
		ask_later(link);
}

static void ask_later(struct link *link)
{
	if (link->again)
		return;
	int id = daemon_add_timer(link->daemon, RETRY_NS_MAX, ask_again, link);

	if (id > 0)
		link->again = id;
	else
		log_error("%s: cannot ask for its regions again: %s", link->peer, strerror(-id));
}

/* Call with the result of taking regions. Those that found no room are asked for again. */
static void note_room(struct link *link, int code)
{
	bool none = link_brings_again(code);

	if (none && !link->short_of_room && code == -EMFILE)
		log_error("%s: the limit of %llu open files (LimitNOFILE, ulimit -n) leaves no "
			  "room for its regions: trying again until there is",
			link->peer, (unsigned long long)descriptors_limit());
	else if (none && !link->short_of_room)
		log_error("%s: no room for its regions: %s: trying again until there is",
			link->peer, strerror(-code));
	else if (!none && link->short_of_room)
		log_notice("%s: there is room for its regions now", link->peer);
	link->short_of_room = none;
	if (none)
		ask_later(link);
}

static void take_regions(struct link *link, const struct hello_answer *answer, int *fds)
{
	const char *names[LIMIT_REGIONS];

	for (size_t i = 0; i < answer->n; i++)
		names[i] = answer->regions[i];
	if (!atomic_exchange_explicit(&link->alive, true, memory_order_relaxed))
		log_info("%s is there, generation %llu", link->peer,
			(unsigned long long)answer->generation);
	link->retry_ns = RETRY_NS_MIN;
	link->complaint[0] = '\0';
	int code = link->events.regions ? link->events.regions(link->events.arg, link->peer, names,
						  fds, answer->n)
					: 0;
	for (size_t i = 0; i < answer->n; i++)
		close(fds[i]);
	note_room(link, code);
}

static void handle_packet(void *arg)
{
	struct link *link = arg;
	struct hello_answer answer;
	int fds[LIMIT_REGIONS];
	struct error err = {""};
	int code = hello_answer_receive(link->fd, &answer, fds, &err);

	if (code == -EAGAIN)
		return;
	if (code == -EMFILE) {
		note_room(link, code);
		return;
	}
	if (code == 0 && answer.kind == HELLO_REGIONS && strcmp(answer.name, link->peer) == 0) {
		take_regions(link, &answer, fds);
		return;
	}
	if (code == 0 && answer.kind == HELLO_REFUSED) {
		start_over_refused(link, answer.reason);
		return;
	}
	if (code == 0) {
		for (size_t i = 0; i < answer.n; i++)
			close(fds[i]);
		complain(link, "another process answers on its socket");
	} else if (code == -EPROTO) {
		complain(link, err.text);
	}
	start_over(link);
}

/* Connects to the registered peer's broker. */
static int join(struct link *link)
{
	struct hello hello;
	struct error err = {""};
	int fd, code = hello_connect(link->path, &fd);

	if (code < 0)
		return code;
	hello_init(&hello, HELLO_JOIN, daemon_name(link->daemon), daemon_generation(link->daemon));
	code = hello_check_user(fd, &err);
	if (code < 0)
		complain(link, err.text);
	else
		code = hello_send(fd, &hello, sizeof hello, NULL, 0);
	if (code == 0)
		code = daemon_add_fd(link->daemon, fd, POLLIN, handle_packet, link);
	if (code < 0) {
		close(fd);
		return code;
	}
	link->fd = fd;
	return 0;
}

static void on_registered(void *arg)
{
	struct link *link = arg;
	uint64_t generation = registry_peer(link->daemon, link->peer)->card.generation;

	/* Only the connection for messages is new; everything else is unchanged. */
	if (link->fd >= 0 && link->generation == generation)
		return;
	link->generation = generation;
	if (link->fd >= 0 || join(link) < 0)
		start_over(link);
}

static void on_refused(void *arg, const char *reason)
{
	start_over_refused(arg, reason);
}

static void on_broken(void *arg)
{
	struct link *link = arg;

	/* While the connection to its broker stands, the process lives. */
	if (link->fd >= 0)
		schedule(link);
	else
		start_over(link);
}

static int call(struct link *link)
{
	const struct registry_caller caller = {.registered = on_registered,
		.refused = on_refused,
		.broken = on_broken,
		.arg = link};

	return registry_call(link->daemon, link->peer, &caller);
}

static void retry(void *arg)
{
	struct link *link = arg;

	daemon_remove_timer(link->daemon, link->timer);
	link->timer = 0;
	if (call(link) < 0)
		schedule(link);
}

int link_open(struct daemon *daemon, const char *peer, const struct link_events *events,
	struct link **out, struct error *err)
{
	struct link *link;

	*out = NULL;
	if (!peers_may_connect(daemon_name(daemon), peer))
		return error_set(err, EPERM, "%s may not connect to %s", daemon_name(daemon), peer);
	link = calloc(1, sizeof *link);
	if (!link)
		return error_set(
			err, ENOMEM, "link to %s: no memory for %zu bytes", peer, sizeof *link);
	link->daemon = daemon;
	link->events = *events;
	link->fd = -1;
	link->retry_ns = RETRY_NS_MIN;
	snprintf(link->peer, sizeof link->peer, "%s", peer);
	peers_socket_path(daemon_runtime_dir(daemon), peer, link->path, sizeof link->path);
	int code = call(link);
	if (code == -EINVAL) {
		free(link);
		return error_set(err, EINVAL, "%s has no admin endpoint to register from",
			daemon_name(daemon));
	}
	if (code < 0)
		schedule(link);
	*out = link;
	return 0;
}

void link_close(struct link **link)
{
	struct link *l = *link;

	if (!l)
		return;
	l->events = (struct link_events){0};
	hang_up(l, true);
	if (l->timer)
		daemon_remove_timer(l->daemon, l->timer);
	free(l);
	*link = NULL;
}

bool link_alive(const struct link *link)
{
	return atomic_load_explicit(&link->alive, memory_order_relaxed);
}
