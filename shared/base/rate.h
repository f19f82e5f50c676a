/*
 * How fast a counter grew in the last ten seconds: samples taken at the ticks of a loop, up to four
 * per second. One thread.
 */
#pragma once

#include <stdint.h>

enum { RATE_SAMPLES = 40 }; /* at four ticks a second */

struct rate {
	uint64_t at_ns[RATE_SAMPLES], total[RATE_SAMPLES];
	uint32_t n; /* samples taken so far; the last RATE_SAMPLES are kept */
};

void rate_note(struct rate *rate, uint64_t now_ns, uint64_t total);
/* By how much the counter has grown since the oldest sample of the last ten seconds; *ns: how long
 * ago that was. 0, and *ns = 0, before the first sample. */
uint64_t rate_grown(const struct rate *rate, uint64_t now_ns, uint64_t total, uint64_t *ns);
