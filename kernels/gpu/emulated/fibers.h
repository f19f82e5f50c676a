/*
 * The emulation of a GPU's threads. Each thread of a block is a fiber with a stack of its own; the
 * blocks of a launch run one after the other, on the thread of their stream. One warp at a time goes
 * on until it waits for the block. Warps, lanes and blocks take turns in the order that a seed
 * gives, so that a missing barrier is seen with some seed.
 *
 * What is wrong on every device ends the process with a message that names the kernel: barriers that
 * not all threads reach, lanes of a warp at different operations, lanes that a mask does not name,
 * writes behind the end of shared memory. Shared memory begins as NaNs, and an asynchronous copy
 * arrives no sooner than its wait.
 */
#pragma once

#include <cstddef>
#include <cstdint>

struct simt_dim {
	unsigned x, y, z;
};

namespace simt
{

enum {
	LANES = 32,
	THREADS_MAX = 1024,
	SHARED_MAX = 227 << 10, /* bytes of shared memory in a block, as on sm_90 */
	COPIES_MAX = 64, /* asynchronous copies of one thread that are on their way */
};

enum wait { RUN, WARP, BLOCK, DONE };

/* What a lane brings to an operation of its warp, or gets from it. */
struct words {
	uint32_t w[8];
};

struct copy {
	void *to;
	const void *from;
	unsigned bytes, group;
};

struct thread;
/* Runs once for an operation, when all its lanes have come: lanes[0..31] of the warp. */
typedef void on_meeting(struct thread *lanes);

struct thread {
	struct simt_dim tid;
	unsigned lane, warp;
	enum wait state;
	unsigned mask;
	const void *site;
	on_meeting *meeting;
	/* Two, because a lane may bring its next values before the others have taken the last. */
	struct words bring[2];
	unsigned slot, taken;
	unsigned n_copies, group; /* group: of the copies that are not committed yet */
	struct copy copies[COPIES_MAX];
	void *sp, *stack, *fake;
};

struct block {
	struct simt_dim bid, bdim, gdim;
	struct thread *self;
	unsigned char *shared;
	size_t shared_bytes;
};

extern thread_local struct block *now;

[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Waits until all lanes of the mask have called it at the same site; then `meeting`, which may be
 * null, has run, and lane_words gives what each of them brought. */
void meet(unsigned mask, const void *site, const void *bring, size_t bytes, on_meeting *meeting);
void barrier(const void *site);

/* What a lane of the mask brought to the operation that has just ended. */
const struct words *lane_words(unsigned mask, unsigned lane);

void copy_begin(void *to, const void *from, unsigned bytes);
void copy_commit(void);
/* Lands all copies but those of the newest `left` groups. */
void copy_wait(unsigned left);

/* m16n8k32 for a warp; a lane brings a[4], b[2] and its signs. */
on_meeting mma_meeting;

struct launch {
	const char *name;
	void (*body)(const void *args); /* one thread */
	const void *args;
	struct simt_dim grid;
	unsigned threads;
	size_t shared;
	unsigned seed; /* 0: everything in ascending order */
};

/* Runs a launch on this thread. */
void run(const struct launch *launch);
/* Frees what this thread keeps between launches. */
void end_thread(void);

} // namespace simt
