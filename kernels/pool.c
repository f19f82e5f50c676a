#include "kernels/pool.h"

#include "shared/base/clock.h"
#include "shared/base/limits.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Pauses between two looks at the clock in a spin loop. */
#define SPINS_PER_LOOK 32

struct pool_worker {
	struct pool *pool;
	uint32_t index;
	pthread_t thread;
};

/*
 * A run is published by storing its item count in left. Whoever lowers left by one owns one item, and may read
 * fn, arg and n: they cannot change before that item is done, because pool_run waits for done == n. So a thread
 * that was descheduled takes no part and is not waited for, unless it holds an item.
 */
struct pool {
	alignas(CACHE_LINE) atomic_uint left;
	alignas(CACHE_LINE) atomic_uint done;
	atomic_bool caller_asleep;
	alignas(CACHE_LINE) void *arg;
	void (*fn)(void *arg, uint32_t item, uint32_t thread);
	uint32_t n;
	alignas(CACHE_LINE) atomic_uint sleepers;
	atomic_uint wakes; /* the futex sleepers wait on */
	atomic_bool stop;
	uint64_t spin_ns;
	uint32_t threads;
	bool pinned;
	pid_t caller; /* whose CPU mask was narrowed */
	cpu_set_t caller_mask;
	struct pool_worker workers[]; /* [threads - 1], thread 1 first */
};

static void futex_wait(atomic_uint *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, uint32_t threads)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

/* Takes items while there are any; returns how many it did. */
static uint32_t pool_work(struct pool *pool, uint32_t thread)
{
	uint32_t mine = 0;
	/* Acquire pairs with the release of left in pool_run: fn, arg and n are then those of this run. */
	uint32_t left = atomic_load_explicit(&pool->left, memory_order_acquire);

	while (left > 0) {
		if (!atomic_compare_exchange_weak_explicit(&pool->left, &left, left - 1,
			    memory_order_acquire, memory_order_acquire))
			continue;
		pool->fn(pool->arg, pool->n - left, thread);
		mine++;
		left = atomic_load_explicit(&pool->left, memory_order_acquire);
	}
	return mine;
}

static void pool_report(struct pool *pool, uint32_t mine)
{
	/* Release pairs with the acquire of done in pool_run, which then sees what the items wrote; and
	 * sequential consistency orders it before the look at caller_asleep, or both could miss each other. */
	atomic_fetch_add(&pool->done, mine);
	if (atomic_load(&pool->caller_asleep))
		futex_wake(&pool->done, 1);
}

/* Spins until left or stop says something, for spin_ns; false when the time is over. */
static bool pool_spin(struct pool *pool)
{
	uint64_t end;

	if (pool->spin_ns == 0)
		return false;
	end = clock_ns() + pool->spin_ns;
	do {
		for (int i = 0; i < SPINS_PER_LOOK; i++) {
			if (atomic_load_explicit(&pool->left, memory_order_relaxed) > 0 ||
				atomic_load_explicit(&pool->stop, memory_order_relaxed))
				return true;
			clock_relax();
		}
	} while (clock_ns() < end);
	return false;
}

static void pool_sleep(struct pool *pool)
{
	uint32_t wakes;

	/* Sequentially consistent with pool_run, which stores left and then reads sleepers: either it sees us
	 * and changes wakes, or we see its items. */
	atomic_fetch_add(&pool->sleepers, 1);
	wakes = atomic_load(&pool->wakes);
	if (atomic_load(&pool->left) == 0 && !atomic_load(&pool->stop))
		futex_wait(&pool->wakes, wakes);
	atomic_fetch_sub(&pool->sleepers, 1);
}

static void *pool_thread(void *arg)
{
	struct pool_worker *worker = arg;
	struct pool *pool = worker->pool;

	while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
		uint32_t mine = pool_work(pool, worker->index);

		if (mine > 0)
			pool_report(pool, mine);
		else if (!pool_spin(pool))
			pool_sleep(pool);
	}
	return NULL;
}

static void pool_wake(struct pool *pool, uint32_t most)
{
	uint32_t asleep = atomic_load(&pool->sleepers);

	if (asleep == 0)
		return;
	atomic_fetch_add(&pool->wakes, 1);
	futex_wake(&pool->wakes, asleep < most ? asleep : most);
}

