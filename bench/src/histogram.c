#include "bench/src/histogram.h"

void histogram_record(struct histogram *h, uint64_t ns)
{
	unsigned e = ns < 1024 ? 0 : 54 - (unsigned)__builtin_clzll(ns);
	size_t bin = (size_t)e * 512 + (size_t)(ns >> e);

	if (bin < sizeof h->bins / sizeof h->bins[0])
		h->bins[bin]++;
	h->n++;
	if (ns > h->max_ns)
		h->max_ns = ns;
}

double histogram_quantile_ns(const struct histogram *h, double q)
{
	uint64_t want = (uint64_t)(q * (double)h->n), seen = 0;

	for (size_t i = 0; i < sizeof h->bins / sizeof h->bins[0]; i++) {
		seen += h->bins[i];
		if (seen > want) {
			size_t e = i < 1024 ? 0 : i / 512 - 1;

			return (double)((i - e * 512) << e);
		}
	}
	return (double)h->max_ns;
}
