/* One clock for all processes: CLOCK_MONOTONIC in nanoseconds. Deadlines in shared memory use it.
 */
#pragma once

#include <stdint.h>

uint64_t clock_ns(void);
/* Processor time that the calling thread has used. Time in which it did not run does not count. */
uint64_t clock_thread_cpu_ns(void);

/* Converts a CLOCK_MONOTONIC time to CLOCK_REALTIME. monotonic_ns may come from another process; a
 * time in the future becomes now. */
uint64_t clock_wall_of(uint64_t monotonic_ns);
/* The same for many times: both clocks are read once. */
struct clock_pair {
	uint64_t monotonic_ns, wall_ns;
};
struct clock_pair clock_pair(void);
uint64_t clock_wall_by(const struct clock_pair *now, uint64_t monotonic_ns);

/* A pause inside a spin loop. */
static inline void clock_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}
