#include "shared/base/rate.h"

#define WINDOW_NS UINT64_C(10000000000)

void rate_note(struct rate *rate, uint64_t now_ns, uint64_t total)
{
	uint32_t i = rate->n++ % RATE_SAMPLES;

	rate->at_ns[i] = now_ns;
	rate->total[i] = total;
}

uint64_t rate_grown(const struct rate *rate, uint64_t now_ns, uint64_t total, uint64_t *ns)
{
	uint32_t kept = rate->n < RATE_SAMPLES ? rate->n : RATE_SAMPLES;

	for (uint32_t age = kept; age > 0; age--) {
		uint32_t i = (rate->n - age) % RATE_SAMPLES;

		if (rate->at_ns[i] < now_ns && now_ns - rate->at_ns[i] <= WINDOW_NS) {
			*ns = now_ns - rate->at_ns[i];
			return total - rate->total[i];
		}
	}
	*ns = 0;
	return 0;
}
