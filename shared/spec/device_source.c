/*
 * The verifier's experts in a device's memory: the fast tier of the source in slots_source.c. `begin`
 * pins what is in the device's slots or on its way there, and demands the rest. `ready` gives out what
 * is there; then what is being copied, behind a wait in the queue; then what gets a slot; and what
 * nobody brings, from memory or the file, in spare slots.
 */
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/spec/slots_source_private.h"

#include <stdlib.h>
#include <string.h>

/* So often, in layers, the verifier tries to pin every expert. */
#define TRY_ALL 64u

static bool hold_all(struct experts_cached *cached, bool pin)
{
	struct device_tier *device = &cached->device;
	const struct slots_geometry *geometry = &cached->geometry;
	uint32_t own = geometry->n_layers - geometry->n_drafting;
	for (uint32_t l = 0; l < own; l++)
		for (uint32_t e = 0; geometry->layers[l].moe && e < geometry->n_experts; e++) {
			uint32_t *slot = &device->all[(size_t)l * geometry->n_experts + e];
			struct device_pin got;
			if (!pin && *slot != SLOT_NONE)
				cached->damaged |=
					!device_unpin(&device->slots, *slot, device->epoch, l, e);
			*slot = SLOT_NONE;
			if (!pin)
				continue;
			if (!device_pin(&device->slots, device->epoch, l, e, false, &got))
				return false;
			*slot = got.slot;
		}
	return true;
}

static void set_resident(struct device_tier *device, bool resident)
{
	device->resident = resident;
	atomic_store_explicit(&device->slots.header->resident, resident, memory_order_relaxed);
}

/* When every expert has a slot, all are pinned once, and no layer pins any more. */
static void try_resident(struct experts_cached *cached)
{
	struct device_tier *device = &cached->device;
	const struct slots_geometry *geometry = &cached->geometry;
	uint32_t needed = geometry->n_total - geometry->n_drafting * geometry->n_experts;
	if (device->n_begun++ % TRY_ALL != 0 || device->slots.n_slots < needed ||
		atomic_load_explicit(&device->slots.header->in_use, memory_order_relaxed) < needed)
		return;
	memset(device->all, 0xff,
		(size_t)geometry->n_layers * geometry->n_experts * sizeof(*device->all));
	if (hold_all(cached, true)) {
		set_resident(device, true);
		device->number = ++cached->n_settled;
	} else {
		(void)hold_all(cached, false);
	}
}

/* The memory has ended with the process that made it: nothing in it may be read any more. */
static bool memory_gone(struct experts_cached *cached)
{
	struct device_tier *device = &cached->device;
	if (!device->memory.ends_with_maker || slots_cache_alive(cached))
		return false;
	if (device->resident) {
		(void)hold_all(cached, false);
		set_resident(device, false);
	}
	return true;
}

static bool owner_brings(struct experts_cached *cached)
{
	struct device_tier *device = &cached->device;
	/* The owner lives, but a copy was late beyond patience: it gets no demands until its worker
	 * gives another sign of life. */
	if (device_rescue_late(device->rescue) > 0)
		cached->hung_beat_ns =
			atomic_load_explicit(&cached->slots.header->beat_ns, memory_order_relaxed);
	return slots_cache_alive(cached) && slots_worker_alive(cached) &&
	       atomic_load_explicit(&device->slots.header->closed, memory_order_acquire) == 0;
}

/* Decides, for each expert of the layer, where it is computed: in a slot of the device (pinned), there
 * once its copy has ended (coming), there once it has got a slot (missing), or in a spare slot
 * (unserved). */
