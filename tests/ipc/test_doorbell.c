#include "shared/base/clock.h"
#include "shared/ipc/doorbell.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SECOND 1000000000ull

struct table {
	struct doorbell ping, pong;
	_Atomic uint32_t served, returned;
};

static struct table *make(void)
{
	struct table *t =
		mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(t != MAP_FAILED);
	return t;
}

static bool wait_for(
	struct doorbell *bell, _Atomic uint32_t *word, uint32_t value, uint64_t spin_ns)
{
	uint32_t seen = doorbell_read(bell);

	while (atomic_load_explicit(word, memory_order_acquire) != value) {
		uint32_t now = doorbell_wait(bell, seen, spin_ns, 5 * SECOND);

		if (now == seen)
			return false; /* five seconds: the wake-up was lost */
		seen = now;
	}
	return true;
}

static void ping_pong(uint64_t spin_ns, uint32_t rounds)
{
	struct table *t = make();
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		for (uint32_t i = 1; i <= rounds; i++) {
			if (!wait_for(&t->ping, &t->served, i, spin_ns))
				_exit(1);
			atomic_store_explicit(&t->returned, i, memory_order_release);
			doorbell_ring(&t->pong);
		}
		_exit(0);
	}
	for (uint32_t i = 1; i <= rounds; i++) {
		atomic_store_explicit(&t->served, i, memory_order_release);
		doorbell_ring(&t->ping);
		assert_true(wait_for(&t->pong, &t->returned, i, spin_ns));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(atomic_load(&t->ping.sleepers), 0);
	assert_int_equal(atomic_load(&t->pong.sleepers), 0);
	munmap(t, sizeof *t);
}

static void no_wake_up_is_lost_between_sleepers(void **state)
{
	(void)state;
	ping_pong(0, 20000);
}

static void no_wake_up_is_lost_between_spinners_that_fall_asleep(void **state)
{
	(void)state;
	ping_pong(1,
		20000); /* one round of pauses, about as long as a hop takes: falls asleep at the worst moment */
	ping_pong(3000, 20000);
}

static void a_sequence_that_moved_before_ends_the_wait_at_once(void **state)
{
	struct table *t = make();
	uint32_t seen = doorbell_read(&t->ping);

	(void)state;
	doorbell_ring(&t->ping);
	/* Without a time limit: who slept would sleep for ever. */
	assert_int_equal(doorbell_wait(&t->ping, seen, 0, 0), seen + 1);
	munmap(t, sizeof *t);
}

static void nobody_rings_and_the_timeout_ends_it(void **state)
{
	static const uint64_t spins[] = {0, 1000000, 100000 * SECOND};
	struct table *t = make();

	(void)state;
	for (int i = 0; i < 3; i++) {
		uint64_t start = clock_ns();

		assert_int_equal(doorbell_wait(&t->ping, 0, spins[i], 20000000), 0);
		assert_true(clock_ns() - start >= 20000000);
		assert_int_equal(atomic_load(&t->ping.sleepers), 0);
	}
	munmap(t, sizeof *t);
}

static void one_ring_wakes_every_waiter(void **state)
{
	struct table *t = make();
	pid_t pids[4];

	(void)state;
	for (int i = 0; i < 4; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0)
			_exit(doorbell_wait(&t->ping, 0, 0, 600 * SECOND) == 1 ? 0 : 1);
	}
	while (atomic_load(&t->ping.sleepers) != 4)
		usleep(100);
	doorbell_ring(&t->ping);
	for (int i = 0; i < 4; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	munmap(t, sizeof *t);
}

static void a_waiter_killed_asleep_costs_no_wake_up(void **state)
{
	struct table *t = make();
	pid_t pid = fork();
	int status;

	(void)state;
	assert_true(pid >= 0);
	if (pid == 0)
		_exit((int)doorbell_wait(&t->ping, 0, 0, 0));
	while (atomic_load(&t->ping.sleepers) != 1)
		usleep(100);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_int_equal(atomic_load(&t->ping.sleepers), 1);

	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		doorbell_take_over(&t->ping);
		_exit(doorbell_wait(&t->ping, 0, 0, 600 * SECOND) == 1 ? 0 : 1);
	}
	usleep(20000);
	doorbell_ring(&t->ping);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(atomic_load(&t->ping.sleepers), 0);
	munmap(t, sizeof *t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_wake_up_is_lost_between_sleepers),
		cmocka_unit_test(no_wake_up_is_lost_between_spinners_that_fall_asleep),
		cmocka_unit_test(a_sequence_that_moved_before_ends_the_wait_at_once),
		cmocka_unit_test(nobody_rings_and_the_timeout_ends_it),
		cmocka_unit_test(one_ring_wakes_every_waiter),
		cmocka_unit_test(a_waiter_killed_asleep_costs_no_wake_up),
	};

	return cmocka_run_group_tests_name("doorbell", tests, NULL, NULL);
}
