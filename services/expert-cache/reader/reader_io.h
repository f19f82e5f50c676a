/* Single reads and how they are made: what reader_queue.c, reader_uring.c, reader_pread.c and tests
 * share. */
#pragma once

#include "services/expert-cache/reader/reader.h"

#include <sys/uio.h>

enum { PIECE_REQUESTS = 16 };
/* How often a bell is checked when the thread cannot sleep on it and on reads. With 12 layers of
 * the 30B shape and room for 33 %, the worker takes 25 ms of CPU time of a token of 120 ms with 100
 * us, 15 ms with 300 us, and 8 ms when it can sleep on both: going to sleep and waking up cost more
 * than the check. With 1 ms, hints were seen too late. */
#define READER_POLL_NS 300000ull
static inline uint64_t reader_polled(uint64_t timeout_ns)
{
	return timeout_ns < READER_POLL_NS ? timeout_ns : READER_POLL_NS;
}

/* One read: a stretch of one request, or several short requests that are neighbours. */
struct read_piece {
	unsigned file;
	bool plain; /* reads through the page cache */
	uint64_t position; /* of the next byte */
	unsigned n_iov, first_iov; /* iov[first_iov..n_iov - 1] is left to be read */
	struct iovec iov[PIECE_REQUESTS];
	long result; /* of the last read: bytes, or -errno */
	struct read_piece *next; /* used by io while it has the piece, later by `paused` */
	/* Used by reader_queue.c: */
	uint64_t again_ns; /* if paused: when it is read again */
	size_t done, need; /* bytes; the file may end after need */
	unsigned retries, n_requests;
	struct read_request *request[PIECE_REQUESTS];
	bool shares
		/* request[i] begins with the page that request[i - 1] ends with, which is copied */
		[PIECE_REQUESTS];
};

struct reader_io_ops {
	const char *name;
	unsigned depth_max; /* more pieces at a time bring nothing */
	/* fds: [n_files] through the page cache, then [n_files] with O_DIRECT, or -1 each. They
	 * must outlive io. */
	int (*open)(const int *fds, unsigned n_files, unsigned depth, void **io, struct error *err);
	void (*close)(void *io); /* call when nothing is in flight */
	/* As reader_slots and reader_forget_slot; NULL: io does not need them. */
	void (*slots)(void *io, unsigned char *slots, size_t slot_bytes, uint32_t n);
	void (*forget_slot)(void *io, uint32_t slot);
	/* Starts one read of what is left of the piece; its outcome goes to piece->result. */
	void (*start)(void *io, struct read_piece *piece);
	/* Submits started reads, waits, and returns a piece whose read has ended; NULL at the
	 * timeout or earlier. seen, if not NULL: also returns when its bell is rung, or, if that
	 * cannot end the wait, after READER_POLL_NS. */
	struct read_piece *(*next)(void *io, uint64_t timeout_ns, const struct doorbell_seen *seen);
};
extern const struct reader_io_ops reader_io_uring, reader_io_pread;
