/*
 * Asynchronous reads of the model file, up to a fixed number in flight: io_uring with a registered file, or threads
 * that call pread; past the page cache (O_DIRECT) where the file system allows it. Used by the transfer worker alone.
 *
 * A split model is several files; a request's offset counts over all of them as gguf.h says, and lies with its bytes in one.
 *
 * Offsets, lengths and targets are multiples of SLOTS_PAGE, as O_DIRECT wants them. Interrupted and short reads go on
 * where they stopped, failed ones are tried again a few times; what cannot be read is reported with its offset.
 */
#pragma once

#include "services/expert-cache/config.h"
#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct reader;

struct read_request {
	/* The caller's. The file may end after `need` bytes. */
	uint64_t offset; /* over all parts */
	size_t bytes, need;
	unsigned char *to;
	void *owner;
	int status; /* when done: 0 or -errno */
	/* The reader's. */
	unsigned file; /* the part */
	uint64_t position; /* in it */
	size_t done;
	unsigned retries;
	bool plain; /* through the page cache from now on */
	long result; /* of the last read: bytes or -errno */
	struct read_request *next;
};

/* One file, or one part of a split model; base: where it begins in the offsets, ascending, the first 0. */
struct reader_file {
	const char *path;
	uint64_t base;
};

/* files: [n_files], copied. */
int reader_open(const struct reader_file *files, unsigned n_files, enum io_choice io,
	enum auto_choice direct, unsigned depth, struct reader **out, struct error *err);
/* Waits for what is in flight. */
void reader_close(struct reader **reader);

/* "io_uring O_DIRECT", "pread": how it reads. */
const char *reader_link(const struct reader *reader);

/* Reads in flight, and how many may be. */
unsigned reader_busy(const struct reader *reader);
unsigned reader_depth(const struct reader *reader);

/* The caller keeps reader_busy at or under reader_depth. The request stays the reader's until reader_wait returns it. */
void reader_submit(struct reader *reader, struct read_request *request);
/* Up to max finished requests; waits at most timeout_ns for the first. 0 with nothing in flight. */
unsigned reader_wait(
	struct reader *reader, uint64_t timeout_ns, struct read_request **finished, unsigned max);

/* Whether every file is still the one that was opened, of the same size and time. */
int reader_check(const struct reader *reader, struct error *err);

/* How single reads are made; reader.c does the rest. */
struct reader_io_ops {
	const char *name;
	/* fds: [n_files] through the page cache, then [n_files] with O_DIRECT, or -1 each; they outlive io. */
	int (*open)(const int *fds, unsigned n_files, unsigned depth, void **io, struct error *err);
	void (*close)(void *io); /* nothing is in flight */
	/* One read of to + done from position + done of the file, bytes - done of them; the result goes to result. */
	void (*start)(void *io, struct read_request *request);
	/* Makes started reads go, waits, returns a request whose read has ended, or NULL at the timeout. */
	struct read_request *(*next)(void *io, uint64_t timeout_ns);
};
extern const struct reader_io_ops reader_io_uring, reader_io_pread;
