#include "services/expert-cache/reader/reader_io.h"

#include "shared/base/log.h"
#include "shared/base/units.h"

#include <assert.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

/* The kernel's table of registered buffers has at most this many entries (IORING_MAX_REG_BUFFERS),
 * each of at most 1 GiB. */
#define BUFFERS_MAX 16384u
#define BUFFER_BYTES_MAX (1ull << 30)

/* From linux/io_uring.h and linux/futex.h since 6.7; those of Debian 12 are older. */
enum { OP_FUTEX_WAIT = 51, FUTEX_OF_32_BITS = 2 };

struct uring {
	struct io_uring ring;
	unsigned unsubmitted, n_files;
	bool hears; /* the kernel has OP_FUTEX_WAIT */
	bool listens; /* such a wait is queued */
	/* Slots as registered buffers: each is registered when it is first read into. */
	unsigned char *slots;
	uint64_t slot_bytes;
	unsigned n_slots; /* 0: none is registered */
	bool refused; /* no more can be registered */
	bool *registered; /* [n_slots] */
};

/* Submits an empty operation and waits for it. */
static int turn_round(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	io_uring_prep_nop(io_uring_get_sqe(ring));
	int status = io_uring_submit(ring);
	if (status != 1)
		return status < 0 ? status : -EAGAIN;
	status = io_uring_wait_cqe(ring, &cqe);
	if (status == 0)
		io_uring_cqe_seen(ring, cqe);
	return status;
}

static int uring_open(
	const int *fds, unsigned n_files, unsigned depth, void **io, struct error *err)
{
	struct uring *uring = calloc(1, sizeof(*uring));
	if (uring == NULL)
		return error_set(err, ENOMEM, "no memory for io_uring");
	/* One more, for the wait on a bell. */
	int status = io_uring_queue_init(depth + 1, &uring->ring, 0);
	if (status < 0) {
		free(uring);
		return error_set(err, -status, "io_uring: %s", strerror(-status));
	}
	/* Registered files save the kernel a look-up and two atomics per read. */
	status = io_uring_register_files(
		&uring->ring, fds, fds[n_files] >= 0 ? 2 * n_files : n_files);
	const char *what = "registering the file";
	/* In some sandboxes a process may create a ring but not use it. */
	if (status >= 0) {
		what = "using it";
		status = turn_round(&uring->ring);
	}
	if (status < 0) {
		io_uring_queue_exit(&uring->ring);
		free(uring);
		return error_set(err, -status, "io_uring: %s: %s", what, strerror(-status));
	}
	uring->n_files = n_files;
	struct io_uring_probe *probe = io_uring_get_probe_ring(&uring->ring);
	uring->hears = probe != NULL && io_uring_opcode_supported(probe, OP_FUTEX_WAIT);
	io_uring_free_probe(probe);
	*io = uring;
	return 0;
}

static void uring_close(void *io)
{
	struct uring *uring = io;
	io_uring_queue_exit(&uring->ring);
	free(uring->registered);
	free(uring);
}

/* ---- Registered buffers. ---- */

static void uring_slots(void *io, unsigned char *slots, size_t slot_bytes, uint32_t n)
{
	struct uring *uring = io;
	if (uring->registered != NULL)
		io_uring_unregister_buffers(&uring->ring);
	free(uring->registered);
	uring->registered = NULL;
	uring->n_slots = 0;
	if (n == 0 || n > BUFFERS_MAX || slot_bytes > BUFFER_BYTES_MAX)
		return;
	uring->registered = calloc(n, sizeof(*uring->registered));
	/* A kernel before 5.19 has no table that can be filled piece by piece; reads work without.
	 */
	if (uring->registered == NULL || io_uring_register_buffers_sparse(&uring->ring, n) != 0) {
		free(uring->registered);
		uring->registered = NULL;
		return;
	}
	uring->slots = slots;
	uring->slot_bytes = slot_bytes;
	uring->n_slots = n;
	uring->refused = false;
}

static int update_buffer(struct uring *uring, unsigned i, bool there)
{
	struct iovec iov = {0};
	__u64 tag = 0;
	if (there)
		iov = (struct iovec){uring->slots + i * uring->slot_bytes, uring->slot_bytes};
	int n = io_uring_register_buffers_update_tag(&uring->ring, i, &iov, &tag, 1);
	return n < 0 ? n : 0;
}

static void uring_forget_slot(void *io, uint32_t slot)
{
	struct uring *uring = io;
	if (slot >= uring->n_slots || !uring->registered[slot])
		return;
	update_buffer(uring, slot, false);
	uring->registered[slot] = false;
	uring->refused = false;
}

static void say_refused(const struct uring *uring, int code)
{
	unsigned n = 0;
	for (unsigned i = 0; i < uring->n_slots; i++)
		n += uring->registered[i];
	log_notice("io_uring: %s of %s of slots could be registered (%s%s): reading into "
		   "the others all the same, for a little more CPU time",
		UNITS_SIZE(n * uring->slot_bytes), UNITS_SIZE(uring->n_slots * uring->slot_bytes),
		strerror(code), code == ENOMEM ? ", see RLIMIT_MEMLOCK" : "");
}

