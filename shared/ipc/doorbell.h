/*
 * A doorbell in a shared region: the waiting side spins for a bounded time, then sleeps on a futex; the ringing side
 * makes a system call only when somebody sleeps. Any number of waiters and ringers, any process.
 *
 *	uint32_t seen = doorbell_read(bell);
 *	while (!condition())
 *		seen = doorbell_wait(bell, seen, spin_ns, timeout_ns);
 *
 * A waiter killed in its sleep leaves `sleepers` one too high. That loses no wake-up; it costs a needless
 * system call per ring, until the waiter's successor calls doorbell_take_over. tests/spin/doorbell.pml is the protocol.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct doorbell {
	_Atomic uint32_t sequence;
	_Atomic uint32_t sleepers;
};

/* Read it before looking at the condition: what is rung after that ends the wait. */
uint32_t doorbell_read(struct doorbell *bell);
/* Returns the sequence now, at once when it differs from seen. timeout_ns 0 = no limit; after a timeout the result equals
 * seen. A dead ringer never rings: callers that depend on a peer give a timeout and look whether it lives. */
uint32_t doorbell_wait(struct doorbell *bell, uint32_t seen, uint64_t spin_ns, uint64_t timeout_ns);
void doorbell_ring(struct doorbell *bell);

/* For a waiter that sleeps on the sequence by other means (io_uring's futex wait, shared, of 32 bits), beside other things.
 * False: the bell has been rung since it was seen. True: ringers wake who sleeps on it from now on until
 * doorbell_get_up; a wait that the kernel has queued in an earlier sleep and nobody has woken will do. */
bool doorbell_lie_down(struct doorbell *bell, uint32_t seen);
void doorbell_get_up(struct doorbell *bell);
/* A bell and its sequence when it was read: for waits that end with a ring, too. */
struct doorbell_seen {
	struct doorbell *bell;
	uint32_t sequence;
};
/* By the successor of a bell's only waiter (the consumer of a ring), before its first wait: forgets the sleeper its
 * dead predecessor may have left. Never while somebody else may be asleep on the bell. */
void doorbell_take_over(struct doorbell *bell);
