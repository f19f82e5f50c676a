/*
 * How fast a counter has grown lately: samples of the last ten seconds, taken at the ticks of a loop, up to four a second. On one thread.
 */
#pragma once

#include <stdint.h>

enum { RATE_SAMPLES = 40 }; /* at four ticks a second */

struct rate {
	uint64_t at_ns[RATE_SAMPLES], total[RATE_SAMPLES];
	uint32_t n; /* taken, ever; the last RATE_SAMPLES are kept */
};

void rate_note(struct rate *rate, uint64_t now_ns, uint64_t total);
/* How much it has grown since the oldest sample of the last ten seconds, and in *ns for how long that was; 0 in 0 ns before the
 * first. */
uint64_t rate_grown(const struct rate *rate, uint64_t now_ns, uint64_t total, uint64_t *ns);
