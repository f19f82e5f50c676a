/* The service manager's end of sd_notify(3). */
#include "client/cli/supervisor.h"

#include "shared/base/clock.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 4096, FDS_MAX = 16 };

int notify_open(struct child *child, struct error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int on = 1, n;

	/* An abstract socket: it has no path, so it does not limit the length of the runtime
	 * directory, and leaves nothing behind. The sender is checked by the credentials that the
	 * kernel adds. */
	n = snprintf(child->notify_name, sizeof child->notify_name, "@outrider-up-%ld-%s",
		(long)getpid(), child->name);
	memcpy(address.sun_path, child->notify_name, (size_t)n);
	address.sun_path[0] = '\0';
	child->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (child->notify_fd < 0 ||
		setsockopt(child->notify_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0 ||
		bind(child->notify_fd, (struct sockaddr *)&address,
			(socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)) < 0)
		return error_set(
			err, errno, "notification socket of %s: %s", child->name, strerror(errno));
	return 0;
}

static bool same_file(int a, int b)
{
	struct stat x, y;

	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino;
}

static void store_add(struct child *child, const char *name, int fd)
{
	for (size_t i = 0; i < child->n_stored; i++)
		if (strcmp(child->store[i].name, name) == 0 && same_file(child->store[i].fd, fd)) {
			close(fd);
			return;
		}
	if (child->n_stored == CHILD_STORE_MAX) {
		fprintf(stderr,
			"outrider up: %s stores more than %d descriptors, \"%s\" is dropped\n",
			child->name, CHILD_STORE_MAX, name);
		close(fd);
		return;
	}
	snprintf(child->store[child->n_stored].name, sizeof child->store[0].name, "%s", name);
	child->store[child->n_stored++].fd = fd;
}

static void store_remove(struct child *child, const char *name)
{
	size_t kept = 0;

	for (size_t i = 0; i < child->n_stored; i++)
		if (strcmp(child->store[i].name, name) == 0)
			close(child->store[i].fd);
		else
			child->store[kept++] = child->store[i];
	child->n_stored = kept;
}

void store_close(struct child *child)
{
	for (size_t i = 0; i < child->n_stored; i++)
		close(child->store[i].fd);
	child->n_stored = 0;
}

/* As in systemd: printable ASCII without ':', which separates names. */
static bool name_is_valid(const char *name)
{
	size_t n = strlen(name);

	if (n == 0 || n >= sizeof(((struct stored_fd *)0)->name))
		return false;
	for (size_t i = 0; i < n; i++)
		if (name[i] <= ' ' || name[i] > '~' || name[i] == ':')
			return false;
	return true;
}

static void feed(struct supervisor *supervisor, struct child *child)
{
	if (child->state == CHILD_READY)
		child->deadline_ns =
			supervisor->watchdog_ns ? clock_ns() + supervisor->watchdog_ns : 0;
}

static void extend(struct child *child, const char *value)
{
	uint64_t until =
		clock_ns() + (uint64_t)strtoull(value, NULL, 10) % UINT64_C(86400000000) * 1000;

	if (child->state == CHILD_STARTING && until > child->deadline_ns)
		child->deadline_ns = until;
}

/* Keeps from the state that `outrider status` would show only why it is degraded. */
static void take_state(struct child *child, const char *state)
{
	static const char degraded[] = "degraded: ";
	bool is = strncmp(state, degraded, strlen(degraded)) == 0;

	snprintf(child->degraded, sizeof child->degraded, "%s", is ? state + strlen(degraded) : "");
}

static void obey(
	struct supervisor *supervisor, struct child *child, char *text, int *fds, int n_fds)
{
	const char *name = "stored";
	bool store = false, remove = false;
	char *next = text;

	for (char *line = strsep(&next, "\n"); line; line = strsep(&next, "\n")) {
		if (strcmp(line, "READY=1") == 0 && child->state == CHILD_STARTING) {
			child->state = CHILD_READY;
			child->was_ready = true;
			feed(supervisor, child);
		} else if (strcmp(line, "WATCHDOG=1") == 0) {
			feed(supervisor, child);
		} else if (strcmp(line, "WATCHDOG=trigger") == 0) {
			child->deadline_ns = 1;
		} else if (strncmp(line, "EXTEND_TIMEOUT_USEC=", 20) == 0) {
			extend(child, line + 20);
		} else if (strncmp(line, "FDNAME=", 7) == 0) {
			name = line + 7;
		} else if (strcmp(line, "FDSTORE=1") == 0) {
			store = true;
		} else if (strcmp(line, "FDSTOREREMOVE=1") == 0) {
			remove = true;
		} else if (strcmp(line, "STOPPING=1") == 0) {
			child->deadline_ns = 0;
		} else if (strncmp(line, "STATUS=", 7) == 0) {
			take_state(child, line + 7);
		}
	}
	if (!name_is_valid(name))
		name = "stored";
	if (remove)
		store_remove(child, name);
	for (int i = 0; i < n_fds; i++)
		if (store)
			store_add(child, name, fds[i]);
		else
			close(fds[i]);
}

static int take_control(struct msghdr *message, int fds[FDS_MAX], pid_t *sender)
{
	int n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			size_t bytes = c->cmsg_len - CMSG_LEN(0);

			memcpy(&fds[n], CMSG_DATA(c), bytes);
			n += (int)(bytes / sizeof(int));
		} else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
			struct ucred cred;

			memcpy(&cred, CMSG_DATA(c), sizeof cred);
			*sender = cred.pid;
		}
	}
	return n;
}

void notify_receive(struct supervisor *supervisor, struct child *child)
{
	for (;;) {
		char text[MESSAGE_BYTES];
		union {
			struct cmsghdr align;
			char bytes[CMSG_SPACE(FDS_MAX * sizeof(int)) +
				   CMSG_SPACE(sizeof(struct ucred))];
		} control;
		struct iovec iov = {text, sizeof text - 1};
		struct msghdr message = {.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control.bytes,
			.msg_controllen = sizeof control.bytes};
		int fds[FDS_MAX], n_fds;
		pid_t sender = 0;
		ssize_t n = recvmsg(child->notify_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

		if (n < 0)
			return;
		n_fds = take_control(&message, fds, &sender);
		text[n] = '\0';
		/* As with NotifyAccess=main. A truncated message is ignored as a whole. */
		if (sender == child->pid && child->pid > 0 && !(message.msg_flags & MSG_TRUNC)) {
			obey(supervisor, child, text, fds, n_fds);
			continue;
		}
		for (int i = 0; i < n_fds; i++)
			close(fds[i]);
	}
}
