/* The last iterations of a session: their times and tokens. Plain memory, no allocation. */
#pragma once

#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

enum { WINDOW_MAX = 64 };

struct window_iteration {
	uint64_t ns;
	uint32_t drafted, emitted; /* by the session; drafted: at most LIMIT_DRAFT_DEPTH */
	uint32_t sessions, others; /* of the batch: its size; drafted tokens of the rest of it */
};

struct window {
	uint32_t n; /* added since the reset; the last WINDOW_MAX are kept */
	struct window_iteration kept[WINDOW_MAX];
};

void window_reset(struct window *window);
void window_add(struct window *window, const struct window_iteration *iteration);
uint32_t window_size(const struct window *window);
/* i below window_size: the oldest is 0. */
const struct window_iteration *window_at(const struct window *window, uint32_t i);

/* The mean of a value of each kept iteration; 0 when empty. values: [window_size], as window_at counts. With medians the value
 * of iterations with equally many drafted tokens is their median: one that the machine delayed does not move it, and
 * iterations without a draft, which an n-gram drafter has many of, count for what they are. */
double window_mean(const struct window *window, const double *values, bool medians);
/* That of the times. */
double window_time_ns(const struct window *window, bool medians);
/* Tokens per iteration (ETR); 0 when empty. */
double window_etr(const struct window *window);
