/* What prefix_disk.c (the thread, and what the engine asks of it) and prefix_scan.c (what is in the
 * directory at the start) share. No other file includes it. */
#pragma once

#include "services/verifier/prefixes/prefix_disk.h"
#include "services/verifier/prefixes/prefix_index.h"
#include "services/verifier/prefixes/prefix_io.h"

#include <pthread.h>

#define PREFIX_END ".kv"
#define PREFIX_PART ".part"
enum { PREFIX_NAME_BYTES = 32, UNLINKS = 64 };
_Static_assert((int)PREFIX_BUFFERS <= (int)PREFIX_IO_DEPTH, "each buffer has its step in the ring");

enum buffer_state {
	BUFFER_FREE,
	BUFFER_GIVEN, /* the thread's */
	BUFFER_READ, /* the engine's */
};

struct prefix_buffer {
	unsigned char *bytes; /* a header, then the content of a page */
	void *outside; /* the content of a state; NULL: it is a page */
	bool content_begun; /* of a state: the header is done; the thread's */
	struct prefix_header header;
	struct prefix_op op;
	enum buffer_state state; /* under the lock */
	bool dropped; /* the engine does not want it any more; under the lock */
	_Atomic int rc; /* of a read */
};

/* A file of another model. */
struct prefix_other {
	uint64_t id, bytes;
};

struct prefix_disk {
	char *path;
	int dir, bell, lock_fd;
	uint64_t content_bytes;
	struct prefix_shape shape;
	void (*wake)(void *arg);
	void *arg;
	unsigned char *memory; /* of the buffers */
	struct prefix_io *io; /* the thread's */
	uint32_t n_flying; /* buffers that the thread works on; the thread's */
	pthread_t thread;
	bool started;
	struct prefix_disk_counts *counts;

	pthread_mutex_t lock; /* of all that follows; never held during a read or write */
	struct prefix_index index;
	struct prefix_buffer buffers[PREFIX_BUFFERS];
	struct prefix_buffer *jobs[PREFIX_BUFFERS]; /* given, and not begun yet */
	uint32_t n_jobs, n_writing;
	uint64_t unlinks[UNLINKS]; /* ids of files that have given way */
	uint32_t n_unlinks;
	struct prefix_other *others;
	uint32_t n_others;
	uint64_t paused_ns; /* nothing is written until then */
	bool ready, stop;
};

void prefix_disk_name(uint64_t id, const char *end, char *out);
/* Under the lock. Lets files go until another one with so much content fits; false: nothing is left
 * to go. */
bool prefix_disk_make_room(struct prefix_disk *disk, uint64_t content_bytes);
/* The thread. Removes the files that have given way. */
void prefix_disk_unlink(struct prefix_disk *disk);
/* The thread, before the engine finds anything: fills the index. */
void prefix_disk_scan(struct prefix_disk *disk);
