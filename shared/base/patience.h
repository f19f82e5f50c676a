/*
 * How long to wait for another process, counting only time in which this process ran. After both
 * were stopped, or the machine stood still, much time is gone in which nobody could have answered;
 * the wait then begins anew.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A wait is divided into steps of at most this length. */
enum { PATIENCE_STEP_MS = 100 };

struct patience {
	uint64_t limit_ns, left_ns;
	uint64_t at_ns; /* time of the last check */
};

/* True when this process stood still during a step: it was to take step_ms and took took_ns. A busy
 * machine delays a process by less than that. On a machine that stands still again and again, a
 * wait lasts as long as it does. */
bool patience_stood_still(int step_ms, uint64_t took_ns);

/* limit_ms < 0 counts as 0: check once. */
void patience_init(struct patience *patience, int limit_ms);
/* How long to wait until the next check, in ms, at most PATIENCE_STEP_MS. The check must follow
 * then. 0: the time is over. */
int patience_step_ms(struct patience *patience);
