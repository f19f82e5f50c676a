/* Indices come from peers; each is checked. */
#include "services/expert-cache/transfer_rings.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"

#include <inttypes.h>
#include <math.h>

/* Until it is needed, a hinted expert is not evicted for another hint. The time comes from the peer
 * and is limited to this. */
#define NEEDED_NS_MAX 2000000000ull
/* Policies tell runs of layers apart by their numbers; the verifier's are times in ns. */
#define HEAD_ITERATIONS (UINT64_C(1) << 63)

static bool in_model(const struct transfer *transfer, uint32_t layer, uint32_t expert)
{
	const struct slots_geometry *geometry = &transfer->store->geometry;
	return layer < geometry->n_layers && expert < geometry->n_experts &&
	       geometry->layers[layer].moe;
}

static void take_demand(struct transfer *transfer, const struct slot_demand *demand)
{
	struct store *store = transfer->store;
	uint32_t layer = demand->layer, expert = demand->expert;
	if (!in_model(transfer, layer, expert))
		return;
	struct device *device = demand->device != 0 ? transfer->device : NULL;
	if (demand->iteration != store->demand) {
		/* The verifier has gone on, and waits for none of the earlier demands. */
		store_begin_demand(store, demand->iteration);
		transfer->n_wanted = 0;
	}
	uint32_t slot = store_find(store, layer, expert);
	if (device != NULL && (device_demand(device, demand) || slot != SLOT_NONE)) {
		if (slot != SLOT_NONE)
			store_protect(store, slot);
		return;
	}
	struct cache_use use = {.layer = layer,
		.expert = expert,
		.tokens = demand->tokens,
		.slot = slot,
		.iteration = demand->iteration};
	store->policy->on_demand(store->policy_state, &use);
	if (slot != SLOT_NONE) {
		store_protect(store, slot);
		return;
	}
	uint32_t packing = store_packing(store, layer, expert);
	if (packing != SLOT_NONE) {
		store_protect(store, packing);
		return;
	}
	if (store_loading(store, layer, expert)) {
		loads_demand(&transfer->loads, layer, expert);
		return;
	}
	if (transfer->n_wanted == 0)
		transfer->wanted_since_ns = clock_ns();
	if (transfer->n_wanted < LIMIT_EXPERTS)
		transfer->wanted[transfer->n_wanted++] =
			(struct wanted){demand->layer, demand->expert, demand->time_ns};
}

static void take_activation(
	struct transfer *transfer, const struct slot_activation *activation, uint64_t now_ns)
{
	struct store *store = transfer->store;
	uint32_t n = activation->n;
	if (n > SLOT_ACTIVATION_PAIRS)
		return;
	if (in_model(transfer, activation->layer, 0))
		loads_layer(&transfer->loads, activation->layer);
	for (uint32_t i = 0; i < n; i++) {
		struct cache_use use = {.layer = activation->layer,
			.expert = activation->expert_tokens[2 * i],
			.tokens = activation->expert_tokens[2 * i + 1],
			.session = activation->session,
			.iteration = activation->iteration};
		if (!in_model(transfer, use.layer, use.expert))
			continue;
		if (transfer->options.quality)
			hint_quality_used(transfer->options.quality, use.layer, use.expert,
				use.iteration, activation->begun_ns);
		use.slot = store_find(store, use.layer, use.expert);
		store->policy->on_activation(store->policy_state, &use);
		store_use(store, &use);
		if (transfer->device != NULL)
			device_use(transfer->device, &use);
		else if (use.slot != SLOT_NONE)
			packer_used(&transfer->packer, use.slot, use.tokens, now_ns);
	}
}

/* Experts that the drafter's head used, which it reads from the file where they are missing. They
 * come between two passes of the verifier: behind its last layer, and before its first. */
static void take_head_use(struct transfer *transfer, const struct slot_activation *used)
{
	struct store *store = transfer->store;
	const struct slots_geometry *geometry = &store->geometry;
	if (used->layer < geometry->n_layers - geometry->n_drafting ||
		used->layer >= geometry->n_layers || used->n > SLOT_ACTIVATION_PAIRS)
		return;
	for (uint32_t i = 0; i < used->n; i++) {
		struct cache_use use = {.layer = used->layer,
			.expert = used->expert_tokens[2 * i],
			.tokens = used->expert_tokens[2 * i + 1],
			.iteration = HEAD_ITERATIONS | used->iteration};
		if (!in_model(transfer, use.layer, use.expert))
			continue;
		use.slot = store_find(store, use.layer, use.expert);
		store->policy->on_activation(store->policy_state, &use);
		store_use(store, &use);
		if (use.slot != SLOT_NONE || store_loading(store, use.layer, use.expert) ||
			transfer->n_missed == TRANSFER_MISSED)
			continue;
		transfer->missed[transfer->n_missed++] =
			(struct cache_prefetch){.layer = use.layer, .expert = use.expert};
	}
}

