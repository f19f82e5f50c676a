/*
 * A thread of the verifier that ends waits for copies which do not end. A queue that waits for the
 * flag of a device's slot stands still, and so does everybody who waits for the queue. When the owner
 * of the slots has died, or the flag has not come for longer than the patience, the thread copies the
 * expert into its slot itself, from the model's file, and writes the flag behind it. It sleeps while
 * nothing is waited for.
 */
#pragma once

#include "shared/spec/device_slots.h"

struct device_rescue;

struct device_rescue_options {
	const struct model *model;
	const struct slots_geometry *geometry;
	struct backend *backend;
	bool (*cache_alive)(void *arg); /* any thread */
	void *arg;
};

/* Starts the thread. Borrows everything. */
int device_rescue_start(
	const struct device_rescue_options *options, struct device_rescue **out, struct error *err);
void device_rescue_stop(struct device_rescue **rescue);

/* What the slots of the waits belong to. Call when nothing is waited for. */
struct device_rescue_slots {
	struct device_slots slots;
	uint32_t epoch;
	const struct region *region;
	const struct buffer *memory, *flags;
};
void device_rescue_use(struct device_rescue *rescue, const struct device_rescue_slots *slots);

struct device_wait {
	uint32_t slot, load;
	uint16_t layer, expert; /* that the slot is to hold */
	uint64_t patience_ns;
};
/* A queue waits for the flag of a slot that is pinned. */
void device_rescue_add(struct device_rescue *rescue, const struct device_wait *wait);
/* How many waits were ended for lack of patience since the last call: the owner lives, and hangs. */
uint32_t device_rescue_late(struct device_rescue *rescue);
