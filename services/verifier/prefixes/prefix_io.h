/*
 * Reads and writes of prefix files: io_uring, or read(2) and write(2) where a sandbox forbids that.
 * Used by the thread of prefix_disk.c alone.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { PREFIX_IO_DEPTH = 16 };

/* What is left of one read or write. */
struct prefix_op {
	bool writes;
	int fd;
	unsigned char *at;
	size_t offset, bytes; /* in the file */
	long result; /* of the last step: bytes, or -errno */
	struct prefix_op *next;
};

struct prefix_io;

/* bell: an eventfd, which ends prefix_io_next. NULL: there is no memory. */
struct prefix_io *prefix_io_open(int bell);
void prefix_io_close(struct prefix_io **io); /* when nothing is in flight */
const char *prefix_io_name(const struct prefix_io *io);
/* Starts one step; at most PREFIX_IO_DEPTH are in flight. */
void prefix_io_start(struct prefix_io *io, struct prefix_op *op);
/* Waits for the end of a step, which it returns, or for the bell: NULL. */
struct prefix_op *prefix_io_next(struct prefix_io *io);
