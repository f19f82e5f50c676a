#include "services/expert-cache/device/device.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"
#include "shared/base/timeline.h"

#include <string.h>

int device_link_open(
	struct device_link *link, const struct device *device, uint32_t most, struct error *err)
{
	/* For copies alone. */
	const struct queue_limits limits = {0};
	const struct backend_ops *ops = device->backend->ops;
	uint64_t fit = DEVICE_STAGING_BYTES / device->slots.slot_bytes;
	*link = (struct device_link){.n = fit < 2 ? 2 : fit > most ? most : (uint32_t)fit};
	int status = ops->alloc(device->backend, link->n * device->slots.slot_bytes, BUFFER_HOST,
		&link->staging, err);
	return status == 0 ? ops->queue(device->backend, &limits, &link->q, err) : status;
}

void device_link_close(struct device_link *link)
{
	if (link->q != NULL)
		link->q->ops->queue_free(link->q);
	if (link->staging.backend != NULL)
		link->staging.backend->ops->free(&link->staging);
	*link = (struct device_link){0};
}

void device_link_copy(struct device_link *link, struct device *device, const struct store *store,
	uint32_t from, const struct device_copy *copy)
{
	struct device_slots *slots = &device->slots;
	uint32_t layer = copy->want.layer, expert = copy->want.expert, slot = copy->slot;
	const struct slots_layer_geometry *geometry = &device->geometry->layers[layer];
	const unsigned char *bytes = slots_at(&store->slots, from);
	/* This thread alone evicts and packs: the word is the owner's. */
	enum matrix_layout layout =
		slot_layout(atomic_load_explicit(&store->slots.state[from], memory_order_relaxed));
	const void *parts[EXPERT_PARTS];
	uint32_t at = (link->first + link->busy) % link->n;
	size_t staged = (size_t)(at * slots->slot_bytes);
	for (int p = 0; p < EXPERT_PARTS; p++)
		parts[p] = bytes + slots_part_at(&geometry->part[p], expert, layout);
	/* Before the bytes are packed: the verifier queues behind them meanwhile. */
	uint32_t load = device_load_begin(slots, slot, layer, expert);
	device_pack(geometry, parts, layout, link->staging.host + staged);
	struct queue *q = link->q;
	q->ops->copy(q,
		(struct place){&device->memory, (size_t)device_slot_at(slots->slot_bytes, slot)},
		(struct place){&link->staging, staged}, (size_t)device_expert_bytes(geometry));
	q->ops->write_value(q,
		(struct place){&device->flags, device_flag_at(&device->region, slots, slot)}, load);
	link->copy[at] = *copy;
	link->copy[at].until = q->ops->ticket(q);
	link->busy++;
}

/* For `outriderctl trace`. */
static void draw(const struct device_link *link, const struct device_copy *copy, uint64_t now_ns)
{
	static const enum timeline_kind kinds[] = {
		[LOAD_DEMAND] = TIMELINE_COPY_DEMAND,
		[LOAD_PREFETCH] = TIMELINE_COPY_PREFETCH,
		[LOAD_PRELOAD] = TIMELINE_COPY_PRELOAD,
	};
	timeline_add(&(struct timeline_span){.start_ns = copy->start_ns,
		.end_ns = now_ns,
		.kind = kinds[copy->why],
		.lane = link->lane + (uint32_t)(copy - link->copy),
		.value = {copy->want.layer, copy->want.expert}});
}

/* Smooths the time that a copy takes: since the one before it, if that one was in flight too. */
static void measure(struct device_link *link, struct device *device, const struct device_copy *copy,
	uint64_t now_ns)
{
	uint64_t from_ns = link->ended_ns > copy->start_ns ? link->ended_ns : copy->start_ns;
	double took_ns = (double)(now_ns - from_ns);
	link->ended_ns = now_ns;
	counter_add(&device->slots.header->flight_ns, now_ns - copy->start_ns);
	device->copy_ns =
		device->copy_ns == 0 ? took_ns : device->copy_ns * 0.875 + took_ns * 0.125;
	atomic_store_explicit(&device->slots.header->load_ns, (uint64_t)device->copy_ns + 1,
		memory_order_relaxed);
}

/* A queue that has failed says that everything was reached. */
static bool failed(struct device_link *link, struct device *device, ticket until)
{
	int status = link->q->ops->wait(link->q, until);
	if (status == 0)
		return false;
	if (!device->failed)
		log_error("copies to the device have failed (%s): its slots get no more experts",
			strerror(-status));
	device->failed = true;
	device_retire(device);
	return true;
}

void device_link_collect(struct device_link *link, struct device *device, uint64_t now_ns)
{
	while (link->busy > 0 && !device->failed) {
		const struct device_copy *copy = &link->copy[link->first];
		if (!link->q->ops->reached(link->q, copy->until) ||
			failed(link, device, copy->until))
			return;
		measure(link, device, copy, now_ns);
		if (timeline_on())
			draw(link, copy, now_ns);
		device_loaded(device, copy);
		link->first = (link->first + 1) % link->n;
		link->busy--;
	}
}

void device_link_drain(struct device_link *link, struct device *device)
{
	if (link->busy == 0)
		return;
	const struct device_copy *last = &link->copy[(link->first + link->busy - 1) % link->n];
	if (!failed(link, device, last->until))
		device_link_collect(link, device, clock_ns());
}
