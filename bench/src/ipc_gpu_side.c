#include "bench/src/ipc_gpu_side.h"

#include "bench/src/gpu.h"
#include "shared/base/clock.h"
#include "shared/ipc/hello.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

const size_t ipc_gpu_sizes[IPC_GPU_SIZES] = {64 << 10, 1 << 20, IPC_GPU_BYTES};

struct side {
	int socket;
	const char *name; /* of the back end */
	const struct region *region;
	struct backend *backend;
	struct queue *q;
	struct buffer flags, memory, host;
	bool open; /* the other process has asked for all of this */
};

struct place ipc_gpu_asked(const struct buffer *flags)
{
	return (struct place){flags, REGION_DATA + offsetof(struct ipc_gpu_flags, asked)};
}

struct place ipc_gpu_answered(const struct buffer *flags)
{
	return (struct place){flags, REGION_DATA + offsetof(struct ipc_gpu_flags, answered)};
}

int ipc_gpu_wrap(
	struct backend *backend, const struct region *region, struct buffer *out, struct error *err)
{
	return backend->ops->wrap(backend, region->header, region->bytes, out, err);
}

/* A whole packet. -EPIPE: the other process is gone. */
static int receive(int socket, void *packet, size_t bytes)
{
	ssize_t got;

	do
		got = recv(socket, packet, bytes, 0);
	while (got < 0 && errno == EINTR);
	return got < 0 ? -errno : (size_t)got == bytes ? 0 : -EPIPE;
}

/* The descriptor, the caller's to close. */
static int receive_fd(int socket, struct error *err)
{
	struct pollfd readable = {.fd = socket, .events = POLLIN};
	struct hello_answer answer;
	int fds[LIMIT_REGIONS];

	while (poll(&readable, 1, -1) < 0 && errno == EINTR)
		;
	int rc = hello_answer_receive(socket, &answer, fds, err);
	if (rc == 0 && answer.n != 1)
		rc = error_set(err, EPROTO, "no descriptor came");
	return rc < 0 ? rc : fds[0];
}

static int open_side(struct side *side, struct error *err)
{
	const struct queue_limits limits = {0};
	int rc = gpu_open(side->name, &side->backend, err);

	if (rc == 0)
		rc = side->backend->ops->queue(side->backend, &limits, &side->q, err);
	if (rc == 0)
		rc = ipc_gpu_wrap(side->backend, side->region, &side->flags, err);
	if (rc == 0)
		rc = side->backend->ops->alloc(
			side->backend, IPC_GPU_BYTES, BUFFER_HOST, &side->host, err);
	side->open = rc == 0;
	return rc;
}

static int import(struct side *side, uint64_t *ns, struct error *err)
{
	const struct backend_ops *ops = side->backend->ops;
	int fd = receive_fd(side->socket, err);

	if (fd < 0)
		return fd;
	if (side->memory.backend != NULL)
		ops->free(&side->memory);
	side->memory.backend = NULL;
	uint64_t start = clock_ns();
	int rc = ops->import_fd(side->backend, fd, IPC_GPU_BYTES, true, &side->memory, err);
	*ns = clock_ns() - start;
	close(fd);
	return rc;
}

static void answer(struct side *side, uint32_t behind)
{
	for (uint32_t i = 1; i <= IPC_GPU_HOPS; i++) {
		side->q->ops->wait_value(side->q, ipc_gpu_asked(&side->flags), behind + i);
		side->q->ops->write_value(side->q, ipc_gpu_answered(&side->flags), behind + i);
	}
	/* What was queued runs. */
	(void)side->q->ops->ticket(side->q);
}

static int copy(struct side *side, size_t bytes, const struct buffer *to, const struct buffer *from,
	uint64_t *ns, struct error *err)
{
	uint64_t start = clock_ns();

	for (size_t at = 0; at < IPC_GPU_BYTES; at += bytes)
		side->q->ops->copy(
			side->q, (struct place){to, at}, (struct place){from, at}, bytes);
	int rc = gpu_finish(side->q, err);
	*ns = clock_ns() - start;
	return rc;
}

