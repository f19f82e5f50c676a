#include "services/verifier/prefixes/prefix_io.h"

#include <errno.h>
#include <liburing.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

struct prefix_io {
	struct io_uring ring;
	bool uring, listens; /* a read of the bell is in flight */
	int bell;
	uint64_t rung; /* what is read from it */
	struct prefix_op *done; /* without io_uring: steps that have ended */
};

/* In some sandboxes a process may create a ring but not use it. */
static bool works(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;

	io_uring_prep_nop(io_uring_get_sqe(ring));
	if (io_uring_submit(ring) != 1 || io_uring_wait_cqe(ring, &cqe) != 0)
		return false;
	io_uring_cqe_seen(ring, cqe);
	return true;
}

struct prefix_io *prefix_io_open(int bell)
{
	struct prefix_io *io = calloc(1, sizeof(*io));

	if (io == NULL)
		return NULL;
	io->bell = bell;
	/* One more, for the bell. */
	if (io_uring_queue_init(PREFIX_IO_DEPTH + 1, &io->ring, 0) == 0) {
		io->uring = works(&io->ring);
		if (!io->uring)
			io_uring_queue_exit(&io->ring);
	}
	return io;
}

void prefix_io_close(struct prefix_io **io)
{
	if (*io != NULL && (*io)->uring)
		io_uring_queue_exit(&(*io)->ring);
	free(*io);
	*io = NULL;
}

const char *prefix_io_name(const struct prefix_io *io)
{
	return io->uring ? "io_uring" : "read and write";
}

void prefix_io_start(struct prefix_io *io, struct prefix_op *op)
{
	if (!io->uring) {
		ssize_t n = op->writes ? pwrite(op->fd, op->at, op->bytes, (off_t)op->offset)
				       : pread(op->fd, op->at, op->bytes, (off_t)op->offset);
		op->result = n < 0 ? -errno : n;
		op->next = io->done;
		io->done = op;
		return;
	}
	/* A step of more than 1 GiB would not fit into the result. */
	unsigned n = op->bytes < 1u << 30 ? (unsigned)op->bytes : 1u << 30;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
	if (op->writes)
		io_uring_prep_write(sqe, op->fd, op->at, n, op->offset);
	else
		io_uring_prep_read(sqe, op->fd, op->at, n, op->offset);
	io_uring_sqe_set_data(sqe, op);
}

static struct prefix_op *next_plain(struct prefix_io *io)
{
	struct prefix_op *op = io->done;

	if (op != NULL)
		io->done = op->next;
	else
		(void)!read(io->bell, &io->rung, sizeof(io->rung));
	return op;
}

struct prefix_op *prefix_io_next(struct prefix_io *io)
{
	struct io_uring_cqe *cqe;

	if (!io->uring)
		return next_plain(io);
	if (!io->listens) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);

		io_uring_prep_read(sqe, io->bell, &io->rung, sizeof(io->rung), 0);
		io_uring_sqe_set_data(sqe, NULL);
		io->listens = true;
	}
	/* EAGAIN and EBUSY: the kernel is short of something; what is left is submitted the next
	 * time. */
	(void)io_uring_submit(&io->ring);
	if (io_uring_wait_cqe(&io->ring, &cqe) != 0)
		return NULL;
	struct prefix_op *op = io_uring_cqe_get_data(cqe);
	if (op != NULL)
		op->result = cqe->res;
	else
		io->listens = false;
	io_uring_cqe_seen(&io->ring, cqe);
	return op;
}
