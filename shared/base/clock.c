#include "shared/base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_thread_cpu_ns(void)
{
	return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t clock_wall_of(uint64_t monotonic_ns)
{
	uint64_t now_ns = clock_ns(), wall_ns = read_clock(CLOCK_REALTIME);
	uint64_t age_ns = monotonic_ns < now_ns ? now_ns - monotonic_ns : 0;
	return age_ns < wall_ns ? wall_ns - age_ns : wall_ns;
}
