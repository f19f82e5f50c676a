/*
 * The next layer's gate on this layer's hidden state: AdapMoE (Zhong et al., arXiv 2408.10284) and
 * Fate (Fang et al., arXiv 2502.12224) apply the router of layer l + 1 to the input of layer l's
 * feed-forward, because the residual stream changes little from layer to layer. Prefetches only
 * these hints, and evicts the least recently used expert. A prefetch that was not loaded when its
 * layer runs is obsolete.
 *
 * Not implemented: AdapMoE's shares of the cache for each layer and its adaptive number of experts
 * per token (lossy), Fate's quantised experts and its cache that favours early layers.
 */
#include "services/expert-cache/policies/published/lru.h"

#include <stdlib.h>

struct gate_next {
	struct lru lru; /* first, so that its functions can take this struct for theirs */
	uint64_t iteration; /* that of the layer that runs */
	bool running;
};

static int gate_create(const struct cache_policy_shape *shape, void **out, struct error *err)
{
	struct gate_next *gate = calloc(1, sizeof(*gate));
	if (gate == NULL)
		return error_set(err, ENOMEM, "no memory for a cache policy");
	int status = lru_init(&gate->lru, shape, err);
	if (status != 0) {
		free(gate);
		return status;
	}
	*out = gate;
	return 0;
}

static void gate_destroy(void *policy)
{
	struct gate_next *gate = policy;
	lru_exit(&gate->lru);
	free(gate);
}

static void begin_layer(struct gate_next *gate, const struct cache_use *use)
{
	if (gate->running && use->iteration == gate->iteration)
		return;
	gate->running = true;
	gate->iteration = use->iteration;
	prefetch_queue_passed(&gate->lru.queue, use->layer);
}

static void gate_use(void *policy, const struct cache_use *use)
{
	begin_layer(policy, use);
	lru_use(policy, use);
}

static void gate_hint(void *policy, const struct cache_hint *hint, uint32_t slot)
{
	if (hint->source == HINT_GATE)
		lru_hint(policy, hint, slot);
}

const struct cache_policy_ops policy_gate_next = {
	.name = "gate-next",
	.help = "the next layer's router on this layer's state (AdapMoE, Fate); LRU",
	.hint_sources = 1u << HINT_GATE,
	.create = gate_create,
	.destroy = gate_destroy,
	.on_load = lru_load,
	.on_evict = lru_evict,
	.on_demand = lru_demand,
	.on_activation = gate_use,
	.on_hint = gate_hint,
	.next = lru_next,
	.put_back = lru_put_back,
	.queued = lru_queued,
	.victim = lru_victim,
};
