/* What reader.c (files), reader_queue.c (requests) and reader_tune.c (measuring) share; no other
 * file includes it. */
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
	int *fds; /* [n_files] through the page cache, then [n_files] with O_DIRECT or -1 */
	/* a read gave EINVAL: the file system allows O_DIRECT only in open */
	atomic_bool refused_direct;
	char link[32]; /* text for direct reads */

	/* Pieces. prefetch_depth: how many there may be if the next is not for a demand. */
	unsigned depth, prefetch_depth, depth_max;
	size_t read_bytes;
	struct read_piece *pieces; /* [2 * depth_max] */
	unsigned n_started; /* number in the kernel */
	unsigned n_idle;
	struct read_piece **idle; /* [n_idle] unused pieces */
	/* Pieces that will be repeated, each at its again_ns. */
	struct read_piece *paused;
	uint64_t pause_ns; /* the first pause; each further one is twice as long */
	bool closing; /* nothing is repeated any more */

	/* Requests: */
	struct held held[READ_PRIORITIES];
	struct read_request *finished, **finished_last;
	unsigned busy, n_held;

	uint64_t failures, window_ns; /* failures: since window_ns */
	const struct file *failed; /* the file of the last failure */

	/* The rate during the present time of continuous work, which began at rate_ns (0: there is
	 * none); rate_bytes: bytes that have arrived in it. */
	_Atomic uint64_t rate;
	uint64_t rate_ns, rate_bytes;
};

/* True when reads go past the page cache. Any thread. */
static inline bool reader_is_direct(const struct reader *reader)
{
	return reader->fds[reader->n_files] >= 0 &&
	       !atomic_load_explicit(&reader->refused_direct, memory_order_relaxed);
}
/* True when one more failure should be logged. */
bool reader_worth_a_line(struct reader *reader, const struct file *file);
/* Ends paused pieces with their failures. */
void reader_give_up(struct reader *reader);
/* Measures depth and read_bytes where they are 0, and the rate. */
int reader_tune(struct reader *reader, unsigned depth, size_t read_bytes, struct error *err);
