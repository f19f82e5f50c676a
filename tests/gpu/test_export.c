/* Memory of the GPU that a process exports, and that another one imports when the first has been
 * killed. */
#include "tests/gpu/rig.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };

static const struct queue_limits limits = {.products = 1, .pairs = 1};

struct end {
	struct backend *backend;
	struct queue *q;
	struct buffer seen; /* by the host too */
};

static int open_end(struct end *e, struct error *err)
{
	const struct backend_gpu_options options = {.seed = 0};
	int rc = rig_create(&options, &e->backend, err);

	if (rc == 0)
		rc = e->backend->ops->queue(e->backend, &limits, &e->q, err);
	return rc < 0 ? rc : e->backend->ops->alloc(e->backend, BYTES, BUFFER_HOST, &e->seen, err);
}

static int copy(struct end *e, struct buffer *to, struct buffer *from)
{
	const struct backend_ops *ops = e->backend->ops;

	ops->copy(e->q, (struct place){to, 0}, (struct place){from, 0}, BYTES);
	return ops->wait(e->q, ops->ticket(e->q));
}

static void fill(unsigned char *at)
{
	for (size_t i = 0; i < BYTES; i++)
		at[i] = (unsigned char)(i * 7 + i / 256);
}

static int send_fd(int socket, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	return sendmsg(socket, &message, 0) == 1 ? 0 : -errno;
}

/* -1: the other end has none. */
static int receive_fd(int socket)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	int fd = -1;

	if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* Fills memory of the GPU, exports it and waits for its end. */
static void export_and_wait(int socket)
{
	struct buffer shared;
	struct error err = {""};
	struct end e;

	int rc = open_end(&e, &err);
	if (rc == 0)
		rc = e.backend->ops->alloc(e.backend, BYTES, BUFFER_SHARED, &shared, &err);
	if (rc == 0) {
		fill(e.seen.host);
		rc = copy(&e, &shared, &e.seen);
	}
	if (rc == 0)
		rc = e.backend->ops->export_fd(&shared, &err);
	if (rc < 0 || send_fd(socket, rc) < 0) {
		fprintf(stderr, "# %s\n", err.text);
		_exit(1);
	}
	for (;;)
		pause();
}

/* Starts a process that exports. Before this process has a device, which a child could not use. Returns
 * the descriptor. */
static int start_maker(pid_t *child)
{
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	*child = fork();
	if (*child == 0)
		export_and_wait(ends[1]);
	close(ends[1]);
	int fd = receive_fd(ends[0]);
	close(ends[0]);
	assert_true(fd >= 0);
	return fd;
}

static void kill_maker(pid_t child)
{
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

static void exported_memory_outlives_its_process(void **state)
{
	unsigned char *want = malloc(BYTES);
	struct buffer imported;
	struct error err = {""};
	struct end e;
	pid_t child;

	(void)state;
	assert_non_null(want);
	int fd = start_maker(&child);
	kill_maker(child);
	if (open_end(&e, &err) < 0)
		fail_msg("%s", err.text);
	if (e.backend->ops->import_fd(e.backend, fd, BYTES, false, &imported, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(copy(&e, &e.seen, &imported), 0);
	fill(want);
	assert_memory_equal(e.seen.host, want, BYTES);
	e.backend->ops->free(&imported);
	e.backend->ops->free(&e.seen);
	e.backend->ops->queue_free(e.q);
	e.backend->ops->destroy(e.backend);
	close(fd);
	free(want);
}

/* Where exports are refused: the same bytes while the maker lives, and an error afterwards. */
static void without_exports_memory_ends_with_its_process(void **state)
{
	unsigned char *want = malloc(BYTES);
	struct buffer imported, again;
	struct error err = {""};
	struct end e;
	pid_t child;

	(void)state;
	assert_non_null(want);
	assert_int_equal(setenv("OUTRIDER_SIMT_EXPORT", "refused", 1), 0);
	int fd = start_maker(&child);
	if (open_end(&e, &err) < 0)
		fail_msg("%s", err.text);
	const struct backend_ops *ops = e.backend->ops;
	if (ops->import_fd(e.backend, fd, BYTES, false, &imported, &err) < 0)
		fail_msg("%s", err.text);
	assert_true(imported.ends_with_maker);
	assert_int_equal(copy(&e, &e.seen, &imported), 0);
	fill(want);
	assert_memory_equal(e.seen.host, want, BYTES);
	ops->free(&imported);
	kill_maker(child);
	assert_int_equal(ops->import_fd(e.backend, fd, BYTES, false, &again, &err), -ESTALE);
	assert_non_null(strstr(err.text, "has ended with its process"));
	ops->free(&e.seen);
	ops->queue_free(e.q);
	ops->destroy(e.backend);
	assert_int_equal(unsetenv("OUTRIDER_SIMT_EXPORT"), 0);
	close(fd);
	free(want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exported_memory_outlives_its_process),
		cmocka_unit_test(without_exports_memory_ends_with_its_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