static void choose_places(struct experts_cached *cached, bool brings)
{
	struct device_tier *device = &cached->device;
	for (uint32_t i = 0; i < cached->n; i++) {
		struct device_pin got;
		if (!device_pin(&device->slots, device->epoch, cached->layer, cached->experts[i],
			    brings, &got)) {
			if (brings)
				cached->missing[cached->n_missing++] = (uint16_t)i;
			else
				cached->unserved[cached->n_unserved++] = (uint16_t)i;
			continue;
		}
		cached->slot[i] = got.slot;
		cached->load[i] = got.load;
		if (got.coming)
			cached->coming[cached->n_coming++] = (uint16_t)i;
		else
			cached->pinned[cached->n_pinned++] = (uint16_t)i;
	}
}

/* What the device lacks is looked up in memory. */
static void count(struct experts_cached *cached)
{
	struct device_header *header = cached->device.slots.header;
	struct slots_counts *counts = &cached->slots.counts[cached->layer];
	uint32_t in_memory = cached->hybrid.n;
	uint32_t absent = cached->n_missing + cached->n_unserved + in_memory;
	uint64_t word;
	for (uint32_t m = 0; m < cached->n_missing; m++)
		in_memory += slots_peek(&cached->slots, cached->layer,
				     cached->experts[cached->missing[m]], &word) != SLOT_NONE;
	counter_add(&header->hits, cached->n_pinned);
	counter_add(&header->waits, cached->n_coming);
	counter_add(&header->misses, absent);
	counter_add(&counts->hits, in_memory);
	counter_add(&counts->misses, absent - in_memory);
	counter_add(&cached->slots.header->demand_hits, in_memory);
	counter_add(&cached->slots.header->demand_misses, absent - in_memory);
}

static void demand(struct experts_cached *cached, const uint16_t *tokens)
{
	uint32_t n = cached->n_missing;
	cached->n_missing = 0;
	cached->progress_ns = clock_ns();
	for (uint32_t m = 0; m < n; m++) {
		uint16_t i = cached->missing[m];
		if (slots_push_demand(cached, cached->experts[i], tokens[i]))
			cached->missing[cached->n_missing++] = i;
		else
			cached->unserved[cached->n_unserved++] = i;
	}
	if (cached->n_missing > 0)
		doorbell_ring(&cached->slots.hinted->work);
}

void device_tier_begin(struct experts_cached *cached, const uint16_t *tokens)
{
	struct device_tier *device = &cached->device;
	bool gone = memory_gone(cached);
	if (!device->resident && !gone)
		try_resident(cached);
	if (gone) {
		for (uint32_t i = 0; i < cached->n; i++)
			cached->unserved[cached->n_unserved++] = (uint16_t)i;
	} else if (device->resident) {
		const uint32_t *all =
			&device->all[(size_t)cached->layer * cached->geometry.n_experts];
		for (uint32_t i = 0; i < cached->n; i++) {
			cached->slot[i] = all[cached->experts[i]];
			cached->pinned[cached->n_pinned++] = (uint16_t)i;
		}
	} else {
		choose_places(cached, owner_brings(cached));
		device_hybrid_choose(cached, tokens);
	}
	slots_push_activations(cached, tokens);
	count(cached);
	if (cached->n_missing > 0)
		demand(cached, tokens);
	if (cached->hybrid.n > 0)
		device_hybrid_fill(cached, tokens);
}

static void view_in_slot(const struct experts_cached *cached, uint32_t layer_index, uint32_t slot,
	struct expert_view *out)
{
	const struct device_tier *device = &cached->device;
	const struct slots_layer_geometry *layer = &cached->geometry.layers[layer_index];
	size_t at = (size_t)device_slot_at(device->slots.slot_bytes, slot);
	*out = (struct expert_view){
		.slot = EXPERT_NO_SLOT,
		.gate = {&device->memory, at},
		.up = {&device->memory, at + (size_t)device_part_at(layer, EXPERT_UP)},
		.down = {&device->memory, at + (size_t)device_part_at(layer, EXPERT_DOWN)},
		.layout = LAYOUT_TILES,
	};
}

