/* What is copied to the device next: demands, then what the policy prefetches, then whatever the
 * store holds while there are free slots. */
#include "services/expert-cache/device/device.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/timeline.h"

#include <string.h>

/* A verifier that has not unpinned for this long has died; its demands are void. */
#define WANTED_NS 2000000000ull
/* The store's slots that are looked through in one round, for experts to fill free slots with. */
#define LOOKS 64

int device_begin(struct device *device, struct error *err)
{
	int status = device_link_open(&device->demands, device, DEVICE_COPIES, err);
	if (status == 0)
		status = device_link_open(&device->prefetches, device, DEVICE_PREFETCHES, err);
	if (status != 0)
		device_end(device);
	device->demands.lane = TIMELINE_DEVICE_LANE;
	device->prefetches.lane = TIMELINE_DEVICE_LANE + DEVICE_COPIES;
	return status;
}

void device_retire(struct device *device)
{
	struct device_header *header = device->slots.header;
	atomic_store_explicit(&header->closed, 1, memory_order_release);
	doorbell_ring(&header->arrivals);
}

void device_end(struct device *device)
{
	device_link_drain(&device->demands, device);
	device_link_drain(&device->prefetches, device);
	device_link_close(&device->demands);
	device_link_close(&device->prefetches);
}

bool device_busy(const struct device *device)
{
	return !device->failed && device->demands.busy + device->prefetches.busy > 0;
}

/* Copies an expert that is in the store to the device. False: there is no slot for it. */
static bool start(struct device *device, struct device_link *link, const struct store *store,
	uint32_t from, const struct device_copy *copy)
{
	uint32_t slot = device_take(device, &copy->want, copy->why, copy->start_ns);
	if (slot == SLOT_NONE)
		return false;
	struct device_copy taken = *copy;
	taken.slot = slot;
	device_link_copy(link, device, store, from, &taken);
	return true;
}

/* The slot of the store from which an expert can be copied. What a demand lacks there is loaded, if
 * nothing has done so: it may have been evicted again. */
static uint32_t source_of(
	struct loads *loads, const struct cache_prefetch *want, bool demanded, uint64_t now_ns)
{
	struct store *store = loads->store;
	uint32_t from = store_find(store, want->layer, want->expert);
	if (from == SLOT_NONE && demanded && loads->n_idle > 0 && !loads_lost(loads) &&
		!store_loading(store, want->layer, want->expert) &&
		store_packing(store, want->layer, want->expert) == SLOT_NONE)
		(void)loads_start(loads, want, LOAD_DEMAND, now_ns);
	return from;
}

/* True when a demand has found no slot. */
static bool start_wanted(struct device *device, struct loads *loads, uint64_t now_ns)
{
	bool no_slot = false;
	uint32_t kept = 0;
	for (uint32_t i = 0; i < device->n_wanted; i++) {
		const struct device_wanted wanted = device->wanted[i];
		struct device_copy copy = {.want = {.layer = wanted.layer, .expert = wanted.expert},
			.why = LOAD_DEMAND,
			.start_ns = now_ns};
		if (device_find(&device->slots, wanted.layer, wanted.expert) != SLOT_NONE)
			continue;
		uint32_t from = source_of(loads, &copy.want, true, now_ns);
		if (from != SLOT_NONE && !no_slot && device_link_room(&device->demands)) {
			if (start(device, &device->demands, loads->store, from, &copy))
				continue;
			no_slot = true;
		}
		device->wanted[kept++] = wanted;
	}
	device->n_wanted = kept;
	return no_slot;
}

/* [starve] As start_demanded in transfer.c. */
static void start_demands(struct device *device, struct loads *loads, uint64_t now_ns)
{
	_Atomic uint32_t *starved = &device->slots.header->starved;
	bool no_slot = start_wanted(device, loads, now_ns);
	if (no_slot && atomic_load_explicit(starved, memory_order_relaxed) == 0) {
		/* Sequentially consistent, then look again: see slots_evictable. */
		atomic_store_explicit(starved, 1, memory_order_seq_cst);
		no_slot = start_wanted(device, loads, now_ns);
	}
	if (no_slot && now_ns - device->wanted[0].since_ns > WANTED_NS) {
		device->n_wanted = 0;
		no_slot = false;
	}
	if (!no_slot && atomic_load_explicit(starved, memory_order_relaxed) != 0)
		atomic_store_explicit(starved, 0, memory_order_relaxed);
}

static bool may_prefetch(const struct device *device)
{
	return device->n_wanted == 0 && device_link_room(&device->prefetches);
}

