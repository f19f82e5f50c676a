#include "services/expert-cache/policies/published/balancer.h"

#include <math.h>
#include <stdbool.h>

struct times {
	double slow, fast, prefetches;
};

static struct times times_at(const struct balancer_inputs *in, uint32_t tau)
{
	struct times times = {0};
	for (uint32_t s = 0; s <= in->bound; s++) {
		if (s < tau) {
			times.slow += in->used[s] * in->load_ns;
		} else {
			times.fast += in->used[s] * in->compute_ns;
			times.prefetches += in->wanted[s];
		}
	}
	return times;
}

static bool feasible(const struct balancer_inputs *in, uint32_t tau)
{
	struct times times = times_at(in, tau);
	return in->load_ns * times.prefetches <= fmax(times.slow, times.fast) + in->window_ns &&
	       times.prefetches <= in->slots_left[tau];
}

/* Equation 39 looks only at the ends of the feasible range and beside the crossing. With K_u = 4,
 * looking at every value of the range is as fast, and needs no proof that the range is contiguous.
 */
uint32_t balancer_threshold(const struct balancer_inputs *inputs)
{
	uint32_t best = inputs->bound;
	double least = INFINITY;
	for (uint32_t tau = 1; tau <= inputs->bound; tau++) {
		if (!feasible(inputs, tau))
			continue;
		struct times times = times_at(inputs, tau);
		double difference = fabs(times.slow - times.fast);
		if (difference < least) {
			least = difference;
			best = tau;
		}
	}
	return best;
}
