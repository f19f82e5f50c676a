#include "services/expert-cache/reader.h"

#include <liburing.h>
#include <stdlib.h>
#include <string.h>

/* One read is at most this long: its length is 32 bits in a submission. */
#define READ_BYTES_MAX ((size_t)1 << 30)

struct uring {
	struct io_uring ring;
	unsigned unsubmitted, n_files;
};

static int uring_open(
	const int *fds, unsigned n_files, unsigned depth, void **io, struct error *err)
{
	struct uring *uring = calloc(1, sizeof(*uring));
	if (uring == NULL)
		return error_set(err, ENOMEM, "no memory for io_uring");
	int status = io_uring_queue_init(depth, &uring->ring, 0);
	if (status < 0) {
		free(uring);
		return error_set(err, -status, "io_uring: %s", strerror(-status));
	}
	/* Registered files spare the kernel a look-up and two atomics per read. */
	status = io_uring_register_files(
		&uring->ring, fds, fds[n_files] >= 0 ? 2 * n_files : n_files);
	if (status < 0) {
		io_uring_queue_exit(&uring->ring);
		free(uring);
		return error_set(
			err, -status, "io_uring: registering the file: %s", strerror(-status));
	}
	uring->n_files = n_files;
	*io = uring;
	return 0;
}

static void uring_close(void *io)
{
	struct uring *uring = io;
	io_uring_queue_exit(&uring->ring);
	free(uring);
}

static void uring_start(void *io, struct read_request *request)
{
	struct uring *uring = io;
	/* The ring holds `depth` and no more are in flight: one that is not there now is after a submission. */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
	while (sqe == NULL) {
		io_uring_submit(&uring->ring);
		sqe = io_uring_get_sqe(&uring->ring);
	}
	size_t bytes = request->bytes - request->done;
	if (bytes > READ_BYTES_MAX)
		bytes = READ_BYTES_MAX;
	unsigned fd = request->plain ? request->file : uring->n_files + request->file;
	io_uring_prep_read(sqe, (int)fd, request->to + request->done, (unsigned)bytes,
		request->position + request->done);
	sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, request);
	uring->unsubmitted++;
}

static struct read_request *uring_next(void *io, uint64_t timeout_ns)
{
	struct uring *uring = io;
	struct io_uring_cqe *cqe = NULL;
	struct __kernel_timespec timeout = {
		.tv_sec = (long long)(timeout_ns / 1000000000),
		.tv_nsec = (long long)(timeout_ns % 1000000000),
	};
	if (uring->unsubmitted > 0) {
		int n = io_uring_submit(&uring->ring);
		/* EAGAIN and EBUSY: the kernel is short of something; the next call tries again. */
		if (n > 0)
			uring->unsubmitted -= (unsigned)n;
	}
	if (io_uring_peek_cqe(&uring->ring, &cqe) != 0) {
		if (timeout_ns == 0 || io_uring_wait_cqe_timeout(&uring->ring, &cqe, &timeout) != 0)
			return NULL;
	}
	struct read_request *request = io_uring_cqe_get_data(cqe);
	request->result = cqe->res;
	io_uring_cqe_seen(&uring->ring, cqe);
	return request;
}

const struct reader_io_ops reader_io_uring = {
	.name = "io_uring",
	.open = uring_open,
	.close = uring_close,
	.start = uring_start,
	.next = uring_next,
};
