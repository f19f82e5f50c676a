/*
 * The times of one measurement, in nanoseconds, log-linear: exact below 1024 ns, then 512 bins per
 * octave (0.2 %). Used by any benchmark, from one thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct histogram {
	uint64_t bins[34 * 512];
	uint64_t n, max_ns;
};

void histogram_record(struct histogram *h, uint64_t ns);
/* q in 0..1; at 1, and when nothing was recorded, the maximum. */
double histogram_quantile_ns(const struct histogram *h, double q);