static int check(struct side *side, unsigned char value, struct error *err)
{
	uint64_t ns;
	int rc = copy(side, IPC_GPU_BYTES, &side->host, &side->memory, &ns, err);

	for (size_t i = 0; rc == 0 && i < IPC_GPU_BYTES; i++)
		if (side->host.host[i] != value)
			rc = error_set(err, EIO,
				"the other process does not see what was copied: byte %zu is %u, "
				"not %u",
				i, side->host.host[i], value);
	return rc;
}

static int serve(struct side *side, struct ipc_gpu_packet *p, struct error *err)
{
	int rc = 0;

	if (p->what != IPC_GPU_OPEN && !side->open)
		return error_set(err, EPROTO, "request %d without a back end", (int)p->what);
	switch (p->what) {
	case IPC_GPU_OPEN:
		return open_side(side, err);
	case IPC_GPU_IMPORT:
		return import(side, &p->ns[0], err);
	case IPC_GPU_ANSWER:
		answer(side, p->value);
		return 0;
	case IPC_GPU_COPY:
		rc = copy(
			side, ipc_gpu_sizes[p->value], &side->memory, &side->host, &p->ns[0], err);
		return rc == 0 ? copy(side, ipc_gpu_sizes[p->value], &side->host, &side->memory,
					 &p->ns[1], err)
			       : rc;
	case IPC_GPU_CHECK:
		return check(side, (unsigned char)p->value, err);
	}
	return error_set(err, EPROTO, "unknown request %d", (int)p->what);
}

static void close_side(struct side *side)
{
	struct buffer *const all[] = {&side->flags, &side->memory, &side->host};

	if (side->q != NULL)
		side->q->ops->queue_free(side->q);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i]->backend != NULL)
			side->backend->ops->free(all[i]);
	if (side->backend != NULL)
		side->backend->ops->destroy(side->backend);
}

static _Noreturn void run_side(struct side *side)
{
	struct ipc_gpu_packet packet;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (receive(side->socket, &packet, sizeof(packet)) == 0) {
		struct error err = {""};

		packet.rc = serve(side, &packet, &err);
		memcpy(packet.text, err.text,
			sizeof(packet.text) < sizeof(err.text) ? sizeof(packet.text)
							       : sizeof(err.text));
		packet.text[sizeof(packet.text) - 1] = '\0';
		if (hello_send(side->socket, &packet, sizeof(packet), NULL, 0) < 0)
			break;
	}
	close_side(side);
	_exit(EX_OK);
}

int ipc_gpu_start(
	struct ipc_gpu_other *other, const char *backend, struct region *region, struct error *err)
{
	struct ipc_gpu_packet open = {.what = IPC_GPU_OPEN};
	int sockets[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		return error_set(err, errno, "socketpair: %s", strerror(errno));
	other->pid = fork();
	if (other->pid == 0) {
		struct side side = {.socket = sockets[1], .name = backend, .region = region};

		close(sockets[0]);
		run_side(&side);
	}
	other->socket = sockets[0];
	close(sockets[1]);
	if (other->pid < 0)
		return error_set(err, errno, "fork: %s", strerror(errno));
	return ipc_gpu_ask(other, &open, -1, err);
}

void ipc_gpu_stop(struct ipc_gpu_other *other)
{
	if (other->pid <= 0)
		return;
	close(other->socket);
	waitpid(other->pid, NULL, 0);
	*other = (struct ipc_gpu_other){0};
}

static int send_fd(struct ipc_gpu_other *other, int fd)
{
	struct hello_answer answer;

	hello_answer_init(&answer, HELLO_REGIONS, "bench", 1);
	answer.n = 1;
	return hello_send(other->socket, &answer, sizeof(answer), &fd, 1);
}

int ipc_gpu_ask(
	struct ipc_gpu_other *other, struct ipc_gpu_packet *packet, int fd, struct error *err)
{
	int rc = hello_send(other->socket, packet, sizeof(*packet), NULL, 0);

	if (rc == 0 && fd >= 0)
		rc = send_fd(other, fd);
	if (rc == 0)
		rc = receive(other->socket, packet, sizeof(*packet));
	if (rc < 0)
		return error_set(err, -rc, "the other process is gone: %s", strerror(-rc));
	return packet->rc < 0 ? error_set(err, -packet->rc, "%s", packet->text) : 0;
}
