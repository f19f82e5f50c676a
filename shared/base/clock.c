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

struct clock_pair clock_pair(void)
{
	return (struct clock_pair){clock_ns(), read_clock(CLOCK_REALTIME)};
}

uint64_t clock_wall_by(const struct clock_pair *now, uint64_t monotonic_ns)
{
	uint64_t age_ns = monotonic_ns < now->monotonic_ns ? now->monotonic_ns - monotonic_ns : 0;
	return age_ns < now->wall_ns ? now->wall_ns - age_ns : now->wall_ns;
}

uint64_t clock_wall_of(uint64_t monotonic_ns)
{
	struct clock_pair now = clock_pair();
	return clock_wall_by(&now, monotonic_ns);
}
