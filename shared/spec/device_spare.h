/*
 * Slots of a device that belong to the verifier alone. When nobody else brings an expert to the
 * device, the verifier packs it into memory that the device can fetch from, and its own queue copies
 * it into one of these, before the step that uses it. Belongs to the verifier's one thread.
 */
#pragma once

#include "shared/spec/device_slots.h"

enum { DEVICE_SPARES = 16 };

struct device_spare {
	uint32_t n; /* 0: the back end reads memory where it lies, and needs none */
	uint64_t slot_bytes;
	struct buffer memory, staging; /* [n] slots each */
	uint32_t n_free, free[DEVICE_SPARES];
};

/* Bytes of the device's memory that they take. */
uint64_t device_spare_bytes(const struct slots_geometry *geometry);
int device_spare_init(struct device_spare *spare, struct backend *backend,
	const struct slots_geometry *geometry, struct error *err);
void device_spare_exit(struct device_spare *spare);
/* Queues the copy of an expert into a free slot, and sets the places of *view. from: its parts, which
 * are the caller's again afterwards. Returns the slot, which device_spare_put gives back when a
 * ticket behind the steps that use it has been reached. */
uint32_t device_spare_take(struct device_spare *spare, struct queue *q,
	const struct slots_layer_geometry *layer, const void *const from[EXPERT_PARTS],
	enum matrix_layout layout, struct expert_view *view);
void device_spare_put(struct device_spare *spare, uint32_t slot);
