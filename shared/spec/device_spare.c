#include "shared/spec/device_spare.h"

#include <assert.h>

/* Memory for them, and as much of the device's; at least two experts. */
#define BYTES (64u << 20)

static uint64_t spares(uint64_t slot_bytes)
{
	uint64_t n = BYTES / slot_bytes;
	return n < 2 ? 2 : n > DEVICE_SPARES ? DEVICE_SPARES : n;
}

uint64_t device_spare_bytes(const struct slots_geometry *geometry)
{
	uint64_t slot_bytes = device_slot_bytes(geometry);
	return slot_bytes > 0 ? spares(slot_bytes) * slot_bytes : 0;
}

int device_spare_init(struct device_spare *spare, struct backend *backend,
	const struct slots_geometry *geometry, struct error *err)
{
	*spare = (struct device_spare){.slot_bytes = device_slot_bytes(geometry)};
	if (spare->slot_bytes == 0)
		return 0;
	uint64_t n = spares(spare->slot_bytes);
	size_t bytes = (size_t)(n * spare->slot_bytes);
	int status = backend->ops->alloc(backend, bytes, BUFFER_OWN, &spare->memory, err);
	if (status == 0)
		status = backend->ops->alloc(backend, bytes, BUFFER_HOST, &spare->staging, err);
	if (status != 0) {
		device_spare_exit(spare);
		return status;
	}
	spare->n = (uint32_t)n;
	while (spare->n_free < spare->n) {
		spare->free[spare->n_free] = spare->n_free;
		spare->n_free++;
	}
	return 0;
}

void device_spare_exit(struct device_spare *spare)
{
	if (spare->memory.backend != NULL)
		spare->memory.backend->ops->free(&spare->memory);
	if (spare->staging.backend != NULL)
		spare->staging.backend->ops->free(&spare->staging);
	*spare = (struct device_spare){0};
}

uint32_t device_spare_take(struct device_spare *spare, struct queue *q,
	const struct slots_layer_geometry *layer, const void *const from[EXPERT_PARTS],
	enum matrix_layout layout, struct expert_view *view)
{
	assert(spare->n_free > 0);
	uint32_t slot = spare->free[--spare->n_free];
	size_t at = (size_t)(slot * spare->slot_bytes);
	device_pack(layer, from, layout, spare->staging.host + at);
	q->ops->copy(q, (struct place){&spare->memory, at}, (struct place){&spare->staging, at},
		(size_t)device_expert_bytes(layer));
	view->slot = EXPERT_NO_SLOT;
	view->gate = (struct place){&spare->memory, at};
	view->up = (struct place){&spare->memory, at + (size_t)device_part_at(layer, EXPERT_UP)};
	view->down =
		(struct place){&spare->memory, at + (size_t)device_part_at(layer, EXPERT_DOWN)};
	view->layout = LAYOUT_TILES;
	return slot;
}

void device_spare_put(struct device_spare *spare, uint32_t slot)
{
	spare->free[spare->n_free++] = slot;
}