static void view(struct experts_cached *cached, uint32_t i, struct expert_view *out)
{
	const struct device_tier *device = &cached->device;
	view_in_slot(cached, cached->layer, cached->slot[i], out);
	out->index = i;
	slots_hold(cached, device->resident ? HELD_RESIDENT : HELD_DEVICE, cached->slot[i],
		cached->experts[i]);
}

/* The queue waits until the copy has ended; nobody else does. */
static void view_coming(struct experts_cached *cached, uint32_t i, struct expert_view *out)
{
	struct device_tier *device = &cached->device;
	const struct device_wait wait = {.slot = cached->slot[i],
		.load = cached->load[i],
		.layer = (uint16_t)cached->layer,
		.expert = cached->experts[i],
		.patience_ns = slots_patience(cached)};
	device_rescue_add(device->rescue, &wait);
	cached->q->ops->wait_value(cached->q,
		(struct place){
			&device->flags, device_flag_at(&device->region, &device->slots, wait.slot)},
		wait.load);
	cached->source.stats.bytes_loaded +=
		device_expert_bytes(&cached->geometry.layers[cached->layer]);
	view(cached, i, out);
	out->waits = true;
	counter_add(&device->slots.header->streamed, 1);
}

/* Gives out the missing experts that have got a slot; refused ones become unserved. */
static uint32_t view_given_slots(struct experts_cached *cached, struct expert_view *views)
{
	struct device_tier *device = &cached->device;
	uint32_t n = 0, kept = 0;
	for (uint32_t m = 0; m < cached->n_missing; m++) {
		uint16_t i = cached->missing[m];
		uint32_t expert = cached->experts[i];
		struct device_pin got;
		if (device_pin(&device->slots, device->epoch, cached->layer, expert, true, &got)) {
			cached->slot[i] = got.slot;
			cached->load[i] = got.load;
			if (got.coming)
				view_coming(cached, i, &views[n++]);
			else
				view(cached, i, &views[n++]);
		} else if (atomic_load_explicit(slots_word(&cached->slots, cached->layer, expert),
				   memory_order_relaxed) == SLOTS_REFUSED) {
			cached->unserved[cached->n_unserved++] = i;
		} else {
			cached->missing[kept++] = i;
		}
	}
	cached->n_missing = kept;
	return n;
}

/* Nothing has got a slot. Steps that are queued may hold those that are wanted, here or in memory. */
static void wait_for_slots(struct experts_cached *cached, uint32_t seen)
{
	const struct device_header *header = cached->device.slots.header;
	if (cached->n_held > 0 && slots_owner_starves(cached)) {
		slots_release_all(cached);
		return;
	}
	slots_release_held(cached);
	if (atomic_load_explicit(&header->closed, memory_order_acquire) != 0) {
		while (cached->n_missing > 0)
			cached->unserved[cached->n_unserved++] =
				cached->missing[--cached->n_missing];
		return;
	}
	if (cached->meanwhile != NULL && cached->meanwhile(cached->meanwhile_arg))
		return;
	slots_wait_or_give_up(cached, seen);
}

int device_tier_ready(struct experts_cached *cached, struct expert_view *views)
{
	uint32_t n = 0;
	while (cached->n_pinned > 0)
		view(cached, cached->pinned[--cached->n_pinned], &views[n++]);
	if (n > 0)
		return (int)n;
	while (cached->n_coming > 0)
		view_coming(cached, cached->coming[--cached->n_coming], &views[n++]);
	/* The device gets what it can before the CPU computes, which takes the caller's time. */
	if (n == 0 && cached->hybrid.n > 0)
		n = view_given_slots(cached, views);
	if (n == 0)
		n = device_hybrid_view(cached, views);
	if (n > 0)
		return (int)n;
	while (cached->n_missing > 0) {
		/* Read before the look: a load that begins after it changes the bell and ends the
		 * wait. */
		uint32_t seen = doorbell_read(slots_arrivals(cached));
		n = view_given_slots(cached, views);
		if (n > 0) {
			cached->progress_ns = clock_ns();
			return (int)n;
		}
		if (slots_is_lost(cached))
			return -EIO;
		if (cached->n_unserved > 0)
			break;
		wait_for_slots(cached, seen);
	}
	n = slots_view_unserved(cached, views);
	counter_add(&cached->device.slots.header->self_served, n);
	return (int)n;
}

