/* The last iterations of a session: their times and tokens. Plain memory, no allocation. */
#pragma once

#include "shared/base/limits.h"

enum { WINDOW_MAX = 64 };

struct window {
	uint32_t n; /* added since the reset; the last WINDOW_MAX are kept */
	uint64_t ns[WINDOW_MAX];
	uint32_t drafted[WINDOW_MAX], emitted[WINDOW_MAX];
	uint32_t sessions[WINDOW_MAX]; /* batch size */
};

void window_reset(struct window *window);
/* drafted: at most LIMIT_DRAFT. */
void window_add(
	struct window *window, uint64_t ns, uint32_t drafted, uint32_t emitted, uint32_t sessions);
uint32_t window_size(const struct window *window);

/* The mean of the times, where the time of iterations with equally many drafted tokens is their
 * median: one that the machine delayed does not move it (the papers say nothing of noise), and
 * iterations without a draft, which an n-gram drafter has many of, count for what they are. 0 when
 * empty. */
double window_time_ns(const struct window *window);
/* Tokens per iteration (ETR); 0 when empty. */
double window_etr(const struct window *window);
/* The batch size seen most often; 0 when empty. */
uint32_t window_sessions(const struct window *window);
