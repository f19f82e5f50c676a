/*
 * Asynchronous reads of the model file: io_uring with registered files and buffers, or threads that
 * call preadv; past the page cache (O_DIRECT) if the file system allows it. Used by one thread, the
 * transfer worker; reader_rate and reader_link by any.
 *
 * A request may be of any length. The reader cuts it into pieces. At most `depth` pieces are in the
 * kernel; the rest is held back, ordered by priority and then by time. So a demand overtakes every
 * prefetch that is not in the kernel yet, a prefetch can be promoted (reader_promote), and a
 * request that is no longer wanted can be cancelled (reader_cancel). Short requests that are
 * neighbours in the file become one read into several places. Prefetches leave a part of the depth
 * free for demands.
 *
 * The length of a piece and their number are measured when the reader is opened (reader_tune.c),
 * unless given.
 *
 * A split model is several files. A request's offset counts over all of them, as in gguf.h, and its
 * bytes lie in one of them.
 *
 * Offsets, lengths and targets are multiples of SLOTS_PAGE, as O_DIRECT requires. Interrupted and
 * short reads continue where they stopped. A read that fails for a reason that may pass is repeated
 * a few times, after pauses in which everything else is read. A read that fails for good is
 * reported with its offset.
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

/* In the order of service. */
enum read_priority { READ_DEMAND, READ_PREFETCH, READ_PRELOAD, READ_PRIORITIES };

struct read_request {
	/* Set by the caller. The file may end after `need` bytes. */
	uint64_t offset; /* counted over all parts */
	size_t bytes, need;
	unsigned char *to;
	void *owner;
	enum read_priority priority; /* reader_promote changes it */
	/* The result: 0, -ECANCELED, -ESTALE (the file has become shorter) or another -errno. */
	int status;
	/* Used by the reader: */
	unsigned file; /* index of the part */
	uint64_t position; /* offset in that file */
	size_t issued; /* bytes from the start that have become pieces */
	unsigned pieces; /* its pieces that are in the kernel */
	bool held; /* it is in a list of held-back requests */
	bool alone; /* it must not be merged again, because it was part of a read that failed */
	struct read_request *next, *before;
};

/* One file, or one part of a split model. base: where it begins in the offsets, ascending, the
 * first is 0. part: an open file, which is read whatever has its name by now; NULL: path is opened.
 */
struct reader_file {
	const char *path;
	uint64_t base;
	const struct gguf_part *part;
};

struct reader_options {
	enum io_choice io;
	enum auto_choice direct;
	unsigned depth; /* pieces in the kernel; 0: measured */
	size_t read_bytes; /* of a piece, a multiple of the page size; 0: measured */
	/* replaces those that io selects, for tests; usually NULL */
	const struct reader_io_ops *ops;
	uint64_t pause_ns; /* the first pause between two tries; 0: the usual; for tests */
};

/* files: [n_files], copied. Takes up to a third of a second when the depth or the piece must be
 * measured. */
int reader_open(const struct reader_file *files, unsigned n_files,
	const struct reader_options *options, struct reader **out, struct error *err);
/* Cancels everything that is held back or would be repeated, and waits for what is in the kernel.
 */
void reader_close(struct reader **reader);

/* Tells the memory that most requests read to: n slots of slot_bytes each. If the kernel allows it,
 * a slot's memory is registered, and so locked in memory, at the first read into it; this saves
 * looking up its pages for every read. If the kernel refuses (RLIMIT_MEMLOCK), the log says so
 * once. More than 16384 slots are not registered. Call while nothing is in flight; n 0: no slots
 * from now on. */
void reader_slots(struct reader *reader, unsigned char *slots, size_t slot_bytes, uint32_t n);
/* Call before the pages of a slot are returned to the kernel (by punching a hole, or changing the
 * mapping), while no request to it is in flight. Otherwise reads into a registered slot would go to
 * pages that nobody else sees. */
void reader_forget_slot(struct reader *reader, uint32_t slot);

/* How it reads now: "io_uring O_DIRECT", "pread". Valid as long as the reader. Any thread. */
const char *reader_link(const struct reader *reader);
/* Most pieces in the kernel; bytes of a piece. */
unsigned reader_depth(const struct reader *reader);
size_t reader_piece_bytes(const struct reader *reader);
/* Bytes per second that the disk gives while it always has work: measured when the reader was
 * opened, and updated whenever the disk has work. 0: unknown. */
double reader_rate(const struct reader *reader);

/* Requests that the reader has now; and how many of these wait without a piece in the kernel. */
unsigned reader_busy(const struct reader *reader);
unsigned reader_held(const struct reader *reader);

/* The request stays the reader's until reader_wait or reader_cancel returns it. */
void reader_submit(struct reader *reader, struct read_request *request);
/* What is still held back of the request continues with this priority, behind requests that have it
 * already. */
void reader_promote(
	struct reader *reader, struct read_request *request, enum read_priority priority);
/* True: nothing of it was in the kernel, and it is the caller's again. False: reader_wait will
 * return it, and what was held back of it will not be read (then with status -ECANCELED). */
bool reader_cancel(struct reader *reader, struct read_request *request);
/* Returns up to max finished requests; waits at most timeout_ns for the first. 0 when nothing is in
 * flight. */
unsigned reader_wait(
	struct reader *reader, uint64_t timeout_ns, struct read_request **finished, unsigned max);
/* The same, but it also returns, with what there is, when the bell is no longer as seen. It must
 * always be the same bell, because the kernel may keep listening to it between two calls. If this
 * thread cannot sleep on both (Linux before 6.7; no io_uring), it checks the bell every 300 us. */
unsigned reader_wait_or_ring(struct reader *reader, const struct doorbell_seen *seen,
	uint64_t timeout_ns, struct read_request **finished, unsigned max);

/* Call from time to time, also when nothing is in flight: logs how many reads failed in addition to
 * those that were logged. */
void reader_tell(struct reader *reader, uint64_t now_ns);

/* Checks that every file is at least as long as it was. -ESTALE: one is not, and what was and will
 * be read need not fit together. */
int reader_check(const struct reader *reader, struct error *err);
