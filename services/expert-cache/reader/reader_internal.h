/* What reader.c (files), reader_queue.c (requests) and reader_tune.c (measuring) share; nobody else includes it. */
#pragma once

#include "services/expert-cache/reader/reader_io.h"

#include <stdatomic.h>

struct file {
	char *path;
	uint64_t base;
	struct gguf_stamp stamp;
};

struct held {
	struct read_request *first, *last;
};

struct reader {
	const struct reader_io_ops *ops;
	void *io;
	unsigned n_files;
	struct file *files; /* [n_files] */
	int *fds; /* [n_files] through the page cache, [n_files] O_DIRECT or -1 */
	atomic_bool refused_direct; /* a read said EINVAL: the file system only opens so */
	char link[32]; /* of direct reads */

	/* Pieces. prefetch_depth: how many there may be when the next is not a demand's. */
	unsigned depth, prefetch_depth, depth_max;
	size_t read_bytes;
	struct read_piece *pieces; /* [2 * depth_max] */
	unsigned n_started; /* in the kernel */
	unsigned n_idle;
	struct read_piece **idle; /* [n_idle] of those that nobody needs */
	/* Those that are tried again later, each at its again_ns. */
	struct read_piece *paused;
	uint64_t pause_ns; /* the first; each further one is twice as long */
	bool closing; /* nothing is tried again */

	/* Requests. */
	struct held held[READ_PRIORITIES];
	struct read_request *finished, **finished_last;
	unsigned busy, n_held;

	uint64_t failures, window_ns; /* failures since window_ns */
	const struct file *failed; /* the last of them */

	/* The rate over the time in which there was always enough to do, since rate_ns (0: there
	 * is not); rate_bytes came. */
	_Atomic uint64_t rate;
	uint64_t rate_ns, rate_bytes;
};

/* Whether reads go past the page cache. Any thread. */
static inline bool reader_is_direct(const struct reader *reader)
{
	return reader->fds[reader->n_files] >= 0 &&
	       !atomic_load_explicit(&reader->refused_direct, memory_order_relaxed);
}
/* Whether to log one more failure. */
bool reader_worth_a_line(struct reader *reader, const struct file *file);
/* Ends what is paused as it failed. */
void reader_give_up(struct reader *reader);
/* Measures depth and read_bytes where they are 0, and the rate. */
int reader_tune(struct reader *reader, unsigned depth, size_t read_bytes, struct error *err);
