/*
 * Two threads that digest the model's files (shared/spec/file_digest.h).
 *
 * The first, of the least CPU and I/O priority, reads each block once, a block at a time: for a second without a pause, then
 * beside an idle link half of the time, beside a busy one a twentieth. When it has come to the end it reads a block a second again, which finds what
 * changed no time of the file: a write through a mapping, or a disk that forgets.
 * The second waits until something has touched the files, and then compares all blocks that have a digest, at once: a
 * verifier holds its answers back meanwhile.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/ipc/doorbell.h"
#include "shared/model/gguf/gguf.h"
#include "shared/spec/file_digest.h"

#include <pthread.h>
#include <stdatomic.h>

struct digest {
	const struct gguf *gguf;
	struct file_digest *table;
	uint64_t origin; /* the table's when we began */
	int *fds; /* [parts] with O_DIRECT, or -1 */
	bool (*busy)(void *arg); /* whether the link has something better to do; any thread */
	void *arg;
	uint64_t start_ns;
	pthread_mutex_t turn; /* one block, or one comparison of all */
	pthread_t threads[2];
	unsigned n_threads;
	atomic_bool stop;
	struct doorbell stopped;
	_Atomic uint64_t compared; /* how often all of them were found to be the same */
	_Atomic uint64_t n_compared; /* blocks, that last time */
	atomic_bool unreadable; /* a block could not be read: said once */
};

/* Borrows gguf and the region's payload, which file_digest_check has accepted. */
int digest_start(struct digest *digest, const struct gguf *gguf, struct file_digest *table,
	bool (*busy)(void *arg), void *arg, struct error *err);
void digest_stop(struct digest *digest); /* also of zeros */

/* -ESTALE with the place when a block is not what it was: the model is lost. Any thread. */
int digest_check(const struct digest *digest, struct error *err);
/* Whether every byte is known to be what it was when we began, in the state that gguf_state says. */
bool digest_proves(const struct digest *digest);
