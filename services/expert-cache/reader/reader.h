/*
 * Asynchronous reads of the model file: io_uring with registered files and buffers, or threads that
 * call preadv; past the page cache (O_DIRECT) where the file system allows it. Used by one thread,
 * the transfer worker; reader_rate by any.
 *
 * A request may be of any length. The reader cuts it into pieces, has at most `depth` of them in
 * the kernel and holds the rest back, ordered by priority and then by time: so a demand overtakes
 * every prefetch that is not in the kernel yet, a prefetch can be promoted (reader_promote) and
 * what is no longer wanted be taken back (reader_cancel). Short requests that are neighbours in the
 * file go as one read into several places. Prefetches leave a part of the depth free for demands.
 *
 * How long a piece is and how many there are at once is measured when the reader is opened
 * (reader_tune.c), unless given.
 *
 * A split model is several files; a request's offset counts over all of them as gguf.h says, and
 * lies with its bytes in one.
 *
 * Offsets, lengths and targets are multiples of SLOTS_PAGE, as O_DIRECT wants them. Interrupted and
 * short reads go on where they stopped. What fails for a reason that may pass is tried again a few
 * times, after pauses in which everything else is read; what cannot be read is reported with its
 * offset.
 */
#pragma once

#include "services/knobs/cache.h"
#include "shared/base/error.h"
#include "shared/ipc/doorbell.h"
#include "shared/model/gguf/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader;
struct reader_io_ops;

/* In the order in which they are served. */
enum read_priority { READ_DEMAND, READ_PREFETCH, READ_PRELOAD, READ_PRIORITIES };

struct read_request {
	/* The caller's. The file may end after `need` bytes. */
	uint64_t offset; /* over all parts */
	size_t bytes, need;
	unsigned char *to;
	void *owner;
	enum read_priority priority; /* reader_promote changes it */
	/* When done: 0, -ECANCELED, -ESTALE (the file has become shorter) or another -errno. */
	int status;
	/* The reader's. */
	unsigned file; /* the part */
	uint64_t position; /* in it */
	size_t issued; /* bytes from the start that went into pieces */
	unsigned pieces; /* of it in the kernel */
	bool held; /* in a list of held-back requests */
	bool alone; /* not to be merged again: it was part of a read that failed */
	struct read_request *next, *before;
};

/* One file, or one part of a split model; base: where it begins in the offsets, ascending, the
 * first 0; part: an open file, which is read whatever its name stands for by now, or NULL: the path is opened. */
struct reader_file {
	const char *path;
	uint64_t base;
	const struct gguf_part *part;
};

struct reader_options {
	enum io_choice io;
	enum auto_choice direct;
	unsigned depth; /* pieces in the kernel; 0: measured */
	size_t read_bytes; /* of a piece, whole pages of it; 0: measured */
	const struct reader_io_ops *ops; /* instead of those io says: tests; mostly NULL */
	uint64_t pause_ns; /* the first between two tries, 0: as usual; tests */
};

/* files: [n_files], copied. With a depth or piece to be measured this takes up to a third of a second. */
int reader_open(const struct reader_file *files, unsigned n_files,
	const struct reader_options *options, struct reader **out, struct error *err);
/* Takes back what is held or would be tried again, and waits for what is in the kernel. */
void reader_close(struct reader **reader);

/* The memory that most requests read to: n slots of slot_bytes each. Where the kernel allows it
 * a slot's memory is registered, and thereby kept in memory, at the first read into it; that
 * saves looking its pages up for every read. Where it does not (RLIMIT_MEMLOCK) the log says so
 * once; more than 16384 slots are not registered. Call while nothing is in flight; n 0: none
 * from now on. */
void reader_slots(struct reader *reader, unsigned char *slots, size_t slot_bytes, uint32_t n);
/* To be called before the pages of a slot are given back to the kernel (a hole punched, the
 * mapping changed), when no request to it is in flight: a registered slot would go on to be read
 * into pages that nobody else sees. */
void reader_forget_slot(struct reader *reader, uint32_t slot);

/* "io_uring O_DIRECT", "pread": how it reads now. A constant, or valid as long as the reader. Any thread. */
const char *reader_link(const struct reader *reader);
/* Pieces in the kernel at most, bytes of a piece. */
unsigned reader_depth(const struct reader *reader);
size_t reader_piece_bytes(const struct reader *reader);
/* Bytes per second that the disk gives when it always has work: measured when the reader was opened, then followed
 * whenever it has. 0: not known yet. */
double reader_rate(const struct reader *reader);

/* Requests that are the reader's now; how many of them wait without a piece in the kernel. */
unsigned reader_busy(const struct reader *reader);
unsigned reader_held(const struct reader *reader);

/* The request stays the reader's until reader_wait or reader_cancel returns it. */
void reader_submit(struct reader *reader, struct read_request *request);
/* What of a request is still held back goes on with this priority, behind those that have it already. */
void reader_promote(
	struct reader *reader, struct read_request *request, enum read_priority priority);
/* True: nothing of it is in the kernel, and it is the caller's again. False: reader_wait will
 * return it, and what was held back of it will not be read (status -ECANCELED then). */
bool reader_cancel(struct reader *reader, struct read_request *request);
/* Up to max finished requests; waits at most timeout_ns for the first. 0 with nothing in flight. */
unsigned reader_wait(
	struct reader *reader, uint64_t timeout_ns, struct read_request **finished, unsigned max);
/* The same; it also returns, with what there is, when the bell is not as seen any more: always
 * the same bell, which the kernel may go on listening to between two calls. Where it cannot
 * sleep on both (Linux before 6.7; no io_uring) this thread looks at the bell every 300 us. */
unsigned reader_wait_or_ring(struct reader *reader, const struct doorbell_seen *seen,
	uint64_t timeout_ns, struct read_request **finished, unsigned max);

/* To be called now and then, with nothing in flight too: logs how many reads failed beyond those that were logged. */
void reader_tell(struct reader *reader, uint64_t now_ns);

/* Whether every file is at least as long as it was. -ESTALE: it is not, and what was read and will be read need not fit
 * together. */
int reader_check(const struct reader *reader, struct error *err);
