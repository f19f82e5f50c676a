/*
 * Questions to the brokers of peers: this process asks for a region of its own that a peer keeps,
 * asks a peer to stop keeping one, or looks at a region that a peer offers. Each question has a
 * connection of its own; a process never asks itself.
 */
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/hello.h"
#include "shared/ipc/peers.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RECOVER_MS = 300 /* for one peer; a live one answers in well under a millisecond */ };

/* Waits for the answer to a question until end_ns, which is RECOVER_MS after the question.
 * -ETIMEDOUT when none came. */
static int await_answer(
	int socket, uint64_t end_ns, struct hello_answer *answer, int *fds, struct error *err)
{
	for (;;) {
		struct pollfd item = {.fd = socket, .events = POLLIN};
		uint64_t now_ns = clock_ns();
		int code = hello_answer_receive(socket, answer, fds, err);

		if (code != -EAGAIN)
			return code;
		if (now_ns >= end_ns)
			return error_set(err, ETIMEDOUT, "no answer in %d ms", RECOVER_MS);
		poll(&item, 1, (int)((end_ns - now_ns + 999999) / 1000000u));
	}
}

/* Picks the wanted region among those of an answer and closes the others. -EAGAIN when it is not
 * among them: the peer does not keep it, or does not offer it yet. */
static int take_wanted(
	const struct hello_answer *answer, const int *fds, const char *wanted, int *fd)
{
	int code = -EAGAIN;

	for (size_t i = 0; i < answer->n; i++) {
		if (code < 0 && strcmp(answer->regions[i], wanted) == 0) {
			*fd = fds[i];
			code = 0;
		} else {
			close(fds[i]);
		}
	}
	return code;
}

/* Asks one peer and waits at most RECOVER_MS for its answer; fails like broker_look. */
static int ask_peer(struct daemon *daemon, const char *peer, enum hello_kind kind,
	const char *wanted, int *fd, struct error *err)
{
	uint64_t end_ns = clock_ns() + (uint64_t)RECOVER_MS * 1000000u;
	int fds[LIMIT_REGIONS], socket, code;
	struct hello_answer answer = {0};
	struct hello hello;
	char path[128];

	peers_socket_path(daemon_runtime_dir(daemon), peer, path, sizeof path);
	code = hello_connect(path, &socket);
	if (code == -ENOENT || code == -ECONNREFUSED)
		return error_set(err, ENOENT, "no process listens there");
	if (code < 0)
		return error_set(err, -code, "%s", strerror(-code));
	err->text[0] = '\0';
	hello_init(&hello, kind, daemon_name(daemon), daemon_generation(daemon));
	snprintf(hello.region, sizeof hello.region, "%s", wanted);
	code = hello_check_user(socket, err);
	if (code == 0)
		code = hello_send(socket, &hello, sizeof hello, NULL, 0);
	if (code == 0)
		code = await_answer(socket, end_ns, &answer, fds, err);
	close(socket);
	if (code == 0 && answer.kind == HELLO_REFUSED)
		code = error_set(err, EPERM, "%s", answer.reason);
	if (code == 0) {
		code = take_wanted(&answer, fds, wanted, fd);
		return code < 0 ? error_set(err, -code, "it did not keep the region") : 0;
	}
	return err->text[0] ? code : error_set(err, -code, "%s", strerror(-code));
}

/* Asks one peer about a region of our own. Nothing is logged when the peer is not running or keeps
 * no such region. */
static int ask_keeper(
	struct daemon *daemon, const char *peer, enum hello_kind kind, const char *wanted, int *fd)
{
	struct error err = {""};
	int code = ask_peer(daemon, peer, kind, wanted, fd, &err);
	char path[128];

	if (code == 0 || code == -ENOENT || code == -EAGAIN)
		return code;
	peers_socket_path(daemon_runtime_dir(daemon), peer, path, sizeof path);
	/* A peer that is itself starting keeps nothing yet. */
	log_write(code == -ETIMEDOUT && peers_starting(path) ? LOG_LEVEL_INFO : LOG_LEVEL_NOTICE,
		"region %s: %s was asked for it, but: %s", wanted, peer, err.text);
	return code;
}

int broker_recover(struct daemon *daemon, const char *wanted, int *fd)
{
	int code = daemon_stored_fd(daemon, wanted, fd);

	for (size_t i = 0; peers_all[i] && code < 0; i++) {
		if (strcmp(peers_all[i], daemon_name(daemon)) == 0)
			continue;
		code = ask_keeper(daemon, peers_all[i], HELLO_RECOVER, wanted, fd);
		if (code == 0)
			log_info("region %s: %s had kept it", wanted, peers_all[i]);
	}
	return code < 0 ? -ENOENT : 0;
}

int broker_look(
	struct daemon *daemon, const char *peer, const char *region, int *fd, struct error *err)
{
	return ask_peer(daemon, peer, HELLO_LOOK, region, fd, err);
}

void broker_abandon(struct broker *broker, const char *name)
{
	struct daemon *daemon = broker_daemon(broker);
	int fd = -1;

	daemon_unstore_fd(daemon, name);
	for (size_t i = 0; peers_all[i]; i++)
		if (strcmp(peers_all[i], daemon_name(daemon)) != 0 &&
			ask_keeper(daemon, peers_all[i], HELLO_FORGET, name, &fd) == 0)
			close(fd);
}
