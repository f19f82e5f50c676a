#include "kernels/pool_internal.h"
#include "shared/base/clock.h"
#include "shared/base/cpus.h"
#include "shared/base/round.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	SPINS_PER_LOOK = 32, /* pauses between two readings of the clock */
	AHEAD_LINES = 4, /* prefetched instead of a pause */
	ITEM_BITS = 28,
};
static_assert(POOL_ITEMS_MAX == 1u << ITEM_BITS, "a part holds two bounds of items");
static_assert(LIMIT_THREADS <= 1 << (64 - 2 * ITEM_BITS), "and the last thread");

static void futex_wait(atomic_uint *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, uint32_t threads)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

/* Encodes items first..end-1 of a run in which threads 0..last_thread take part. */
static uint64_t make_part(uint32_t first, uint32_t end, uint32_t last_thread)
{
	return (uint64_t)last_thread << 2 * ITEM_BITS | (uint64_t)end << ITEM_BITS | first;
}

/*
 * Takes the first item of a part, or the last, for a thread. A part is filled only when all items
 * of the previous run are done. A thread that gets an item may therefore read fn and arg: they are
 * those of the run that filled the part, however old the value was from which the exchange started,
 * and they do not change before the item is done. So a thread that was descheduled takes no part
 * and is not waited for, unless it holds an item. A thread that comes late from a run with more
 * threads finds in the part itself that it no longer takes part.
 */
static bool take(_Atomic uint64_t *part, uint32_t thread, bool last, uint32_t *item)
{
	/* Acquire pairs with the release in pool_run, through the exchanges of other threads. */
	uint64_t now = atomic_load_explicit(part, memory_order_acquire);

	for (;;) {
		uint32_t first = now & (POOL_ITEMS_MAX - 1);
		uint32_t end = now >> ITEM_BITS & (POOL_ITEMS_MAX - 1);
		uint32_t last_thread = (uint32_t)(now >> 2 * ITEM_BITS);
		uint64_t left = last ? make_part(first, end - 1, last_thread)
				     : make_part(first + 1, end, last_thread);

		if (first >= end || thread > last_thread)
			return false;
		if (atomic_compare_exchange_weak_explicit(
			    part, &now, left, memory_order_acq_rel, memory_order_acquire)) {
			*item = last ? end - 1 : first;
			return true;
		}
	}
}

/* Computes items while `take` gets some. False when the thread must leave its CPU first. */
static bool take_all(struct pool_thread *t, _Atomic uint64_t *part, bool last, uint32_t *mine)
{
	struct pool *pool = t->pool;
	uint32_t item;

	while (take(part, t->index, last, &item)) {
		pool->fn(pool->arg, item, t->index);
		(*mine)++;
		if (t->index > 0 && atomic_load_explicit(&t->contended, memory_order_relaxed) &&
			pool_must_leave(t, clock_ns()))
			return false;
	}
	return true;
}

/* Computes its own part, then what is left of the others': neighbours first, and its own node
 * before other nodes. */
static bool work(struct pool_thread *t, uint32_t *mine)
{
	struct pool *pool = t->pool;
	uint32_t active = atomic_load_explicit(&pool->active, memory_order_relaxed);
	uint32_t node = atomic_load_explicit(&t->node, memory_order_relaxed);
	bool one = atomic_load_explicit(&pool->nodes, memory_order_relaxed) == 1;

	/* pool_destroy sets `active` to more than there are. */
	active = active < pool->threads ? active : pool->threads;
	if (!take_all(t, &t->part, false, mine))
		return false;
	for (int far = 0; far < (one ? 1 : 2); far++) {
		for (uint32_t i = 1; i < active; i++) {
			uint32_t at = t->index + i < active ? t->index + i : t->index + i - active;
			struct pool_thread *victim = &pool->of[at < active ? at : 0];
			bool near =
				atomic_load_explicit(&victim->node, memory_order_relaxed) == node;

			if ((one || near == !far) && !take_all(t, &victim->part, true, mine))
				return false;
		}
	}
	return true;
}

static void report(struct pool *pool, uint32_t mine)
{
	/* Release pairs with the acquire of `done` in pool_run, which then sees what the items
	 * wrote. Sequential consistency orders it before the load of caller_asleep; otherwise each
	 * side could miss the other's store. */
	atomic_fetch_add(&pool->done, mine);
	if (atomic_load(&pool->caller_asleep))
		futex_wake(&pool->done, 1);
}

/* The lines that are left to prefetch. */
struct ahead {
	uintptr_t at;
	size_t lines;
};

/* If the caller changes one of the two between these loads, the wrong lines are prefetched, which
 * does no harm. */
static struct ahead ahead_of(const struct pool_thread *t)
{
	size_t bytes = atomic_load_explicit(&t->ahead_bytes, memory_order_relaxed);

	return (struct ahead){atomic_load_explicit(&t->ahead, memory_order_relaxed),
		(bytes + CACHE_LINE - 1) / CACHE_LINE};
}