void device_tier_end(struct experts_cached *cached)
{
	enum held_kind kind = cached->device.resident ? HELD_RESIDENT : HELD_DEVICE;
	for (uint32_t i = 0; i < cached->n_pinned; i++)
		slots_hold(cached, kind, cached->slot[cached->pinned[i]],
			cached->experts[cached->pinned[i]]);
	for (uint32_t i = 0; i < cached->n_coming; i++)
		slots_hold(cached, kind, cached->slot[cached->coming[i]],
			cached->experts[cached->coming[i]]);
	cached->n_pinned = cached->n_coming = 0;
	for (uint32_t i = 0; i < cached->hybrid.n; i++)
		slots_hold(cached, HELD_SLOT, cached->slot[cached->hybrid.of[i]],
			cached->experts[cached->hybrid.of[i]]);
	cached->hybrid.n = 0;
}

void device_tier_release(struct experts_cached *cached, const struct held_view *view)
{
	struct device_tier *device = &cached->device;
	struct device_slots *slots = &device->slots;
	/* Somebody else who wrote the flag would have ended the wait for the bytes. What a pass that
	 * stopped half-way has not used may still be on its way. */
	cached->damaged |=
		view->until != 0 &&
		atomic_load_explicit(&slots->flag[view->slot], memory_order_relaxed) !=
			atomic_load_explicit(&slots->load[view->slot], memory_order_relaxed);
	if (view->kind == HELD_DEVICE)
		cached->damaged |=
			!device_unpin(slots, view->slot, device->epoch, view->layer, view->expert);
	else
		cached->damaged |=
			!device_pinned(slots, view->slot, device->epoch, view->layer, view->expert);
}

uint64_t device_tier_settled(struct experts_cached *cached)
{
	return !memory_gone(cached) && cached->device.resident ? cached->device.number : 0;
}

void device_tier_place(const struct experts_cached *cached, uint32_t layer, uint32_t expert,
	struct expert_view *out)
{
	view_in_slot(cached, layer,
		cached->device.all[(size_t)layer * cached->geometry.n_experts + expert], out);
}

/* What was read must still be pinned, as when views are given back. */
void device_tier_chose(struct experts_cached *cached, const uint16_t *tokens)
{
	const uint32_t *all =
		cached->device.all + (size_t)cached->layer * cached->geometry.n_experts;
	for (uint32_t i = 0; i < cached->n; i++) {
		const struct held_view view = {.slot = all[cached->experts[i]],
			.layer = cached->layer,
			.expert = cached->experts[i],
			.kind = HELD_RESIDENT,
			.until = cached->device.number};
		device_tier_release(cached, &view);
	}
	cached->n_pinned = cached->n;
	slots_push_activations(cached, tokens);
	count(cached);
	cached->n_pinned = 0;
}

void device_tier_detach(struct experts_cached *cached)
{
	struct device_tier *device = &cached->device;
	if (device->region.fd < 0)
		return;
	if (device->resident) {
		(void)hold_all(cached, false);
		set_resident(device, false);
	}
	device_rescue_stop(&device->rescue);
	const struct backend_ops *ops = cached->options.backend->ops;
	ops->free(&device->flags);
	ops->free(&device->memory);
	free(device->all);
	region_close(&device->region);
	*device = (struct device_tier){.region = {.fd = -1}};
}

