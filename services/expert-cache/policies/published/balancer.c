#include "services/expert-cache/policies/published/balancer.h"

#include "shared/spec/balance.h"

uint32_t balancer_threshold(const struct balancer_inputs *inputs)
{
	struct balance_split split[UTILITY_BOUND + 1] = {{0}};
	for (uint32_t tau = 1; tau <= inputs->bound; tau++) {
		for (uint32_t s = 0; s < tau; s++)
			split[tau].cpu_ns += inputs->used[s] * inputs->load_ns;
		for (uint32_t s = tau; s <= inputs->bound; s++) {
			split[tau].gpu_ns += inputs->used[s] * inputs->compute_ns;
			split[tau].streamed += inputs->wanted[s];
		}
		split[tau].slots = inputs->slots_left[tau];
	}
	return balance_threshold(split, inputs->bound, inputs->load_ns, inputs->window_ns);
}
