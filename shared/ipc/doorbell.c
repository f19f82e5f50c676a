#include "shared/ipc/doorbell.h"

#include "shared/base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS_PER_CLOCK = 16 }; /* reading the clock costs about as much as eight pauses */

/* The word lies in memory that several processes map, so the futex must not be private: that flag
 * makes the kernel key its queue by process and address, and a ring from another process would wake
 * nobody. */
static void futex_wait_until(
	_Atomic uint32_t *word, uint32_t value, const struct timespec *deadline)
{
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, deadline, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t doorbell_read(struct doorbell *bell)
{
	/* Acquire pairs with the release half of the increment in doorbell_ring: a waiter that sees
	 * the new sequence sees everything written before the ring. Without it a waiter could be
	 * woken, find its condition still false, and sleep again. */
	return atomic_load_explicit(&bell->sequence, memory_order_acquire);
}

static uint32_t spin(struct doorbell *bell, uint32_t seen, uint64_t until_ns)
{
	uint32_t now;

	do {
		for (int i = 0; i < SPINS_PER_CLOCK; i++) {
			now = doorbell_read(bell);
			if (now != seen)
				return now;
			clock_relax();
		}
	} while (clock_ns() < until_ns);
	return now;
}

/* Counts the caller as asleep and returns the sequence as it is after that. */
static uint32_t count_asleep(struct doorbell *bell)
{
	/* Dekker's algorithm: we store sleepers and then read sequence; the ringer stores sequence
	 * and then reads sleepers. All four operations are sequentially consistent, so at least one
	 * side sees the other's store. With anything weaker both could read the old values: we
	 * would sleep on a sequence that has moved, and the ringer would wake nobody. */
	atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
	return atomic_load_explicit(&bell->sequence, memory_order_seq_cst);
}

/* Never below zero: doorbell_take_over may have cleared our count, and a hostile peer may write
 * anything. */
void doorbell_get_up(struct doorbell *bell)
{
	uint32_t n = atomic_load_explicit(&bell->sleepers, memory_order_relaxed);

	while (n != 0 && !atomic_compare_exchange_weak_explicit(&bell->sleepers, &n, n - 1,
				 memory_order_relaxed, memory_order_relaxed))
		;
}

bool doorbell_lie_down(struct doorbell *bell, uint32_t seen)
{
	if (count_asleep(bell) == seen)
		return true;
	doorbell_get_up(bell);
	return false;
}

uint32_t doorbell_wait(struct doorbell *bell, uint32_t seen, uint64_t spin_ns, uint64_t timeout_ns)
{
	uint32_t now = doorbell_read(bell);
	struct timespec deadline;
	uint64_t start_ns, end_ns;

	if (now != seen)
		return now;
	start_ns = clock_ns();
	end_ns = timeout_ns == 0 || timeout_ns > (uint64_t)INT64_MAX - start_ns
			 ? INT64_MAX
			 : start_ns + timeout_ns;
	if (spin_ns != 0) {
		uint64_t spin_end_ns = spin_ns < end_ns - start_ns ? start_ns + spin_ns : end_ns;

		now = spin(bell, seen, spin_end_ns);
		if (now != seen)
			return now;
	}
	deadline.tv_sec = (time_t)(end_ns / 1000000000u);
	deadline.tv_nsec = (long)(end_ns % 1000000000u);
	now = count_asleep(bell);
	while (now == seen && clock_ns() < end_ns) {
		/* The kernel compares the sequence once more under its own lock, which closes the
		 * gap before the sleep itself. Whatever ends the sleep (a ring, a signal, the
		 * deadline, a changed sequence), the loop reads the sequence again. */
		futex_wait_until(&bell->sequence, seen, end_ns == INT64_MAX ? NULL : &deadline);
		now = atomic_load_explicit(&bell->sequence, memory_order_seq_cst);
	}
	doorbell_get_up(bell);
	return now;
}

void doorbell_ring(struct doorbell *bell)
{
	/* Sequentially consistent on both: the ringer's half of Dekker's algorithm in count_asleep.
	 * The increment is also the release that pairs with the acquire in doorbell_read. If a
	 * ringer is killed between the two, the sleepers go on sleeping; the next ring finds them
	 * counted and wakes them. */
	atomic_fetch_add_explicit(&bell->sequence, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) != 0)
		futex_wake_all(&bell->sequence);
}

void doorbell_take_over(struct doorbell *bell)
{
	/* Relaxed is enough: the caller's next increment is to the same variable, so every ringer
	 * that sees the increment also sees this store. */
	atomic_store_explicit(&bell->sleepers, 0, memory_order_relaxed);
}
