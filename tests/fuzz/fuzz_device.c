/* Any bytes as the table of a device's slots, as a verifier and the owner's successor find it: what is mapped lies in the region, and
 * what is pinned or kept is in the model. */
#include "shared/spec/device_slots.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { LAYERS = 3, EXPERTS = 5 };

static const struct device_shape shape = {
	.n_layers = LAYERS, .n_experts = EXPERTS, .slot_bytes = 512, .model_fingerprint = 42};

static void check_slot(const struct device_slots *slots, uint32_t slot)
{
	if (slot >= slots->n_slots)
		abort();
}

/* The verifier: pins what it finds, once more, and lets go. */
static void verify(struct device_slots *slots)
{
	uint32_t epoch = device_enter(slots);
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct device_pin pin;
			if (!device_pin(slots, epoch, l, e, (l + e) % 2 != 0, &pin))
				continue;
			check_slot(slots, pin.slot);
			if (!device_pinned(slots, pin.slot, epoch, l, e))
				abort();
			if (device_pin_again(slots, &pin, epoch, l, e) &&
				!device_unpin(slots, pin.slot, epoch, l, e))
				abort();
			if (!device_unpin(slots, pin.slot, epoch, l, e))
				abort();
		}
}

/* The successor: what it keeps has a place in the table, and every slot can be had again. */
static void adopt(struct device_slots *slots, const struct slots_geometry *geometry)
{
	struct device_adopted adopted;
	struct error err = {""};
	uint32_t found = 0;
	int status = device_adopt(slots, geometry, &adopted, &err);
	if (status != 0 && (status != -EUCLEAN || err.text[0] == '\0'))
		abort();
	if (status != 0)
		return;
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++) {
			uint32_t slot = device_find(slots, l, e);
			if (slot == SLOT_NONE)
				continue;
			check_slot(slots, slot);
			found += device_evictable(slots, slot);
		}
	if (found > adopted.ready)
		abort();
	for (uint32_t slot = 0; slot < slots->n_slots; slot++) {
		enum slot_state state = slot_state(slots->state[slot]);
		if (state == SLOT_LOADING ? !device_abandon(slots, slot)
					  : state == SLOT_READY && !device_evict(slots, slot))
			continue; /* pinned */
		(void)device_load_begin(slots, slot, slot % LAYERS, slot % EXPERTS);
		if (!device_load_end(slots, slot, slot % LAYERS, slot % EXPERTS))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct slots_geometry geometry = {.n_layers = LAYERS, .n_experts = EXPERTS};
	struct device_slots slots;
	struct region region;
	struct error err = {""};
	if (bytes == 0 || bytes > 1 << 16)
		return 0;
	for (uint32_t l = 1; l < LAYERS; l++)
		geometry.layers[l].moe = true;
	if (region_create(DEVICE_REGION, DEVICE_LAYOUT, bytes, 0, &region, &err) != 0)
		return 0;
	memcpy(region_payload(&region), data, bytes);
	int status = device_map(&region, &shape, &slots, &err);
	if (status == 0) {
		const unsigned char *end = (const unsigned char *)region_payload(&region) + bytes;
		if ((const unsigned char *)(slots.seal + slots.n_slots) > end)
			abort();
		verify(&slots);
		adopt(&slots, &geometry);
		verify(&slots);
	} else if (err.text[0] == '\0') {
		abort();
	}
	region_close(&region);
	return 0;
}
