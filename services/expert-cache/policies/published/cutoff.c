#include "services/expert-cache/policies/published/cutoff.h"

#include <stdbool.h>

/* True when everything below `cutoff` fits. From the last layer down, `loads` is the sum over l <=
 * j < cutoff of N_j. */
static bool fits(const struct cutoff_inputs *in, uint32_t cutoff)
{
	double end_ns = (double)in->draft_tokens * in->n_layers * in->draft_layer_ns;
	double loads = 0;
	for (uint32_t l = cutoff; l-- > 0;) {
		loads += in->new_experts[l];
		if ((l + 1) * in->draft_layer_ns + loads * in->load_ns > end_ns)
			return false;
	}
	return loads <= in->n_slots;
}

uint32_t cutoff_solve(const struct cutoff_inputs *inputs)
{
	if (!(inputs->draft_layer_ns > 0) || !(inputs->load_ns > 0) || inputs->draft_tokens == 0)
		return inputs->n_layers;
	/* Both sides grow with the cutoff: the first value that does not fit ends the search. */
	uint32_t cutoff = 0;
	while (cutoff < inputs->n_layers && fits(inputs, cutoff + 1))
		cutoff++;
	return cutoff;
}
