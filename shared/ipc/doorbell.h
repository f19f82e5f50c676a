/*
 * A doorbell in a shared region. The waiting side spins for a bounded time and then sleeps on a
 * futex; the ringing side makes a system call only when somebody sleeps. Any number of threads, of
 * any processes, may wait and ring.
 *
 *	uint32_t seen = doorbell_read(bell);
 *	while (!condition())
 *		seen = doorbell_wait(bell, seen, spin_ns, timeout_ns);
 *
 * A waiter that is killed in its sleep leaves `sleepers` one too high. No wake-up is lost by that,
 * but every ring makes a needless system call until the waiter's successor calls
 * doorbell_take_over. A ringer that is killed inside doorbell_ring may have changed the sequence
 * and wake nobody: waiters that sleep then go on until the next ring or their timeout. The protocol
 * is modelled in tests/spin/doorbell.pml.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct doorbell {
	_Atomic uint32_t sequence;
	_Atomic uint32_t sleepers;
};

/* Returns the present sequence. Read it before testing the condition: any later ring then ends the
 * wait. */
uint32_t doorbell_read(struct doorbell *bell);
/* Waits until the sequence differs from `seen` and returns it; returns at once if it differs
 * already. Spins for spin_ns, then sleeps. After timeout_ns (0: no limit) it returns a value equal
 * to `seen`. A dead ringer never rings, so a caller that depends on a peer passes a timeout and
 * then checks whether the peer lives. */
uint32_t doorbell_wait(struct doorbell *bell, uint32_t seen, uint64_t spin_ns, uint64_t timeout_ns);
/* Wakes all waiters. A waiter that returns sees what the ringer wrote before the ring. Costs a full
 * memory barrier, and a system call when somebody sleeps. */
void doorbell_ring(struct doorbell *bell);

/* For a waiter that sleeps on the sequence by other means, together with other events: io_uring's
 * futex wait (shared, 32 bits). doorbell_lie_down counts it as asleep. False: the bell was rung
 * after `seen` was read; do not sleep. True: until doorbell_get_up, ringers wake a thread that
 * sleeps on the sequence. A futex wait still queued in the kernel from an earlier sleep serves for
 * this one as well. */
bool doorbell_lie_down(struct doorbell *bell, uint32_t seen);
void doorbell_get_up(struct doorbell *bell);
/* A bell and the sequence read from it, for functions that wait for other events and must also
 * return when the bell rings. */
struct doorbell_seen {
	struct doorbell *bell;
	uint32_t sequence;
};
/* Called by the successor of a bell's only waiter (such as the consumer of a ring) before its first
 * wait: clears the count of sleepers that its dead predecessor may have left. Never call it while
 * somebody else may be asleep on the bell. */
void doorbell_take_over(struct doorbell *bell);