/* The registered buffer that contains all of iov, or -1. */
static int buffer_of(struct uring *uring, const struct iovec *iov)
{
	uintptr_t at = (uintptr_t)iov->iov_base - (uintptr_t)uring->slots;
	if (uring->n_slots == 0 || at >= uring->n_slots * uring->slot_bytes)
		return -1;
	unsigned i = (unsigned)(at / uring->slot_bytes);
	if (at + iov->iov_len > (i + 1) * uring->slot_bytes)
		return -1;
	if (!uring->registered[i]) {
		int status = uring->refused ? -ENOMEM : update_buffer(uring, i, true);
		if (status != 0 && !uring->refused)
			say_refused(uring, -status);
		uring->refused = status != 0;
		uring->registered[i] = status == 0;
	}
	return uring->registered[i] ? (int)i : -1;
}

/* ---- Reads. ---- */

static void submit(struct uring *uring)
{
	int n = io_uring_submit(&uring->ring);
	/* EAGAIN and EBUSY: the kernel is short of something; the next call tries again. */
	if (n > 0)
		uring->unsubmitted -= (unsigned)n;
}

/* The ring has room for everything that may be in flight, so there is an entry even while the
 * kernel takes none. */
static struct io_uring_sqe *next_sqe(struct uring *uring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
	assert(sqe != NULL);
	uring->unsubmitted++;
	return sqe;
}

static void uring_start(void *io, struct read_piece *piece)
{
	struct uring *uring = io;
	struct io_uring_sqe *sqe = next_sqe(uring);
	const struct iovec *iov = &piece->iov[piece->first_iov];
	unsigned n = piece->n_iov - piece->first_iov;
	int fd = (int)(piece->plain ? piece->file : uring->n_files + piece->file);
	int buffer = n == 1 ? buffer_of(uring, iov) : -1;
	if (buffer >= 0)
		io_uring_prep_read_fixed(
			sqe, fd, iov->iov_base, (unsigned)iov->iov_len, piece->position, buffer);
	else if (n == 1)
		io_uring_prep_read(sqe, fd, iov->iov_base, (unsigned)iov->iov_len, piece->position);
	else
		io_uring_prep_readv(sqe, fd, iov, n, piece->position);
	sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, piece);
}

/* ---- Waiting. ---- */

/* The next piece whose read has ended, or NULL. */
static struct read_piece *take_ended(struct uring *uring)
{
	struct io_uring_cqe *cqe;
	while (io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
		struct read_piece *piece = io_uring_cqe_get_data(cqe);
		int result = cqe->res;
		io_uring_cqe_seen(&uring->ring, cqe);
		if (piece != NULL) {
			piece->result = result;
			return piece;
		}
		/* The futex wait ended: it was woken, or the bell had been rung before it was
		 * queued. */
		uring->listens = false;
		uring->hears = result == 0 || result == -EAGAIN;
	}
	return NULL;
}

static void wait_for_any(struct uring *uring, uint64_t timeout_ns)
{
	struct io_uring_cqe *cqe;
	struct __kernel_timespec timeout = {
		.tv_sec = (long long)(timeout_ns / 1000000000),
		.tv_nsec = (long long)(timeout_ns % 1000000000),
	};
	(void)io_uring_wait_cqe_timeout(&uring->ring, &cqe, &timeout);
}

static void listen_for(struct uring *uring, const struct doorbell_seen *seen)
{
	struct io_uring_sqe *sqe = next_sqe(uring);
	io_uring_prep_rw(
		OP_FUTEX_WAIT, sqe, FUTEX_OF_32_BITS, &seen->bell->sequence, 0, seen->sequence);
	sqe->addr3 = 0xffffffff; /* woken by any waker */
	io_uring_sqe_set_data(sqe, NULL);
	uring->listens = true;
	submit(uring);
}

/* A queued wait stays until it is woken, over many calls; a ringer wakes it only while we are
 * counted as asleep. */
static void wait_for_any_or_ring(
	struct uring *uring, uint64_t timeout_ns, const struct doorbell_seen *seen)
{
	if (!doorbell_lie_down(seen->bell, seen->sequence))
		return;
	if (!uring->listens)
		listen_for(uring, seen);
	/* An entry that the kernel has not taken listens to nothing. */
	wait_for_any(uring, uring->unsubmitted == 0 ? timeout_ns : reader_polled(timeout_ns));
	doorbell_get_up(seen->bell);
}

static struct read_piece *uring_next(
	void *io, uint64_t timeout_ns, const struct doorbell_seen *seen)
{
	struct uring *uring = io;
	if (uring->unsubmitted > 0)
		submit(uring);
	struct read_piece *piece = take_ended(uring);
	if (piece != NULL || timeout_ns == 0)
		return piece;
	if (seen != NULL && uring->hears)
		wait_for_any_or_ring(uring, timeout_ns, seen);
	else
		wait_for_any(uring, seen != NULL ? reader_polled(timeout_ns) : timeout_ns);
	return take_ended(uring);
}

const struct reader_io_ops reader_io_uring = {
	.name = "io_uring",
	.depth_max = READER_DEPTH_MAX,
	.open = uring_open,
	.close = uring_close,
	.slots = uring_slots,
	.forget_slot = uring_forget_slot,
	.start = uring_start,
	.next = uring_next,
};
