/*
 * A doorbell in a shared region: the waiting side spins for a bounded time, then sleeps on a futex; the ringing side
 * makes a system call only when somebody sleeps. Any number of waiters, any process.
 *
 *	uint32_t seen = doorbell_read(bell);
 *	while (!condition())
 *		seen = doorbell_wait(bell, seen, spin_ns, timeout_ns);
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct doorbell {
	_Atomic uint32_t sequence;
	_Atomic uint32_t sleepers;
};

uint32_t doorbell_read(struct doorbell *bell);
/* Returns the sequence now, at once when it differs from seen. timeout_ns 0 = no limit. A dead ringer never rings:
 * callers that depend on a peer give a timeout and look whether it lives. */
uint32_t doorbell_wait(struct doorbell *bell, uint32_t seen, uint64_t spin_ns, uint64_t timeout_ns);
void doorbell_ring(struct doorbell *bell);
