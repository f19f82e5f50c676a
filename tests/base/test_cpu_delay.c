#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "shared/base/cpu_delay.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

static atomic_bool stop;

static void *spin(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop))
		;
	return NULL;
}

/* Another thread wants the only CPU that this one may use. */
static void waiting_for_a_cpu_is_counted(void **state)
{
	(void)state;
	pthread_t other;
	cpu_set_t before, one;
	int fd = cpu_delay_open(), cpu = sched_getcpu();

	if (fd < 0 || cpu < 0)
		skip(); /* a kernel without scheduler statistics */
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&one);
	CPU_SET((size_t)cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	uint64_t then = cpu_delay_ns(fd);
	assert_int_equal(pthread_create(&other, NULL, spin, NULL), 0);
	while (cpu_delay_ns(fd) - then < 1000000)
		;
	atomic_store(&stop, true);
	assert_int_equal(pthread_join(other, NULL), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
	close(fd);
}

static void nobody_tells_is_none(void **state)
{
	(void)state;
	assert_true(cpu_delay_ns(-1) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waiting_for_a_cpu_is_counted),
		cmocka_unit_test(nobody_tells_is_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