static void take_hint(struct transfer *transfer, const struct slot_hint *hint, uint64_t now_ns)
{
	struct store *store = transfer->store;
	if (!in_model(transfer, hint->layer, hint->expert))
		return;
	if (!isfinite(hint->score) || hint->source >= HINT_SOURCES)
		return;
	counter_add(&store->slots.header->hints, 1);
	if (transfer->options.quality && !hint_quality_hinted(transfer->options.quality, hint))
		return;
	uint32_t slot = store_find(store, hint->layer, hint->expert);
	uint64_t latest_ns = now_ns + NEEDED_NS_MAX;
	struct cache_hint entry = {.layer = hint->layer,
		.expert = hint->expert,
		.source = (enum hint_source)hint->source,
		.score = hint->score,
		.coming = slot == SLOT_NONE && store_loading(store, hint->layer, hint->expert),
		.session = hint->session,
		.needed_by_ns = hint->needed_by_ns < latest_ns ? hint->needed_by_ns : latest_ns,
		.made_ns = hint->made_ns,
		.iteration = hint->iteration};
	store->policy->on_hint(store->policy_state, &entry, slot);
	/* The blocks that draft are computed elsewhere. */
	const struct slots_geometry *geometry = &store->geometry;
	if (transfer->device != NULL && hint->layer < geometry->n_layers - geometry->n_drafting)
		device_hint(transfer->device, &entry);
}

/* A ring whose counters somebody has overwritten would read as empty for ever. Entries that found
 * no room were lost while this thread was late or stopped: a policy without them knows less, and
 * nobody waits for it. */
static void look_after(struct ring *ring, const char *name, uint64_t *lost)
{
	if (ring_mend_consumer(ring))
		log_limited(LOG_LEVEL_NOTICE, "the ring of %s was corrupt; it starts again empty",
			name);
	uint64_t now = ring_dropped(ring);
	if (now == *lost)
		return;
	log_limited(LOG_LEVEL_NOTICE,
		"%" PRIu64 " %s were dropped because this process was late; %" PRIu64
		" in all; answers do not change",
		now - *lost, name, now);
	*lost = now;
}

/* Demands before activations. The verifier pushes them in the opposite order, so every demand that
 * is seen has its layer's activations with it, and they are known when a victim is chosen. */
void transfer_drain(struct transfer *transfer)
{
	struct slots *slots = &transfer->store->slots;
	struct transfer_lost *lost = &transfer->lost;
	look_after(&slots->demands, "demands", &lost->demands);
	look_after(&slots->activations, "activations", &lost->activations);
	look_after(&slots->hints, "hints", &lost->hints);
	look_after(&slots->gates, "gate hints", &lost->gates);
	look_after(&slots->heads, "uses of the head", &lost->heads);
	struct slot_demand demand;
	for (int i = 0; i < SLOTS_DEMAND_RING && ring_get(&slots->demands, &demand, sizeof(demand));
		i++)
		take_demand(transfer, &demand);
	struct slot_activation activation;
	uint64_t now_ns = clock_ns();
	for (int i = 0; i < SLOTS_ACTIVATION_RING &&
			ring_get(&slots->activations, &activation, sizeof(activation));
		i++)
		take_activation(transfer, &activation, now_ns);
	for (int i = 0;
		i < SLOTS_HEAD_RING && ring_get(&slots->heads, &activation, sizeof(activation));
		i++)
		take_head_use(transfer, &activation);
	struct slot_hint hint;
	for (int i = 0; i < SLOTS_HINT_RING && ring_get(&slots->hints, &hint, sizeof(hint)); i++)
		take_hint(transfer, &hint, now_ns);
	for (int i = 0; i < SLOTS_GATE_RING && ring_get(&slots->gates, &hint, sizeof(hint)); i++)
		take_hint(transfer, &hint, now_ns);
}
