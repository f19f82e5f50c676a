/*
 * Pages of the KV cache on disk, and states of recurrent layers after some of them: a directory of prefix files (prefix_file.h), an index of them in
 * memory (prefix_index.h), and a thread that writes and reads them. The engine's thread gives pages
 * away and asks for pages in buffers, of which there is a fixed number. It never waits: without a
 * free buffer a page is not written now. What cannot be written or read, or is not what was written,
 * is logged and dropped; its tokens are then computed.
 *
 * One process uses a directory at a time (a lock file in it). A successor waits for the lock, and
 * until then finds nothing.
 */
#pragma once

#include "services/verifier/prefixes/prefix_file.h"

#include <stdatomic.h>
#include <stdbool.h>

enum {
	PREFIX_BUFFERS = 12,
	PREFIX_WRITES = 4, /* buffers that are being written at most */
};

/* For the status; any thread. */
struct prefix_disk_counts {
	_Atomic uint64_t bytes, files; /* on disk now */
	_Atomic uint64_t written, read, failed; /* files since the start */
};

struct prefix_disk_options {
	const char *dir;
	uint64_t budget; /* bytes of all files together */
	uint64_t content_bytes; /* of a page */
	struct prefix_shape shape;
	/* Called by the thread when a buffer was read, or is free again. */
	void (*wake)(void *arg);
	void *arg;
	struct prefix_disk_counts *counts; /* outlives the disk; the next one goes on with it */
};

struct prefix_buffer;
struct prefix_disk;

/* Memory for buffers, whatever is on disk. */
uint64_t prefix_disk_memory(uint64_t content_bytes);
/* Makes the directory if only its last part is missing. -errno with the reason; -EINVAL: the budget
 * has no room for one page. */
int prefix_disk_open(
	const struct prefix_disk_options *options, struct prefix_disk **out, struct error *err);
/* Waits for the writes that were given. */
void prefix_disk_close(struct prefix_disk **disk);

/* The engine's thread, from here on. */

/* The id of the complete file with these PREFIX_TOKENS tokens behind the page `before` (0: they are
 * the first ones); 0: there is none. */
uint64_t prefix_disk_find(
	struct prefix_disk *disk, uint64_t before, uint64_t domain, const int32_t *tokens);
/* Whether there is a file of that id, complete or not. */
bool prefix_disk_has(struct prefix_disk *disk, uint64_t id);

/* A buffer for a page that is to be written; NULL: none is free, or the disk does not take any now. */
struct prefix_buffer *prefix_disk_writes(struct prefix_disk *disk);
/* Where the page's content_bytes go. */
void *prefix_buffer_content(struct prefix_buffer *buffer);
/* Writes the buffer, and takes it back; header: before, domain, tokens and order. state: the content of
 * a state, shape.state_bytes, which stays as it is while prefix_disk_pending; NULL: it is a page.
 * Returns the id that the file has got; 0: it is not written. */
uint64_t prefix_disk_write(struct prefix_disk *disk, struct prefix_buffer *buffer,
	const struct prefix_header *header, void *state);
/* True while the file of this id is being written. */
bool prefix_disk_pending(struct prefix_disk *disk, uint64_t id);

/* Begins to read a file; NULL: no buffer is free. state: where the content of a state goes, until
 * prefix_disk_arrived says that it is there; NULL: it is a page. */
struct prefix_buffer *prefix_disk_read(struct prefix_disk *disk, uint64_t id, void *state);
/* 0: it is there, and *header is what it says. -EINPROGRESS: not yet. Otherwise: it cannot be had. */
int prefix_disk_arrived(const struct prefix_buffer *buffer, const struct prefix_header **header);
/* Gives a buffer back that was read, or is being read. */
void prefix_disk_give(struct prefix_disk *disk, struct prefix_buffer **buffer);
/* True while files are being written. */
bool prefix_disk_busy(struct prefix_disk *disk);
