/* One clock for all processes: CLOCK_MONOTONIC, nanoseconds. Deadlines in shared memory are in it. */
#pragma once

#include <stdint.h>

uint64_t clock_ns(void);
/* Processor time of the calling thread: what a busy machine takes away does not count. */
uint64_t clock_thread_cpu_ns(void);

/* CLOCK_REALTIME of what was at monotonic_ns, which may be another process's word: of what lies ahead, now. */
uint64_t clock_wall_of(uint64_t monotonic_ns);
/* The same for many: both clocks are read once. */
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