static void pool_wait_done(struct pool *pool, uint32_t n)
{
	uint64_t end = 0;

	for (uint32_t i = 0; atomic_load_explicit(&pool->done, memory_order_acquire) != n; i++) {
		if (i % SPINS_PER_LOOK == 0) {
			uint64_t now = clock_ns();

			end = end ? end : now + pool->spin_ns;
			if (now >= end)
				break;
		}
		clock_relax();
	}
	if (atomic_load_explicit(&pool->done, memory_order_acquire) == n)
		return;
	atomic_store(&pool->caller_asleep, true);
	for (uint32_t done; (done = atomic_load(&pool->done)) != n;)
		futex_wait(&pool->done, done);
	atomic_store(&pool->caller_asleep, false);
}

void pool_run(struct pool *pool, void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg,
	uint32_t n)
{
	uint32_t mine;

	if (pool->threads == 1 || n <= 1) {
		for (uint32_t i = 0; i < n; i++)
			fn(arg, i, 0);
		return;
	}
	pool->fn = fn;
	pool->arg = arg;
	pool->n = n;
	atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
	/* Releases fn, arg, n and done to whoever takes an item. */
	atomic_store(&pool->left, n);
	pool_wake(pool, n - 1);
	mine = pool_work(pool, 0);
	if (atomic_fetch_add(&pool->done, mine) + mine != n)
		pool_wait_done(pool, n);
}

static int pool_pin(pthread_t thread, const cpu_set_t *mask, uint32_t index)
{
	uint32_t skip = index % (uint32_t)CPU_COUNT(mask);
	cpu_set_t one;

	CPU_ZERO(&one);
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, mask) && skip-- == 0) {
			CPU_SET(cpu, &one);
			break;
		}
	}
	return pthread_setaffinity_np(thread, sizeof(one), &one);
}

static int pool_start(struct pool *pool, uint32_t threads, int pin, struct error *err)
{
	int rc = 0;

	if (pin) {
		pool->caller = (pid_t)syscall(SYS_gettid);
		if (sched_getaffinity(
			    pool->caller, sizeof(pool->caller_mask), &pool->caller_mask) != 0)
			return error_set(
				err, errno, "cannot read the CPU mask: %s", strerror(errno));
	}
	for (uint32_t i = 1; i < threads && rc == 0; i++) {
		struct pool_worker *worker = &pool->workers[i - 1];

		*worker = (struct pool_worker){.pool = pool, .index = i};
		rc = pthread_create(&worker->thread, NULL, pool_thread, worker);
		if (rc != 0)
			return error_set(err, rc == EAGAIN ? ENOMEM : rc,
				"cannot start thread %u of %u: %s", i + 1, threads, strerror(rc));
		pool->threads++;
		if (pin)
			rc = pool_pin(worker->thread, &pool->caller_mask, i);
	}
	if (pin && rc == 0) {
		rc = pool_pin(pthread_self(), &pool->caller_mask, 0);
		pool->pinned = rc == 0;
	}
	if (rc != 0)
		return error_set(err, rc, "cannot bind the threads to CPUs: %s", strerror(rc));
	return 0;
}

int pool_create(uint32_t threads, int pin, uint64_t spin_ns, struct pool **out, struct error *err)
{
	size_t size;
	struct pool *pool;
	int rc;

	*out = NULL;
	if (threads < 1 || threads > LIMIT_THREADS)
		return error_set(err, EINVAL, "%u threads are asked for: 1 to %u are possible",
			threads, (unsigned int)LIMIT_THREADS);
	size = sizeof(*pool) + (threads - 1) * sizeof(pool->workers[0]);
	size = (size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	pool = aligned_alloc(CACHE_LINE, size);
	if (!pool)
		return error_set(err, ENOMEM, "no memory for %u threads", threads);
	memset(pool, 0, size);
	pool->spin_ns = spin_ns;
	pool->threads = 1;
	rc = pool_start(pool, threads, pin, err);
	if (rc != 0) {
		pool_destroy(&pool);
		return rc;
	}
	*out = pool;
	return 0;
}

void pool_destroy(struct pool **handle)
{
	struct pool *pool = *handle;

	if (!pool)
		return;
	*handle = NULL;
	atomic_store(&pool->stop, true);
	atomic_fetch_add(&pool->wakes, 1);
	futex_wake(&pool->wakes, pool->threads);
	for (uint32_t i = 1; i < pool->threads; i++)
		pthread_join(pool->workers[i - 1].thread, NULL);
	if (pool->pinned)
		sched_setaffinity(pool->caller, sizeof(pool->caller_mask), &pool->caller_mask);
	free(pool);
}

uint32_t pool_threads(const struct pool *pool)
{
	return pool->threads;
}
