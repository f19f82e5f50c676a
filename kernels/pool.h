/*
 * A pool of threads for forward passes. One thread, the caller, drives it: it is thread 0 of every
 * run. The others wait at a barrier, where they spin for a bounded time and then sleep.
 *
 * A run computes n items. They are dealt in equal, contiguous parts, so that with items of equal
 * bytes each thread reads one stream of memory, the same one in every run. A thread that has
 * finished its part takes items from the ends of the others' parts. Exactly one thread computes an
 * item, in the order that numerics.md defines, so results depend neither on the number of threads
 * nor on which thread took which item. On a machine with several memory nodes, the memory that all
 * threads of the services read is interleaved over the nodes (shared/base/nodes.h): each thread
 * gets its share of every node's bandwidth, whichever items it takes.
 *
 * The pool follows the CPUs that it may use. No more threads take part than the affinity mask has
 * CPUs, and when a CPU goes away or comes back (cpuset, taskset, hot-plug) the threads are counted
 * and bound again. A thread whose CPU another process wants as well yields it between items.
 * Otherwise the kernel might stop it in the middle of one, and all threads would wait for that
 * item.
 */
#pragma once

#include "shared/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct pool;

/* threads: 1..LIMIT_THREADS, the caller included. pin: binds each thread to a CPU of its own, cores
 * first, spread over the nodes; otherwise the kernel places them. spin_ns: how long a waiting
 * thread spins before it sleeps; 0: it sleeps at once. */
int pool_create(uint32_t threads, int pin, uint64_t spin_ns, struct pool **out, struct error *err);
/* Bytes that pool_create allocates, without the stacks of the threads. */
size_t pool_bytes(uint32_t threads);
/* Changes spin_ns. Call between runs. */
void pool_set_spin(struct pool *pool, uint64_t spin_ns);
void pool_destroy(struct pool **pool);
uint32_t pool_threads(const struct pool *pool);

/* How many threads take part now: pool_threads, or fewer when there are fewer CPUs. The number may
 * differ in the next run, but thread numbers passed to fn stay below pool_threads. */
uint32_t pool_active(const struct pool *pool);
/* Makes exactly this many threads (1..pool_threads) take part, however many CPUs there are; 0
 * follows the CPUs again. Call between runs. */
void pool_use(struct pool *pool, uint32_t threads);

/* Announces the bytes that a thread (below pool_threads) will read first in the run after the next
 * one. From then on, until the next call for it, the thread fetches the first POOL_AHEAD_BYTES of
 * them into its second-level cache whenever it spins. The bytes are only prefetched, not read, so
 * the address need not be valid. 0 bytes: nothing. Call between runs. */
void pool_ahead(struct pool *pool, uint32_t thread, const void *data, size_t bytes);
#define POOL_AHEAD_BYTES (256u << 10)

/* The first of n items that are dealt to a thread, of `active` threads; its part ends where the
 * next thread's begins. */
static inline uint32_t pool_first(uint64_t n, uint32_t thread, uint32_t active)
{
	return (uint32_t)(n * thread / active);
}

/* Calls fn(arg, item, thread) once for each item in 0..n-1, with thread < pool_active, and returns
 * when all are done. n: below POOL_ITEMS_MAX. A single thread takes the items in ascending order.
 * Not reentrant; one caller at a time. Allocates nothing. While all threads spin it makes a system
 * call only once in CHECK_RUNS runs (pool_internal.h). */
void pool_run(struct pool *pool, void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg,
	uint32_t n);
#define POOL_ITEMS_MAX (1u << 28)
