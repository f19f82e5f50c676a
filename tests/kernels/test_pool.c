/* Every item of every run is done exactly once, however many threads there are and however they wait. */
#include "kernels/pool.h"
#include "shared/base/limits.h"
#include "tests/kernels/reference.h"

#include <sched.h>
#include <unistd.h>

#define ITEMS_MAX 97

struct job {
	/* Plain, not atomic: a run's end must make them visible to the caller (the thread sanitizer checks). */
	uint32_t times[ITEMS_MAX];
	uint32_t thread[ITEMS_MAX]; /* who did it */
	uint32_t slow_us;
};

static void count_item(void *arg, uint32_t item, uint32_t thread)
{
	struct job *job = arg;

	if (job->slow_us)
		usleep(job->slow_us);
	job->times[item]++;
	job->thread[item] = thread;
}

static void run_many(uint32_t threads, uint64_t spin_ns, int pin, uint32_t runs, uint32_t slow_us)
{
	struct pool *pool;
	struct error err = {0};
	uint64_t rng = threads;

	assert_int_equal(pool_create(threads, pin, spin_ns, &pool, &err), 0);
	assert_int_equal(pool_threads(pool), threads);
	for (uint32_t run = 0; run < runs; run++) {
		struct job job = {.slow_us = slow_us};
		uint32_t n = random_below(&rng, ITEMS_MAX + 1);

		pool_run(pool, count_item, &job, n);
		for (uint32_t i = 0; i < ITEMS_MAX; i++)
			assert_true(job.times[i] == (i < n ? 1 : 0) && job.thread[i] < threads);
	}
	pool_destroy(&pool);
	assert_null(pool);
}

static void items_run_once_with_one_to_eight_spinning_threads(void **state)
{
	(void)state;
	for (uint32_t threads = 1; threads <= 8; threads++)
		run_many(threads, 20000, 0, 1000, 0);
}

static void items_run_once_when_threads_sleep_at_once(void **state)
{
	(void)state;
	for (uint32_t threads = 1; threads <= 8; threads++)
		run_many(threads, 0, 0, 1000, 0);
}

static void the_caller_sleeps_until_slow_items_of_others_are_done(void **state)
{
	(void)state;
	run_many(4, 1000, 0, 10, 200);
}

static void pinned_threads_are_bound_and_the_callers_mask_returns(void **state)
{
	cpu_set_t before, during, after;
	struct pool *pool;

	(void)state;
	run_many(3, 1000, 1, 100, 0);
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(pool_create(2, 1, 0, &pool, NULL), 0);
	assert_int_equal(sched_getaffinity(0, sizeof(during), &during), 0);
	pool_destroy(&pool);
	assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
	assert_int_equal(CPU_COUNT(&during), 1);
	assert_true(CPU_EQUAL(&before, &after));
}

static void first_in_order(void *arg, uint32_t item, uint32_t thread)
{
	uint32_t *next = arg;

	assert_int_equal(thread, 0);
	assert_int_equal(item, *next);
	(*next)++;
}

static void one_thread_takes_the_items_in_order(void **state)
{
	struct pool *pool;
	uint32_t next = 0;

	(void)state;
	assert_int_equal(pool_create(1, 0, 0, &pool, NULL), 0);
	pool_run(pool, first_in_order, &next, 50);
	assert_int_equal(next, 50);
	pool_destroy(&pool);
	pool_destroy(&pool); /* nothing is left to destroy */
}

static void impossible_thread_counts_are_refused_with_the_range(void **state)
{
	struct pool *pool;
	struct error err = {0};

	(void)state;
	assert_int_equal(pool_create(0, 0, 0, &pool, &err), -EINVAL);
	assert_null(pool);
	assert_int_equal(pool_create(LIMIT_THREADS + 1, 0, 0, &pool, &err), -EINVAL);
	assert_non_null(strstr(err.text, "256"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(items_run_once_with_one_to_eight_spinning_threads),
		cmocka_unit_test(items_run_once_when_threads_sleep_at_once),
		cmocka_unit_test(the_caller_sleeps_until_slow_items_of_others_are_done),
		cmocka_unit_test(pinned_threads_are_bound_and_the_callers_mask_returns),
		cmocka_unit_test(one_thread_takes_the_items_in_order),
		cmocka_unit_test(impossible_thread_counts_are_refused_with_the_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