static int check_region(const struct experts_cached *cached, const struct region *region,
	struct device_slots *slots, struct error *err)
{
	const struct model *model = cached->source.model;
	const struct device_shape expected = {
		.n_layers = cached->geometry.n_layers,
		.n_experts = cached->geometry.n_experts,
		.slot_bytes = device_slot_bytes(&cached->geometry),
		.model_fingerprint = model->file_fingerprint,
	};
	int status = device_map(region, &expected, slots, err);
	if (status != 0)
		return status;
	if (slots->header->model_files != gguf_files(model->gguf))
		return error_set(err, ESTALE,
			"region %s: the expert-cache has another file open than this process",
			DEVICE_REGION);
	const char *backend = cached->options.backend->ops->name;
	if (strncmp(slots->header->backend, backend, sizeof(slots->header->backend)) != 0)
		return error_set(err, EINVAL,
			"region %s: it lies on another device than \"%s\", where this process "
			"computes; set device alike for both",
			DEVICE_REGION, backend);
	return 0;
}

/* Makes *to ready for use, of a region that was mapped. */
static int open_tier(
	struct experts_cached *cached, int memory_fd, struct device_tier *to, struct error *err)
{
	struct backend *backend = cached->options.backend;
	const struct backend_ops *ops = backend->ops;
	const struct device_slots *slots = &to->slots;
	size_t bytes = (size_t)device_slot_at(slots->slot_bytes, slots->n_slots);
	const struct device_rescue_options rescue = {
		.model = cached->source.model,
		.geometry = &cached->geometry,
		.backend = backend,
		.cache_alive = cached->options.cache_alive,
		.arg = cached->options.arg,
	};
	to->all = malloc((size_t)slots->n_layers * slots->n_experts * sizeof(*to->all));
	if (to->all == NULL)
		return error_set(err, ENOMEM, "no memory for a table of the device's experts");
	int status = ops->import_fd(backend, memory_fd, bytes, true, &to->memory, err);
	/* Memory of former, fewer slots; theirs comes next. */
	if (status == -EINVAL)
		status = -ESTALE;
	if (status == 0)
		status = device_check_memory(
			slots, &to->memory, cached->q, &cached->spare.staging, err);
	if (status == 0)
		status = ops->wrap(backend, to->region.header, to->region.bytes, &to->flags, err);
	return status == 0 ? device_rescue_start(&rescue, &to->rescue, err) : status;
}

int experts_cached_attach_device(struct experts_cached *cached, const struct region *control,
	int memory_fd, struct error *err)
{
	struct device_tier tier = {.region = {.fd = -1}};
	/* No pass runs: everything that was queued has ended. */
	slots_release_held(cached);
	if (control == NULL) {
		device_tier_detach(cached);
		return 0;
	}
	if (cached->device.region.fd >= 0 &&
		cached->device.region.header->uid == control->header->uid)
		return 0;
	/* The device failed while the KV cache was made anew: the process is about to begin again. */
	if (cached->q == NULL)
		return error_set(err, ENODEV, "region %s: the device was lost", DEVICE_REGION);
	if (cached->spare.n == 0)
		return error_set(err, EINVAL,
			"region %s: it lies on a device, and this process computes on the CPU; set "
			"device alike for both",
			DEVICE_REGION);
	int status = slots_map_again(control, DEVICE_REGION, DEVICE_LAYOUT, &tier.region, err);
	if (status == 0)
		status = check_region(cached, &tier.region, &tier.slots, err);
	if (status == 0)
		status = open_tier(cached, memory_fd, &tier, err);
	if (status != 0) {
		const struct backend_ops *ops = cached->options.backend->ops;
		if (tier.flags.backend != NULL)
			ops->free(&tier.flags);
		if (tier.memory.backend != NULL)
			ops->free(&tier.memory);
		free(tier.all);
		region_close(&tier.region);
		return status;
	}
	device_tier_detach(cached);
	cached->device = tier;
	struct device_tier *device = &cached->device;
	device->epoch = device_enter(&device->slots);
	const struct device_rescue_slots of = {
		device->slots, device->epoch, &device->region, &device->memory, &device->flags};
	device_rescue_use(device->rescue, &of);
	return 0;
}