/* Passes time between two checks: prefetches a few lines, or pauses when all are fetched. */
static void pass_time(struct ahead *ahead)
{
	size_t n = ahead->lines < AHEAD_LINES ? ahead->lines : AHEAD_LINES;

	if (n == 0)
		clock_relax();
	for (size_t i = 0; i < n; i++, ahead->at += CACHE_LINE)
		__builtin_prefetch((const void *)ahead->at, 0, 2);
	ahead->lines -= n;
}

void pool_ahead(struct pool *pool, uint32_t thread, const void *data, size_t bytes)
{
	struct pool_thread *t = &pool->of[thread];

	atomic_store_explicit(&t->ahead, (uintptr_t)data, memory_order_relaxed);
	atomic_store_explicit(&t->ahead_bytes, bytes < POOL_AHEAD_BYTES ? bytes : POOL_AHEAD_BYTES,
		memory_order_relaxed);
}

/* Spins for spin_ns until there is a run other than `seen`; false when the time is over. *now: the
 * last reading of the clock, so that a run that comes need not read it. */
static bool spin(struct pool_thread *t, uint32_t seen, uint64_t *now)
{
	struct pool *pool = t->pool;
	uint64_t patience = atomic_load_explicit(&pool->spin_ns, memory_order_relaxed);
	uint64_t end = *now + patience;
	struct ahead ahead = ahead_of(t);

	while (*now < end) {
		uint64_t before = *now;

		for (int i = 0; i < SPINS_PER_LOOK; i++) {
			if (atomic_load_explicit(&pool->runs, memory_order_relaxed) != seen)
				return true;
			pass_time(&ahead);
		}
		*now = clock_ns();
		pool_watch(t, before, *now);
	}
	return false;
}

static void sleep_until_run(struct pool *pool, uint32_t seen)
{
	/* Sequentially consistent with pool_run, which changes `runs` and then reads `sleepers`:
	 * either pool_run sees us and wakes us, or we (or the kernel) see that `runs` has changed.
	 */
	atomic_fetch_add(&pool->sleepers, 1);
	if (atomic_load(&pool->runs) == seen)
		futex_wait(&pool->runs, seen);
	atomic_fetch_sub(&pool->sleepers, 1);
}

static void *thread_main(void *arg)
{
	struct pool_thread *t = arg;
	struct pool *pool = t->pool;
	uint32_t seen, active;
	uint64_t now = clock_ns();

	pool_watch_init(t);
	for (;;) {
		uint32_t mine = 0;

		/* Read before stop and active: a change of those is followed by a change of runs.
		 */
		seen = atomic_load(&pool->runs);
		if (atomic_load(&pool->stop))
			return NULL;
		active = atomic_load(&pool->active);
		if (t->index >= active) {
			futex_wait(&pool->active, active);
			now = clock_ns();
			continue;
		}
		uint64_t began = now;
		bool all = work(t, &mine);
		if (mine > 0)
			report(pool, mine);
		now = clock_ns();
		pool_watch(t, began, now);
		if (!all) {
			now = pool_leave(t);
		} else if (!spin(t, seen, &now)) {
			sleep_until_run(pool, seen);
			now = clock_ns();
		}
	}
}

void pool_rouse(struct pool *pool)
{
	atomic_fetch_add(&pool->runs, 1);
	futex_wake(&pool->runs, INT_MAX);
	futex_wake(&pool->active, INT_MAX);
}

static void wake(struct pool *pool, uint32_t most)
{
	uint32_t asleep = atomic_load(&pool->sleepers);

	if (asleep > 0)
		futex_wake(&pool->runs, asleep < most ? asleep : most);
}

/* Returns true when it took longer than spinning is worth. */
static bool wait_done(struct pool *pool, uint32_t n)
{
	uint64_t patience = atomic_load_explicit(&pool->spin_ns, memory_order_relaxed), end = 0;
	struct ahead ahead = ahead_of(&pool->of[0]);

	for (uint32_t i = 0; atomic_load_explicit(&pool->done, memory_order_acquire) != n; i++) {
		if (i % SPINS_PER_LOOK == 0) {
			uint64_t now = clock_ns();

			/* Its own items are done; waiting for others is not time in which it was
			 * stopped. */
			if (i == 0)
				pool_watch(&pool->of[0], pool->ran_ns, now);
			pool->ran_ns = now;
			end = end ? end : now + patience;
			if (now >= end)
				break;
		}
		pass_time(&ahead);
	}
	if (atomic_load_explicit(&pool->done, memory_order_acquire) == n)
		return false;
	atomic_store(&pool->caller_asleep, true);
	for (uint32_t done; (done = atomic_load(&pool->done)) != n;)
		futex_wait(&pool->done, done);
	atomic_store(&pool->caller_asleep, false);
	pool->ran_ns = clock_ns();
	return true;
}

static void deal(struct pool *pool, uint32_t n, uint32_t active)
{
	uint32_t first = 0;

	for (uint32_t i = 0; i < active; i++) {
		uint32_t end = pool_first(n, i + 1, active);

		/* Releases fn, arg and done to every thread that takes an item of the part. */
		if (end > first)
			atomic_store_explicit(&pool->of[i].part, make_part(first, end, active - 1),
				memory_order_release);
		first = end;
	}
}

