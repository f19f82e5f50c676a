/*
 * The transfer worker: one thread that takes demands, hints and activation counts from the region's
 * rings and keeps the slots filled. Demands go first, then what the policy prefetches, then
 * preloading in the order of the file. The reader gets only as many prefetches and preloads as keep
 * the disk busy: a later choice knows more. The reader keeps room for demands and lets them
 * overtake.
 */
#pragma once

#include "services/expert-cache/device/device.h"
#include "services/expert-cache/hints/hint_quality.h"
#include "services/expert-cache/reader/loads.h"
#include "services/expert-cache/reader/packer.h"
#include "services/expert-cache/reader/pages_ahead.h"

#include <pthread.h>

struct transfer_options {
	bool preload;
	bool packs; /* pack every expert that arrives, before it is used */
	bool packs_later; /* pack experts that are used again */
	bool pages_ahead; /* fixed at the start; later changes have no effect */
	uint64_t spin_ns;
	uint64_t generation; /* generation of this process, which loads_lose puts into the region */
	struct hint_quality *quality; /* borrowed; NULL: hints are not judged */
};

/* A change that the loop thread wants. */
struct transfer_change {
	uint32_t budget; /* slots */
	struct transfer_options options;
	/* NULL: the policy stays. Otherwise the new policy and its state; afterwards the ones that
	 * were in force before. */
	const struct cache_policy_ops *policy;
	void *policy_state;
	struct store_resident *scratch; /* [n_slots], when the policy changes */
	void *device_state; /* the new policy's for the device's slots, if there are any */
	/* NULL: the device's slots stay. Otherwise others; afterwards those that were in use before.
	 */
	struct device *device;
};

enum { TRANSFER_MISSED = 128 };

struct transfer {
	struct store *store;
	struct reader *reader;
	struct device *device; /* NULL: none */
	struct transfer_options options;
	struct loads loads;
	struct pages_ahead pages;
	struct packer packer;
	/* Demands of the present iteration that have no slot yet, in order of arrival. */
	uint32_t n_wanted;
	struct wanted {
		uint16_t layer, expert;
		uint64_t since_ns; /* when the verifier pushed the demand */
	} * wanted; /* [LIMIT_EXPERTS] */
	uint64_t wanted_since_ns, measured_ns;
	/* What the drafter's head used and did not find in a slot. */
	uint32_t n_missed;
	struct cache_prefetch missed[TRANSFER_MISSED];
	uint32_t preload_layer, preload_expert;
	/* Entries that found no room in each ring, as far as the log says. */
	struct transfer_lost {
		uint64_t demands, activations, hints, gates, heads;
	} lost;
	pthread_t thread;
	bool running;
	atomic_bool stop;
	/* From the loop thread: the pending change, and how many changes were put in force. */
	_Atomic(struct transfer_change *) change;
	_Atomic uint32_t n_changed;
	struct doorbell changed;
	/* Read by the loop thread: */
	_Atomic uint64_t beat_ns; /* the worker's last sign of life */
	_Atomic uint32_t queue; /* demands that wait, and loads in progress */
	_Atomic uint32_t hints_kept; /* prefetches that the policy keeps waiting */
};

/* Starts the worker. Borrows store, reader and device, which may be NULL. */
int transfer_start(struct transfer *transfer, struct store *store, struct reader *reader,
	struct device *device, const struct transfer_options *options, struct error *err);
/* Stops the worker, after waiting for the reads in flight. */
void transfer_stop(struct transfer *transfer);

/* Loop thread: has the worker put the change in force between two rounds, which has happened when
 * this returns 0. A lower budget is reached later, as pins are released. -ETIMEDOUT when the worker
 * does not finish its round: nothing has changed. */
int transfer_apply(struct transfer *transfer, struct transfer_change *change, struct error *err);
