/* Every item of every run is done exactly once, however many threads there are and however they wait. */
#include "kernels/pool.h"
#include "shared/base/limits.h"
#include "tests/kernels/reference.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define ITEMS_MAX 97

struct job {
	/* Plain, not atomic: a run's end must make them visible to the caller (the thread sanitizer checks). */
	uint32_t times[ITEMS_MAX];
	uint32_t thread[ITEMS_MAX]; /* who did it */
	uint32_t slow_us;
	uint64_t rng; /* with it every eighth item or so takes longer than all others together */
};

static void count_item(void *arg, uint32_t item, uint32_t thread)
{
	struct job *job = arg;

	if (job->slow_us && job->rng == 0)
		usleep(job->slow_us);
	/* Not advanced: items may not share state. */
	else if (job->slow_us && (job->rng * (item + 1) * 0x9e3779b97f4a7c15u) >> 61 == 0)
		usleep(job->slow_us);
	job->times[item]++;
	job->thread[item] = thread;
}

static struct pool *start(uint32_t threads, int pin, uint64_t spin_ns)
{
	struct pool *pool;
	struct error err = {0};

	assert_int_equal(pool_create(threads, pin, spin_ns, &pool, &err), 0);
	/* All take part, however few CPUs there are. */
	pool_use(pool, threads);
	return pool;
}

/* One run of n items: each was done once, by a thread that takes part. */
static void run_one(struct pool *pool, struct job *job, uint32_t n)
{
	uint32_t active = pool_active(pool);

	pool_run(pool, count_item, job, n);
	for (uint32_t i = 0; i < ITEMS_MAX; i++)
		assert_true(
			job->times[i] == (i < n ? 1 : 0) && (i >= n || job->thread[i] < active));
}

