/* Single reads, and how they are made: what reader_queue.c, reader_uring.c, reader_pread.c and tests share. */
#pragma once

#include "services/expert-cache/reader/reader.h"

#include <sys/uio.h>

enum { PIECE_REQUESTS = 16 };
/* A bell is looked at so often by what cannot sleep on it and on reads. With 12 layers of the
 * 30B shape and room for 33% the worker takes 25 ms of CPU time of a token of 120 ms with 100
 * us, 15 ms with 300 us, and 8 ms where it can sleep on both: going to sleep and waking costs
 * more than the look. With 1 ms hints were seen too late. */
#define READER_POLL_NS 300000ull
static inline uint64_t reader_polled(uint64_t timeout_ns)
{
	return timeout_ns < READER_POLL_NS ? timeout_ns : READER_POLL_NS;
}

/* One read: of a stretch of one request, or of several short requests that are neighbours. */
struct read_piece {
	unsigned file;
	bool plain; /* through the page cache */
	uint64_t position; /* of the byte that comes next */
	unsigned n_iov, first_iov; /* what is left to read is iov[first_iov..n_iov - 1] */
	struct iovec iov[PIECE_REQUESTS];
	long result; /* of the last read: bytes or -errno */
	struct read_piece *next; /* of io while it has the piece, of `paused` later */
	/* reader_queue.c's. */
	uint64_t again_ns; /* when it is read again, if it is paused */
	size_t done, need; /* bytes; the file may end after need */
	unsigned retries, n_requests;
	struct read_request *request[PIECE_REQUESTS];
	bool shares
		[PIECE_REQUESTS]; /* request[i] begins with the page that request[i - 1] ends with: copied */
};

struct reader_io_ops {
	const char *name;
	unsigned depth_max; /* more pieces at once bring nothing */
	/* fds: [n_files] through the page cache, then [n_files] with O_DIRECT, or -1 each; they outlive io. */
	int (*open)(const int *fds, unsigned n_files, unsigned depth, void **io, struct error *err);
	void (*close)(void *io); /* nothing is in flight */
	/* As reader_slots and reader_forget_slot say; NULL: io has no use for them. */
	void (*slots)(void *io, unsigned char *slots, size_t slot_bytes, uint32_t n);
	void (*forget_slot)(void *io, uint32_t slot);
	/* One read of what is left of the piece; the result goes to result. */
	void (*start)(void *io, struct read_piece *piece);
	/* Makes started reads go, waits, returns a piece whose read has ended, or NULL at the
	 * timeout or before it. seen, if not NULL: also when its bell is rung, or where that
	 * ends no wait, after READER_POLL_NS. */
	struct read_piece *(*next)(void *io, uint64_t timeout_ns, const struct doorbell_seen *seen);
};
extern const struct reader_io_ops reader_io_uring, reader_io_pread;
