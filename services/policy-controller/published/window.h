/* The last iterations of a session, with times and tokens, for cascade. Plain memory, no
 * allocation. */
#pragma once

#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

enum { WINDOW_MAX = 64 };

struct window_iteration {
	uint64_t ns;
	uint32_t drafted, emitted; /* of the session; drafted: at most LIMIT_DRAFT_DEPTH */
	/* sessions: in the batch; others: drafted tokens of the rest of the batch */
	uint32_t sessions, others;
};

struct window {
	uint32_t n; /* number added since the reset; the last WINDOW_MAX are kept */
	struct window_iteration kept[WINDOW_MAX];
};

void window_reset(struct window *window);
void window_add(struct window *window, const struct window_iteration *iteration);
uint32_t window_size(const struct window *window);
/* i < window_size; 0 is the oldest. */
const struct window_iteration *window_at(const struct window *window, uint32_t i);

/* The mean of a value per kept iteration; 0 when the window is empty. values: [window_size], in the
 * order of window_at. medians: the value of iterations with the same number of drafted tokens is
 * replaced by their median. Then a delayed iteration does not move the mean, and iterations without
 * a draft, which are frequent with n-grams, count as they are. */
double window_mean(const struct window *window, const double *values, bool medians);
/* The mean of the times. */
double window_time_ns(const struct window *window, bool medians);
/* Tokens per iteration (ETR); 0 when empty. */
double window_etr(const struct window *window);
