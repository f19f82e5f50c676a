/* Which slot of the device holds what. */
#include "services/expert-cache/device/device.h"

#include "shared/base/counter.h"
#include "shared/base/log.h"

#include <stdlib.h>

#define DEMAND_NONE UINT64_MAX

static void publish_in_use(struct device *device)
{
	atomic_store_explicit(&device->slots.header->in_use, device->slots.n_slots - device->n_free,
		memory_order_relaxed);
}

struct choice {
	const struct device *device;
	enum load_reason why;
	uint64_t now_ns;
};

/* As in store.c. */
static bool may_evict(void *arg, uint32_t slot)
{
	const struct choice *choice = arg;
	const struct device *device = choice->device;
	const struct device_note *note = &device->notes[slot];
	uint64_t word = atomic_load_explicit(&device->slots.state[slot], memory_order_relaxed);
	bool demanded = note->demand == device->demand && note->demand != DEMAND_NONE;
	if (demanded && slot_epoch(word) == 0)
		return false;
	if (choice->why != LOAD_DEMAND && (note->hint_until_ns > choice->now_ns || demanded))
		return false;
	return device_evictable(&device->slots, slot);
}

static uint32_t evict_one(struct device *device, const struct cache_prefetch *want,
	enum load_reason why, uint64_t now_ns)
{
	struct choice choice = {device, why, now_ns};
	for (;;) {
		uint32_t slot =
			device->policy->victim(device->policy_state, want, why, may_evict, &choice);
		if (slot == SLOT_NONE)
			return SLOT_NONE;
		/* A pin made since the look wins. */
		if (!device_evict(&device->slots, slot))
			continue;
		device->policy->on_evict(device->policy_state, slot);
		counter_add(&device->slots.header->evictions, 1);
		return slot;
	}
}

uint32_t device_take(struct device *device, const struct cache_prefetch *want, enum load_reason why,
	uint64_t now_ns)
{
	uint32_t slot = SLOT_NONE;
	if (device->n_free > 0)
		slot = device->free_slots[--device->n_free];
	else if (why != LOAD_PRELOAD)
		slot = evict_one(device, want, why, now_ns);
	if (slot == SLOT_NONE)
		return SLOT_NONE;
	device->notes[slot] = (struct device_note){.layer = (uint16_t)want->layer,
		.expert = (uint16_t)want->expert,
		.demand = why == LOAD_DEMAND ? device->demand : DEMAND_NONE,
		.hint_until_ns = why == LOAD_PREFETCH ? want->needed_by_ns : 0};
	publish_in_use(device);
	return slot;
}

void device_loaded(struct device *device, const struct device_copy *copy)
{
	struct device_slots *slots = &device->slots;
	struct device_header *header = slots->header;
	uint32_t layer = copy->want.layer, expert = copy->want.expert;
	counter_add(&header->loads, 1);
	counter_add(&header->demanded, copy->why == LOAD_DEMAND);
	counter_add(&header->prefetched, copy->why == LOAD_PREFETCH);
	counter_add(&header->bytes_loaded, device_expert_bytes(&device->geometry->layers[layer]));
	atomic_store_explicit(&slots->used[copy->slot], ++device->stamp, memory_order_relaxed);
	if (!device_load_end(slots, copy->slot, layer, expert)) {
		/* It stays out of use until the region is made anew. */
		log_limited(LOG_LEVEL_ERROR, "another process wrote to the state of device slot %u",
			copy->slot);
		return;
	}
	device->notes[copy->slot].ready = true;
	device->policy->on_load(device->policy_state, copy->slot, layer, expert, copy->why);
}

void device_release_held(struct device *device)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < device->n_held; i++) {
		uint32_t slot = device->held[i];
		if (device_abandon(&device->slots, slot))
			device->free_slots[device->n_free++] = slot;
		else
			device->held[kept++] = slot;
	}
	if (kept != device->n_held)
		publish_in_use(device);
	device->n_held = kept;
}

void device_use(struct device *device, const struct cache_use *use)
{
	struct cache_use here = *use;
	here.slot = device_find(&device->slots, use->layer, use->expert);
	device->policy->on_activation(device->policy_state, &here);
	if (here.slot != SLOT_NONE)
		atomic_store_explicit(
			&device->slots.used[here.slot], ++device->stamp, memory_order_relaxed);
}