void pool_run(struct pool *pool, void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg,
	uint32_t n)
{
	uint32_t active = atomic_load_explicit(&pool->active, memory_order_relaxed), mine = 0;
	bool slow = false;

	if (active > 1 && n > 1) {
		pool->fn = fn;
		pool->arg = arg;
		atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
		deal(pool, n, active);
		atomic_fetch_add(&pool->runs, 1);
		wake(pool, (n < active ? n : active) - 1);
		uint64_t now = clock_ns();
		/* Between two runs the caller does little else, so a long gap shows that it was
		 * stopped. */
		pool_watch(&pool->of[0], pool->ran_ns, now);
		pool->ran_ns = now;
		work(&pool->of[0], &mine);
		if (atomic_fetch_add(&pool->done, mine) + mine != n)
			slow = wait_done(pool, n);
	} else {
		for (uint32_t i = 0; i < n; i++)
			fn(arg, i, 0);
	}
	if (pool->threads > 1 && pool_check_due(pool, slow))
		pool_check(pool);
}

void pool_use(struct pool *pool, uint32_t threads)
{
	pool->used = threads < pool->threads ? threads : pool->threads;
	pool_place(pool);
}

static int start_threads(struct pool *pool, uint32_t threads, struct error *err)
{
	char what[64];

	for (uint32_t i = 0; i < threads; i++) {
		struct pool_thread *t = &pool->of[i];
		int rc = 0;

		t->pool = pool;
		t->index = i;
		if (i == 0)
			t->thread = pthread_self();
		else
			rc = pthread_create(&t->thread, NULL, thread_main, t);
		if (rc != 0) {
			snprintf(
				what, sizeof(what), "cannot start thread %u of %u", i + 1, threads);
			return error_thread(err, rc, what);
		}
		pool->threads++;
	}
	return 0;
}

static void *zeroed_lines(size_t bytes)
{
	size_t rounded = round_lines(bytes);
	void *memory = aligned_alloc(CACHE_LINE, rounded);

	if (memory)
		memset(memory, 0, rounded);
	return memory;
}

size_t pool_bytes(uint32_t threads)
{
	return round_lines(sizeof(struct pool)) + round_lines(threads * sizeof(struct pool_thread));
}

int pool_create(uint32_t threads, int pin, uint64_t spin_ns, struct pool **out, struct error *err)
{
	struct pool *pool;
	int rc;

	*out = NULL;
	if (threads < 1 || threads > LIMIT_THREADS)
		return error_set(err, EINVAL, "%u threads are asked for: 1 to %u are possible",
			threads, (unsigned int)LIMIT_THREADS);
	pool = zeroed_lines(sizeof(*pool));
	if (pool)
		pool->of = zeroed_lines(threads * sizeof(pool->of[0]));
	if (!pool || !pool->of) {
		free(pool);
		return error_set(err, ENOMEM, "no memory for %u threads", threads);
	}
	pool->spin_ns_wanted = spin_ns;
	pool->pin = pin != 0;
	for (uint32_t i = 0; i < threads; i++)
		pool->of[i].schedstat = -1;
	atomic_store(&pool->active, 1); /* threads that start before pool_place wait */
	cpus_mask(&pool->mask);
	pool->ran_ns = pool->checked_ns = clock_ns();
	rc = start_threads(pool, threads, err);
	if (rc != 0) {
		pool_destroy(&pool);
		return rc;
	}
	pool_watch_init(&pool->of[0]);
	pool_place(pool);
	*out = pool;
	return 0;
}

void pool_set_spin(struct pool *pool, uint64_t spin_ns)
{
	pool->spin_ns_wanted = spin_ns;
	atomic_store_explicit(&pool->spin_ns, pool->crowded ? 0 : spin_ns, memory_order_relaxed);
}

void pool_destroy(struct pool **handle)
{
	struct pool *pool = *handle;

	if (!pool)
		return;
	*handle = NULL;
	atomic_store(&pool->stop, true);
	/* A different value, so that a thread about to sleep on the old one does not miss it. */
	atomic_store(&pool->active, LIMIT_THREADS + 1);
	pool_rouse(pool);
	for (uint32_t i = 1; i < pool->threads; i++)
		pthread_join(pool->of[i].thread, NULL);
	for (uint32_t i = 0; i < pool->threads; i++)
		if (pool->of[i].schedstat >= 0)
			close(pool->of[i].schedstat);
	if (pool->pin && pool->threads > 0)
		(void)pthread_setaffinity_np(pool->of[0].thread, sizeof(pool->mask), &pool->mask);
	free(pool->of);
	free(pool);
}

uint32_t pool_threads(const struct pool *pool)
{
	return pool->threads;
}

uint32_t pool_active(const struct pool *pool)
{
	return atomic_load_explicit(&pool->active, memory_order_relaxed);
}
