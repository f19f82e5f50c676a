/*
 * A pool of threads for one forward pass: the caller is thread 0, the others wait at a barrier that spins for a
 * bounded time and then sleeps. Work is cut into items that any thread may take; an item is computed by exactly
 * one thread in the order kernels.h defines, so results do not depend on the thread count.
 */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

struct pool;

/* threads 1..LIMIT_THREADS (the caller counted). pin: bind thread i to the i-th CPU of the process's mask.
 * spin_ns: how long a waiting thread spins before it sleeps; 0 sleeps at once. */
int pool_create(uint32_t threads, int pin, uint64_t spin_ns, struct pool **out, struct error *err);
void pool_destroy(struct pool **pool);
uint32_t pool_threads(const struct pool *pool);

/* Calls fn(arg, item, thread) once for each item in 0..n-1, taken in ascending order; returns when all are done.
 * Not reentrant; one caller at a time. No allocation, no system call while all threads are spinning. */
void pool_run(struct pool *pool, void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg,
	uint32_t n);
