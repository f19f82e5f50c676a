#include "shared/ipc/hello.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define HELLO_MAGIC 0x4c48524fu /* "ORHL" */

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(LIMIT_REGIONS * sizeof(int))];
};

void hello_init(struct hello *hello, enum hello_kind kind, const char *name, uint64_t generation)
{
	memset(hello, 0, sizeof *hello);
	hello->magic = HELLO_MAGIC;
	hello->version = HELLO_VERSION;
	hello->kind = kind;
	hello->pid = getpid();
	hello->generation = generation;
	snprintf(hello->name, sizeof hello->name, "%s", name);
}

void hello_answer_init(struct hello_answer *answer, enum hello_answer_kind kind, const char *name,
	uint64_t generation)
{
	memset(answer, 0, sizeof *answer);
	answer->magic = HELLO_MAGIC;
	answer->version = HELLO_VERSION;
	answer->kind = kind;
	answer->generation = generation;
	snprintf(answer->name, sizeof answer->name, "%s", name);
}

int hello_send(int socket, const void *packet, size_t bytes, const int *fds, size_t n_fds)
{
	struct iovec iov = {.iov_base = (void *)packet, .iov_len = bytes};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	union control control;
	ssize_t sent;

	assert(n_fds <= LIMIT_REGIONS);
	if (n_fds > 0) {
		struct cmsghdr *header;

		memset(&control, 0, sizeof control);
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(header), fds, n_fds * sizeof(int));
	}
	do
		sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

static void close_all(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
}

/* Receives one packet, and its descriptors into fds[LIMIT_REGIONS]. An error names the packet's
 * version. */
static int receive(
	int socket, void *packet, size_t bytes, int *fds, size_t *n_fds, struct error *err)
{
	struct iovec iov = {.iov_base = packet, .iov_len = bytes};
	union control control;
	struct msghdr message = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof control.bytes};
	ssize_t got;

	*n_fds = 0;
	memset(packet, 0, bytes);
	do
		got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header;
		header = CMSG_NXTHDR(&message, header)) {
		size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
			if (*n_fds < LIMIT_REGIONS)
				fds[(*n_fds)++] = fd;
			else
				close(fd);
		}
	}
	if (got == 0)
		return -ECONNRESET;
	if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || (size_t)got != bytes) {
		/* In packets of every version the version is the second field. */
		uint32_t head[2] = {0, 0};

		if ((size_t)got >= sizeof head)
			memcpy(head, packet, sizeof head);
		/* The kernel hands over as many as the process may open. */
		bool no_room = (message.msg_flags & MSG_CTRUNC) && *n_fds < LIMIT_REGIONS;
		close_all(fds, *n_fds);
		*n_fds = 0;
		if (no_room && (size_t)got == bytes)
			return -EMFILE;
		if (head[0] == HELLO_MAGIC && head[1] != HELLO_VERSION)
			return error_set(err, EPROTO, "hello of version %u, this is version %d",
				head[1], HELLO_VERSION);
		return error_set(err, EPROTO, "packet of %zd bytes, expected %zu%s", got, bytes,
			message.msg_flags & MSG_CTRUNC ? ", with too many descriptors" : "");
	}
	return 0;
}

static int check_head(uint32_t magic, uint32_t version, struct error *err)
{
	if (magic != HELLO_MAGIC)
		return error_set(err, EPROTO, "not a hello: magic %#x", magic);
	if (version != HELLO_VERSION)
		return error_set(err, EPROTO, "hello of version %u, this is version %d", version,
			HELLO_VERSION);
	return 0;
}

int hello_receive(int socket, struct hello *out, struct error *err)
{
	int fds[LIMIT_REGIONS], code;
	size_t n_fds;

	code = receive(socket, out, sizeof *out, fds, &n_fds, err);
	close_all(fds, n_fds); /* a hello carries none */
	if (code == 0)
		code = check_head(out->magic, out->version, err);
	out->name[sizeof out->name - 1] = '\0';
	out->region[sizeof out->region - 1] = '\0';
	if (code == 0 && out->kind != HELLO_JOIN && out->kind != HELLO_RECOVER &&
		out->kind != HELLO_FORGET && out->kind != HELLO_LOOK && out->kind != HELLO_AGAIN)
		return error_set(err, EPROTO, "hello of unknown kind %u", out->kind);
	return code;
}

int hello_answer_receive(int socket, struct hello_answer *out, int *fds, struct error *err)
{
	size_t n_fds;
	int code = receive(socket, out, sizeof *out, fds, &n_fds, err);

	if (code == 0)
		code = check_head(out->magic, out->version, err);
	out->name[sizeof out->name - 1] = '\0';
	out->reason[sizeof out->reason - 1] = '\0';
	for (size_t i = 0; i < LIMIT_REGIONS; i++)
		out->regions[i][LIMIT_NAME - 1] = '\0';
	if (code == 0 && out->kind != HELLO_REGIONS && out->kind != HELLO_REFUSED)
		code = error_set(err, EPROTO, "answer of unknown kind %u", out->kind);
	if (code == 0 && n_fds != (out->kind == HELLO_REGIONS ? out->n : 0))
		code = error_set(err, EPROTO, "answer names %u regions and brings %zu descriptors",
			out->n, n_fds);
	if (code < 0) {
		close_all(fds, n_fds);
		out->n = 0;
	}
	return code;
}

int hello_check_user(int socket, struct error *err)
{
	struct ucred cred = {0};
	socklen_t n = sizeof cred;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
		return error_set(err, errno, "who connected: %s", strerror(errno));
	if (cred.uid != geteuid() && cred.uid != 0)
		return error_set(err, EPERM, "process %d belongs to user %u, not to %u", cred.pid,
			cred.uid, geteuid());
	return 0;
}

uint32_t hello_pid(int socket)
{
	struct ucred cred = {0};
	socklen_t n = sizeof cred;

	return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0 ? 0 : (uint32_t)cred.pid;
}

int hello_connect(const char *path, int *out)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd, code;

	*out = -1;
	if (strlen(path) >= sizeof address.sun_path)
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* A Unix socket connects or is refused at once. */
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
		*out = fd;
		return 0;
	}
	code = -errno;
	close(fd);
	return code;
}
