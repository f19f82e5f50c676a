/*
 * How long to wait for another process, counted in time in which this one ran. Who is stopped together with the other, or
 * whose machine stood still, finds much time gone when it wakes, in which nobody could have answered: the wait begins anew.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A wait is cut into steps of at most so long. */
enum { PATIENCE_STEP_MS = 100 };

struct patience {
	uint64_t limit_ns, left_ns;
	uint64_t at_ns; /* the last look */
};

/* A step that was to take step_ms took took_ns: whether this process stood still meanwhile. What a busy machine keeps a
 * process waiting for is less; who waits on one that stands still again and again waits for as long as it does. */
bool patience_stood_still(int step_ms, uint64_t took_ns);

/* limit_ms < 0 is 0: one look. */
void patience_init(struct patience *patience, int limit_ms);
/* How long to wait until the next look, in ms, at most PATIENCE_STEP_MS: it must follow then. 0: the time is over. */
int patience_step_ms(struct patience *patience);