static void run_many(uint32_t threads, uint64_t spin_ns, int pin, uint32_t runs, uint32_t slow_us)
{
	struct pool *pool = start(threads, pin, spin_ns);
	uint64_t rng = threads;

	assert_int_equal(pool_threads(pool), threads);
	assert_int_equal(pool_active(pool), threads);
	for (uint32_t run = 0; run < runs; run++) {
		struct job job = {.slow_us = slow_us};

		run_one(pool, &job, random_below(&rng, ITEMS_MAX + 1));
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

static void items_run_once_when_some_take_long_and_their_neighbours_are_stolen(void **state)
{
	uint64_t rng = 7;
	uint32_t helped = 0;

	(void)state;
	for (uint32_t threads = 2; threads <= 8; threads += 3) {
		struct pool *pool = start(threads, 0, 20000);

		for (uint32_t run = 0; run < 60; run++) {
			struct job job = {.slow_us = 300, .rng = rng | 1};
			uint32_t n = 1 + random_below(&rng, ITEMS_MAX);

			run_one(pool, &job, n);
			/* Item 0 lies in the part of thread 0, the last in that of the last. */
			helped += job.thread[n - 1] != threads - 1;
		}
		pool_destroy(&pool);
	}
	assert_true(helped > 0);
}

static void the_number_that_takes_part_changes_between_runs(void **state)
{
	struct pool *pool;
	uint64_t rng = 3;

	(void)state;
	for (int pin = 0; pin < 2; pin++) {
		assert_int_equal(pool_create(8, pin, pin ? 0 : 20000, &pool, NULL), 0);
		for (uint32_t run = 0; run < 400; run++) {
			struct job job = {0};
			uint32_t threads = random_below(&rng, 10);

			pool_use(pool, threads);
			if (threads > 0)
				assert_int_equal(pool_active(pool), threads < 8 ? threads : 8);
			run_one(pool, &job, random_below(&rng, ITEMS_MAX + 1));
		}
		pool_destroy(&pool);
	}
}

static void no_more_threads_take_part_than_there_are_cpus(void **state)
{
	struct pool *pool;
	cpu_set_t cpus;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
	uint32_t n = (uint32_t)CPU_COUNT(&cpus), most = n < 64 ? n : 64;
	for (int pin = 0; pin < 2; pin++) {
		assert_int_equal(pool_create(64, pin, 100000, &pool, NULL), 0);
		assert_int_equal(pool_threads(pool), 64);
		assert_int_equal(pool_active(pool), most);
		for (uint32_t run = 0; run < 2000; run++) {
			struct job job = {0};

			run_one(pool, &job, ITEMS_MAX);
		}
		pool_destroy(&pool);
	}
	run_many(64, 100000, 0, 100, 0);
}

/* What `taskset -ap` does to this process. */
static void set_mask_of_all(const cpu_set_t *mask)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;

	assert_non_null(tasks);
	while ((entry = readdir(tasks)) != NULL)
		if (entry->d_name[0] != '.')
			assert_int_equal(sched_setaffinity((pid_t)strtol(entry->d_name, NULL, 10),
						 sizeof(*mask), mask),
				0);
	closedir(tasks);
}

static void run_until_active(struct pool *pool, uint32_t active)
{
	for (uint32_t run = 0; run < 5000 || pool_active(pool) != active; run++) {
		struct job job = {0};

		assert_true(run < 20000);
		run_one(pool, &job, ITEMS_MAX);
	}
}

static void a_cpu_that_goes_away_and_comes_back_is_followed(void **state)
{
	cpu_set_t all, one, now;
	struct pool *pool;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	if (CPU_COUNT(&all) < 2)
		skip(); /* there is none to take away */
	CPU_ZERO(&one);
	for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	for (int pin = 0; pin < 2; pin++) {
		uint32_t n = CPU_COUNT(&all) < 4 ? (uint32_t)CPU_COUNT(&all) : 4;

		assert_int_equal(pool_create(4, pin, 20000, &pool, NULL), 0);
		for (int times = 0; times < 3; times++) {
			run_until_active(pool, n);
			set_mask_of_all(&one);
			run_until_active(pool, 1);
			/* Nobody binds itself back to a CPU that was taken from it. */
			assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
			assert_true(CPU_EQUAL(&now, &one));
			set_mask_of_all(&all);
		}
		run_until_active(pool, n);
		pool_destroy(&pool);
		assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
		assert_true(CPU_EQUAL(&now, &all));
	}
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

/* What is fetched is not looked at: it may be anywhere, or nowhere. */
static void what_threads_fetch_while_they_wait_changes_nothing(void **state)
{
	static const unsigned char weights[100000];
	const uintptr_t places[] = {(uintptr_t)weights, 0, 1, UINTPTR_MAX - 100, UINTPTR_MAX / 2};
	const size_t sizes[] = {0, 1, 64, sizeof(weights), SIZE_MAX};
	uint64_t rng = 11;

	(void)state;
	for (uint32_t threads = 1; threads <= 5; threads += 2) {
		struct pool *pool = start(threads, 0, 20000);

		for (uint32_t run = 0; run < 500; run++) {
			struct job job = {0};

			for (uint32_t i = 0; i < threads; i++)
				pool_ahead(pool, i, (const void *)places[random_below(&rng, 5)],
					sizes[random_below(&rng, 5)]);
			run_one(pool, &job, random_below(&rng, ITEMS_MAX + 1));
		}
		pool_destroy(&pool);
	}
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
		cmocka_unit_test(
			items_run_once_when_some_take_long_and_their_neighbours_are_stolen),
		cmocka_unit_test(the_number_that_takes_part_changes_between_runs),
		cmocka_unit_test(no_more_threads_take_part_than_there_are_cpus),
		cmocka_unit_test(a_cpu_that_goes_away_and_comes_back_is_followed),
		cmocka_unit_test(pinned_threads_are_bound_and_the_callers_mask_returns),
		cmocka_unit_test(what_threads_fetch_while_they_wait_changes_nothing),
		cmocka_unit_test(one_thread_takes_the_items_in_order),
		cmocka_unit_test(impossible_thread_counts_are_refused_with_the_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