/* Copies a prefetch whose expert is in the store, or notes it until it is. False: no slot. */
static bool start_prefetch(struct device *device, const struct store *store,
	const struct cache_prefetch *want, uint64_t now_ns)
{
	uint32_t from = store_find(store, want->layer, want->expert);
	if (from != SLOT_NONE) {
		const struct device_copy copy = {
			.want = *want, .why = LOAD_PREFETCH, .start_ns = now_ns};
		if (!start(device, &device->prefetches, store, from, &copy))
			return false;
		if (device->policy->on_begin != NULL)
			device->policy->on_begin(device->policy_state, want);
		return true;
	}
	if (store_loading(store, want->layer, want->expert)) {
		if (device->n_coming == DEVICE_COMING)
			memmove(device->coming, device->coming + 1,
				--device->n_coming * sizeof(*device->coming));
		device->coming[device->n_coming++] = *want;
	}
	return true;
}

static void start_prefetches(struct device *device, const struct store *store, uint64_t now_ns)
{
	struct cache_prefetch want;
	uint32_t n = device->n_coming;
	struct cache_prefetch coming[DEVICE_COMING];
	memcpy(coming, device->coming, n * sizeof(*coming));
	device->n_coming = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (device_find(&device->slots, coming[i].layer, coming[i].expert) != SLOT_NONE)
			continue;
		if (!may_prefetch(device))
			device->coming[device->n_coming++] = coming[i];
		else if (!start_prefetch(device, store, &coming[i], now_ns))
			device->policy->put_back(device->policy_state, &coming[i]);
	}
	while (may_prefetch(device) && device->policy->next(device->policy_state, now_ns, &want)) {
		if (device_find(&device->slots, want.layer, want.expert) != SLOT_NONE)
			continue;
		if (!start_prefetch(device, store, &want, now_ns)) {
			device->policy->put_back(device->policy_state, &want);
			return;
		}
	}
}

/* An expert in memory is better on the device, while that has room. */
static void fill(struct device *device, const struct store *store, uint64_t now_ns)
{
	uint32_t n = store->slots.n_slots;
	for (uint32_t i = 0; i < LOOKS && i < n && device->n_free > 0 && may_prefetch(device);
		i++) {
		uint32_t from = device->look++ % n;
		uint64_t word =
			atomic_load_explicit(&store->slots.state[from], memory_order_relaxed);
		struct device_copy copy = {
			.want = {.layer = slot_layer(word), .expert = slot_expert(word)},
			.why = LOAD_PRELOAD,
			.start_ns = now_ns};
		uint32_t own = device->geometry->n_layers - device->geometry->n_drafting;
		/* The word is shared: the store's own look decides. */
		if (slot_state(word) != SLOT_READY || copy.want.layer >= own ||
			copy.want.expert >= device->geometry->n_experts ||
			store_find(store, copy.want.layer, copy.want.expert) != from ||
			device_find(&device->slots, copy.want.layer, copy.want.expert) != SLOT_NONE)
			continue;
		(void)start(device, &device->prefetches, store, from, &copy);
	}
}

void device_measure(struct device *device, const struct store *store)
{
	const struct slots_header *header = store->slots.header;
	if (device->policy->on_measure == NULL)
		return;
	/* The drafter writes it, and may write anything. */
	uint32_t tokens =
		atomic_load_explicit(&store->slots.hinted->draft_tokens, memory_order_relaxed);
	const struct cache_measures measures = {
		.n_slots = device->slots.n_slots,
		.draft_tokens = tokens < LIMIT_DRAFT_NODES ? tokens : LIMIT_DRAFT_NODES,
		.load_ns = device->copy_ns,
		.draft_layer_ns = (double)atomic_load_explicit(
			&store->slots.hinted->draft_layer_ns, memory_order_relaxed),
		.verify_layer_ns = (double)atomic_load_explicit(
			&header->verify_layer_ns, memory_order_relaxed),
	};
	device->policy->on_measure(device->policy_state, &measures);
}

/* Counts the time with copies in flight. */
static void keep_time(struct device *device, uint64_t now_ns)
{
	struct device_header *header = device->slots.header;
	if (device->busy_since_ns != 0 && now_ns > device->busy_since_ns)
		counter_add(&header->busy_ns, now_ns - device->busy_since_ns);
	device->busy_since_ns = device_busy(device) ? now_ns : 0;
	atomic_store_explicit(&header->in_flight, device->demands.busy + device->prefetches.busy,
		memory_order_relaxed);
}

void device_work(struct device *device, struct loads *loads, uint64_t now_ns)
{
	device_link_collect(&device->demands, device, now_ns);
	device_link_collect(&device->prefetches, device, now_ns);
	keep_time(device, now_ns);
	device_release_held(device);
	if (device->failed)
		return;
	start_demands(device, loads, now_ns);
	start_prefetches(device, loads->store, now_ns);
	fill(device, loads->store, now_ns);
	keep_time(device, now_ns);
}
