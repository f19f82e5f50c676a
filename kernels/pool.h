/*
 * A pool of threads for one forward pass: the caller is thread 0, the others wait at a barrier that spins for a
 * bounded time and then sleeps. The items of a run are dealt out in equal, contiguous parts, so that items of equal
 * bytes make each thread read one stream of memory, and the same one every time; who is done takes items from the
 * ends of the others' parts. An item is computed by exactly one thread in the order numerics.md defines, so results
 * depend on neither the thread count nor on who took what. On a machine with several memory nodes what the services'
 * threads all read lies on the nodes in turn (shared/base/nodes.h): each thread has its share of every node's
 * bandwidth, whichever items it takes.
 *
 * The pool follows the CPUs it is given: no more threads take part than the affinity mask has CPUs, and when a CPU goes
 * away or comes back (cpuset, taskset, hot-plug) they are counted and bound again. A thread whose CPU another process
 * wants too gives it up between items rather than be stopped while all wait for the one it holds.
 */
#pragma once

#include "shared/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct pool;

/* threads 1..LIMIT_THREADS (the caller counted). pin: bind each thread to a CPU of its own, cores first, spread over
 * the nodes; without it the kernel places them. spin_ns: how long a waiting thread spins before it sleeps; 0 sleeps at
 * once. */
int pool_create(uint32_t threads, int pin, uint64_t spin_ns, struct pool **out, struct error *err);
/* Another time to spin, for the caller, between runs. */
void pool_set_spin(struct pool *pool, uint64_t spin_ns);
void pool_destroy(struct pool **pool);
uint32_t pool_threads(const struct pool *pool);

/* How many threads take part now: at most pool_threads, fewer when there are not as many CPUs. It may be another in the
 * next run: thread numbers passed to fn stay below pool_threads. */
uint32_t pool_active(const struct pool *pool);
/* Exactly so many take part (1..pool_threads) whatever CPUs there are; 0 goes back to following them. For the caller,
 * between runs. */
void pool_use(struct pool *pool, uint32_t threads);

/* What a thread (below pool_threads) will read first in the run after the next one: from then on it fetches the first
 * POOL_AHEAD_BYTES of these bytes into its second-level cache whenever it spins, until it is told something else. They are
 * not read: they may be gone, or not be memory at all. 0 bytes: nothing. For the caller, between runs. */
void pool_ahead(struct pool *pool, uint32_t thread, const void *data, size_t bytes);
#define POOL_AHEAD_BYTES (256u << 10)

/* The first of n items that a thread is dealt, of so many that take part; its part ends where the next one's begins. */
static inline uint32_t pool_first(uint64_t n, uint32_t thread, uint32_t active)
{
	return (uint32_t)(n * thread / active);
}

/* Calls fn(arg, item, thread) once for each item in 0..n-1, with a thread below what pool_active is before; returns when
 * all are done. n: less than POOL_ITEMS_MAX. A single thread takes the items in ascending order. Not reentrant; one caller
 * at a time. No allocation; while all threads are spinning, a system call only once in CHECK_RUNS runs (pool_internal.h). */
void pool_run(struct pool *pool, void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg,
	uint32_t n);
#define POOL_ITEMS_MAX (1u << 28)
