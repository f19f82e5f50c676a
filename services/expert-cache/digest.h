/*
 * Two threads that make and compare digests of the model's files (shared/spec/file_digest.h).
 *
 * The first has the lowest CPU and I/O priority. It reads each block once, one at a time: without a
 * pause for the first second, then half of the time while the link and the CPUs are idle, and a
 * twentieth of it while they are busy. After the last block it reads one block a second again. That finds
 * changes that leave the files' times alone: a write through a mapping, or a disk that forgets.
 *
 * The second waits until something has touched the files, and then compares all blocks that have a
 * digest at full speed, because a verifier holds back its answers meanwhile.
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
	uint64_t origin; /* the table's origin when this process began */
	int *fds; /* [parts] opened with O_DIRECT, or -1 */
	bool (*busy)(void *arg); /* true when the link has more important work; any thread */
	void *arg;
	uint64_t start_ns;
	pthread_mutex_t turn; /* held for one block, or for one comparison of all blocks */
	pthread_t threads[2];
	unsigned n_threads;
	atomic_bool stop;
	struct doorbell stopped;
	_Atomic uint64_t compared; /* number of comparisons that found all blocks unchanged */
	_Atomic uint64_t n_compared; /* number of blocks in the last of these */
	atomic_bool unreadable; /* a block could not be read; logged once */
};

/* Borrows gguf and the region's payload, which file_digest_check must have accepted. */
int digest_start(struct digest *digest, const struct gguf *gguf, struct file_digest *table,
	bool (*busy)(void *arg), void *arg, struct error *err);
void digest_stop(struct digest *digest); /* also for a zeroed struct */

/* -ESTALE, with the place, when a block has changed: the model is lost. Any thread. */
int digest_check(const struct digest *digest, struct error *err);
/* True when every byte is known to be as it was when this process began, in the state that
 * gguf_state tells. */
bool digest_proves(const struct digest *digest);
