/* What pool.c (runs) and pool_place.c (where threads are, and how many take part) share. */
#pragma once

#include "kernels/pool.h"
#include "shared/base/limits.h"

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>

struct pool_thread {
	/* The items of its part that nobody has taken, and the last thread that may (make_part). It takes the first, others
	 * the last. */
	alignas(CACHE_LINE) _Atomic uint64_t part;
	/* What it fetches while it waits (pool_ahead); the caller's to change, at any time. */
	_Atomic uintptr_t ahead;
	_Atomic size_t ahead_bytes;
	/* The other lines are its own, but for what is atomic. */
	alignas(CACHE_LINE) struct pool *pool;
	uint32_t index;
	atomic_uint node;
	/* Its CPU is wanted by someone else as well: it was stopped while it wanted to run. */
	atomic_bool contended;
	uint32_t vain_yields;
	int schedstat; /* the kernel's count of how long it wanted to run and could not; -1: there is none */
	uint64_t delay_ns; /* of it, when last looked at */
	uint64_t
		lost_ns; /* of it, since the last check where it is the caller: the others' is not looked at */
	uint64_t slice_began_ns, slice_ns; /* while contended: what it may run at a stretch */
	pthread_t thread;
	cpu_set_t seen; /* the caller's: its mask when last looked at */
};

struct pool {
	/* Written once per run by the caller, read by all. fn and arg may only be read by who holds an item. */
	alignas(CACHE_LINE) atomic_uint runs; /* the futex that waiting threads sleep on */
	atomic_bool stop;
	void (*fn)(void *arg, uint32_t item, uint32_t thread);
	void *arg;
	alignas(CACHE_LINE) atomic_uint done;
	atomic_bool caller_asleep;
	alignas(CACHE_LINE) atomic_uint sleepers;
	/* Seldom written. */
	alignas(CACHE_LINE) atomic_uint active; /* the futex that the threads beyond it sleep on */
	atomic_uint nodes; /* those that active threads are on */
	_Atomic uint64_t spin_ns; /* 0 while threads share CPUs */
	uint64_t spin_ns_wanted;
	bool crowded; /* they do */
	uint32_t threads; /* started, the caller counted */
	bool pin;
	/* The caller's own. */
	uint32_t used; /* pool_use; 0: as many as there are CPUs */
	uint32_t unchecked_runs;
	uint64_t ran_ns, checked_ns;
	cpu_set_t mask; /* of the process, as last known */
	struct pool_thread *of; /* [threads], 0 is the caller */
};

/* pool.c: wakes every thread that waits for a run, or to take part. */
void pool_rouse(struct pool *pool);

/* Counts the CPUs of pool->mask, sets active, binds. The caller, between runs. */
void pool_place(struct pool *pool);
/* Looks whether a thread's mask was changed by somebody, and whether the caller's CPU is contended. */
void pool_check(struct pool *pool);
/* Whether a look is due, once in many runs; sooner after those that were slow, perhaps because a CPU went away. */
static inline bool pool_check_due(struct pool *pool, bool slow)
{
	enum { CHECK_RUNS = 1024, SLOW_RUNS = 32 };

	pool->unchecked_runs += slow ? CHECK_RUNS / SLOW_RUNS : 1;
	return pool->unchecked_runs >= CHECK_RUNS;
}

/* For each thread, by itself, before it watches. */
void pool_watch_init(struct pool_thread *t);
/* The thread was busy from began to now without seeing the clock: learns whether it was stopped meanwhile. */
void pool_watch(struct pool_thread *t, uint64_t began_ns, uint64_t now_ns);
/* A contended thread has run nearly as long as it is let: it should leave before the kernel makes it. */
bool pool_must_leave(const struct pool_thread *t, uint64_t now_ns);
/* Gives the CPU to who wants it, and returns the time when it is back. The thread holds no item. */
uint64_t pool_leave(struct pool_thread *t);
