#include "shared/spec/slots.h"

int slots_hinter_attach(struct slots_hinter *hinter, const struct region *region,
	const struct region *hints, struct error *err)
{
	int status = slots_map(region, NULL, &hinter->slots, err);
	if (status == 0)
		status = slots_map_hints(hints, &hinter->slots, err);
	if (status != 0)
		return status;
	hinter->header = hinter->slots.header;
	hinter->hints = hinter->slots.hints;
	return 0;
}

void slots_hinter_gates(struct slots_hinter *hinter, const struct slots *slots)
{
	hinter->slots = *slots;
	hinter->header = slots->header;
	hinter->hints = slots->gates;
}

bool slots_hint_wanted(const struct slots_hinter *hinter, enum hint_source source)
{
	uint32_t wanted = atomic_load_explicit(&hinter->header->hint_sources, memory_order_relaxed);
	return wanted >> source & 1;
}

bool slots_hint(struct slots_hinter *hinter, const struct slot_hint *hint)
{
	if (hint->layer >= hinter->slots.n_layers || hint->expert >= hinter->slots.n_experts)
		return false;
	struct slot_hint *slot = ring_reserve(&hinter->hints);
	if (slot == NULL) {
		ring_drop(&hinter->hints);
		return false;
	}
	*slot = *hint;
	ring_publish_quietly(&hinter->hints);
	return true;
}

void slots_hint_wake(struct slots_hinter *hinter)
{
	doorbell_ring(&hinter->slots.hinted->work);
}

bool slots_resident(const struct slots_hinter *hinter, uint32_t layer, uint32_t expert)
{
	if (layer >= hinter->slots.n_layers || expert >= hinter->slots.n_experts)
		return false;
	uint32_t value = atomic_load_explicit(
		slots_word(&hinter->slots, layer, expert), memory_order_relaxed);
	return value != 0 && value != SLOTS_REFUSED;
}

void slots_head_used(struct slots *slots, uint64_t iteration, uint32_t layer,
	const uint16_t *experts, const uint16_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n;) {
		struct slot_activation *entry = ring_reserve(&slots->heads);
		uint32_t here = n - i < SLOT_ACTIVATION_PAIRS ? n - i : SLOT_ACTIVATION_PAIRS;
		if (entry == NULL) {
			ring_drop(&slots->heads);
			return;
		}
		*entry = (struct slot_activation){
			.iteration = iteration,
			.layer = (uint16_t)layer,
			.n = (uint16_t)here,
		};
		for (uint32_t j = 0; j < here; j++, i++) {
			entry->expert_tokens[2 * j] = experts[i];
			entry->expert_tokens[2 * j + 1] = tokens[i];
		}
		ring_publish_quietly(&slots->heads);
	}
}