void device_hint(struct device *device, const struct cache_hint *hint)
{
	struct cache_hint here = *hint;
	uint32_t slot = device_find(&device->slots, hint->layer, hint->expert);
	uint64_t word = slot != SLOT_NONE ? atomic_load_explicit(&device->slots.state[slot],
						    memory_order_relaxed)
					  : 0;
	/* The policy knows slots that are READY. */
	here.coming = slot_state(word) == SLOT_LOADING;
	device->policy->on_hint(
		device->policy_state, &here, slot_state(word) == SLOT_READY ? slot : SLOT_NONE);
}

bool device_demand(struct device *device, const struct slot_demand *demand)
{
	if (demand->iteration != device->demand) {
		device->demand = demand->iteration;
		device->n_wanted = 0;
	}
	struct cache_use use = {.layer = demand->layer,
		.expert = demand->expert,
		.tokens = demand->tokens,
		.slot = device_find(&device->slots, demand->layer, demand->expert),
		.iteration = demand->iteration};
	device->policy->on_demand(device->policy_state, &use);
	if (use.slot != SLOT_NONE) {
		device->notes[use.slot].demand = device->demand;
		return true;
	}
	if (device->n_wanted < LIMIT_EXPERTS)
		device->wanted[device->n_wanted++] =
			(struct device_wanted){demand->layer, demand->expert, demand->time_ns};
	return false;
}

static int by_use(const void *a, const void *b)
{
	const struct device_resident *left = a, *right = b;
	return left->used < right->used ? -1 : left->used > right->used;
}

/* Tells a policy what is resident, in order of last use. */
static void tell(struct device *device, const struct cache_policy_ops *policy, void *state)
{
	const struct device_slots *slots = &device->slots;
	struct device_resident *of = device->order;
	uint32_t n = 0;
	for (uint32_t slot = 0; slot < slots->n_slots; slot++)
		if (device->notes[slot].ready)
			of[n++] = (struct device_resident){
				atomic_load_explicit(&slots->used[slot], memory_order_relaxed),
				slot};
	qsort(of, n, sizeof(*of), by_use);
	for (uint32_t i = 0; i < n; i++)
		policy->on_load(state, of[i].slot, device->notes[of[i].slot].layer,
			device->notes[of[i].slot].expert, LOAD_PRELOAD);
}

void device_tell_policy(struct device *device)
{
	tell(device, device->policy, device->policy_state);
}

void device_switch_policy(
	struct device *device, const struct cache_policy_ops **policy, void **state)
{
	const struct cache_policy_ops *old = device->policy;
	void *old_state = device->policy_state;
	tell(device, *policy, *state);
	device->policy = *policy;
	device->policy_state = *state;
	*policy = old;
	*state = old_state;
}

/* The words lie where others can write, and were read before. */
static bool is_ready(const struct device *device, uint64_t word)
{
	const struct slots_geometry *geometry = device->geometry;
	return slot_state(word) == SLOT_READY && slot_layer(word) < geometry->n_layers &&
	       slot_expert(word) < geometry->n_experts && geometry->layers[slot_layer(word)].moe;
}

void device_take_stock(struct device *device)
{
	/* Backwards, so that the lowest free slot is on top. */
	for (uint32_t slot = device->slots.n_slots; slot-- > 0;) {
		uint64_t word =
			atomic_load_explicit(&device->slots.state[slot], memory_order_relaxed);
		bool ready = is_ready(device, word);
		device->notes[slot] = (struct device_note){.demand = DEMAND_NONE,
			.ready = ready,
			.layer = ready ? (uint16_t)slot_layer(word) : 0,
			.expert = ready ? (uint16_t)slot_expert(word) : 0};
		if (slot_state(word) == SLOT_EMPTY)
			device->free_slots[device->n_free++] = slot;
		else if (slot_state(word) == SLOT_LOADING)
			device->held[device->n_held++] = slot;
	}
	publish_in_use(device);
	device_release_held(device);
}
