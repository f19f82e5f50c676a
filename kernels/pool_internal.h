/* What pool.c (runs) and pool_place.c (where threads run, and how many take part) share. */
#pragma once

#include "kernels/pool.h"
#include "shared/base/limits.h"

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>

struct pool_thread {
	/* The items of its part that no thread has taken, and the index of the last thread that may
	 * take them (make_part). The thread itself takes the first item, others take the last. */
	alignas(CACHE_LINE) _Atomic uint64_t part;
	/* What it fetches while it waits (pool_ahead). The caller may change this at any time. */
	_Atomic uintptr_t ahead;
	_Atomic size_t ahead_bytes;
	/* From here on only the thread itself writes, except to the atomic fields. */
	alignas(CACHE_LINE) struct pool *pool;
	uint32_t index;
	atomic_uint node;
	/* Somebody else wants its CPU as well: it was stopped while it wanted to run. */
	atomic_bool contended;
	uint32_t vain_yields;
	/* descriptor of the kernel's count of how long it wanted to run and could not; -1: none */
	int schedstat;
	uint64_t delay_ns; /* that count, when last read */
	uint64_t lost_ns; /* the caller's only: how much the count has grown since the last check */
	uint64_t slice_began_ns, slice_ns; /* while contended: how long it may run at a stretch */
	pthread_t thread;
	cpu_set_t seen; /* the caller's only: its affinity mask, when last read */
};

struct pool {
	/* The caller writes these once per run; all threads read them. Only a thread that holds an
	 * item may read fn and arg. */
	/* number of runs; waiting threads sleep on this futex */
	alignas(CACHE_LINE) atomic_uint runs;
	atomic_bool stop;
	void (*fn)(void *arg, uint32_t item, uint32_t thread);
	void *arg;
	alignas(CACHE_LINE) atomic_uint done;
	atomic_bool caller_asleep;
	alignas(CACHE_LINE) atomic_uint sleepers;
	/* These are seldom written. */
	/* threads that take part; the others sleep on this futex */
	alignas(CACHE_LINE) atomic_uint active;
	atomic_uint nodes; /* the nodes that active threads run on */
	_Atomic uint64_t spin_ns; /* 0 while threads share CPUs */
	uint64_t spin_ns_wanted;
	bool crowded; /* threads share CPUs */
	uint32_t threads; /* started, the caller included */
	bool pin;
	/* Only the caller uses these. */
	uint32_t used; /* set by pool_use; 0: as many as there are CPUs */
	uint32_t unchecked_runs;
	uint64_t ran_ns, checked_ns;
	cpu_set_t mask; /* of the process, as last read */
	struct pool_thread *of; /* [threads]; entry 0 is the caller's */
};

/* pool.c: wakes every thread that waits for a run or to take part. */
void pool_rouse(struct pool *pool);

/* Counts the CPUs of pool->mask, sets `active`, and binds the threads. The caller, between runs. */
void pool_place(struct pool *pool);
/* Checks whether somebody changed a thread's affinity mask, and whether the caller's CPU is
 * contended. */
void pool_check(struct pool *pool);
/* True when a check is due: once in many runs, and sooner after slow runs, because a CPU may have
 * gone away. */
static inline bool pool_check_due(struct pool *pool, bool slow)
{
	enum { CHECK_RUNS = 1024, SLOW_RUNS = 32 };

	pool->unchecked_runs += slow ? CHECK_RUNS / SLOW_RUNS : 1;
	return pool->unchecked_runs >= CHECK_RUNS;
}

/* Each thread calls this for itself before pool_watch. */
void pool_watch_init(struct pool_thread *t);
/* Call when the thread was busy from began_ns to now_ns without reading the clock: finds out
 * whether the kernel stopped it meanwhile. */
void pool_watch(struct pool_thread *t, uint64_t began_ns, uint64_t now_ns);
/* True when a contended thread has run for nearly its time: it should yield before the kernel stops
 * it. */
bool pool_must_leave(const struct pool_thread *t, uint64_t now_ns);
/* Yields the CPU, and returns the time at which the thread runs again. The thread must hold no
 * item. */
uint64_t pool_leave(struct pool_thread *t);
