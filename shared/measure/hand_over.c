#include "shared/measure/hand_over.h"

#include "shared/base/clock.h"

#include <stdatomic.h>

#define PATIENCE_NS 2000000 /* a thread that has not begun by then has no CPU */

struct meeting {
	atomic_uint arrived;
	uint32_t n;
};

/* Each item waits for the others, so that every thread that takes part must have got one. */
static void meet(void *arg, uint32_t item, uint32_t thread)
{
	struct meeting *meeting = arg;
	uint64_t end = clock_ns() + PATIENCE_NS;

	(void)item;
	(void)thread;
	atomic_fetch_add(&meeting->arrived, 1);
	while (atomic_load(&meeting->arrived) < meeting->n && clock_ns() < end)
		clock_relax();
}

double hand_over_us(struct pool *pool)
{
	struct meeting meeting = {.n = pool_active(pool)};
	uint64_t start = clock_ns();

	pool_run(pool, meet, &meeting, meeting.n);
	return (double)(clock_ns() - start) / 1e3;
}
