/*
 * The transfer worker: one thread that takes demands, hints and activation counts from the region's
 * rings and keeps the slots filled. What is demanded goes first, then what the policy prefetches,
 * then preloading in file order. Of the later two only as much is given to the reader as keeps the
 * disk busy: what is chosen late is chosen with what is known by then. The reader keeps room for
 * demands and lets them overtake.
 */
#pragma once

#include "services/expert-cache/hints/hint_quality.h"
#include "services/expert-cache/reader/loads.h"
#include "services/expert-cache/reader/packer.h"
#include "services/expert-cache/reader/pages_ahead.h"

#include <pthread.h>

struct transfer_options {
	bool preload;
	bool packs; /* every expert that arrives, before it is used */
	bool packs_later; /* those that are used again */
	bool pages_ahead; /* as it is started: later changes of it do nothing */
	uint64_t spin_ns;
	uint64_t generation; /* of this process: what loads_lose puts into the region */
	struct hint_quality *quality; /* borrowed; NULL: hints are not judged */
};

/* What the loop thread wants otherwise. */
struct transfer_change {
	uint32_t budget; /* slots */
	struct transfer_options options;
	/* NULL: the policy stays. Else it and its state; afterwards those that were in force until now. */
	const struct cache_policy_ops *policy;
	void *policy_state;
	struct store_resident *scratch; /* [n_slots] where the policy changes */
};

struct transfer {
	struct store *store;
	struct reader *reader;
	struct transfer_options options;
	struct loads loads;
	struct pages_ahead pages;
	struct packer packer;
	/* Demands of the iteration under way that have no slot yet, first come first served. */
	uint32_t n_wanted;
	struct wanted {
		uint16_t layer, expert;
		uint64_t since_ns; /* when the verifier pushed it */
	} * wanted; /* [LIMIT_EXPERTS] */
	uint64_t wanted_since_ns, measured_ns;
	uint32_t preload_layer, preload_expert;
	/* What found no room in each ring, as far as the log knows. */
	struct transfer_lost {
		uint64_t demands, activations, hints, gates;
	} lost;
	pthread_t thread;
	bool running;
	atomic_bool stop;
	/* From the loop thread: one change, and how many were put in force. */
	_Atomic(struct transfer_change *) change;
	_Atomic uint32_t n_changed;
	struct doorbell changed;
	/* For the loop thread. */
	_Atomic uint64_t beat_ns; /* the worker's last sign of life */
	_Atomic uint32_t queue; /* demands that wait, loads under way */
	_Atomic uint32_t hints_kept; /* prefetches the policy has noted */
};

/* Borrows store and reader. */
int transfer_start(struct transfer *transfer, struct store *store, struct reader *reader,
	const struct transfer_options *options, struct error *err);
/* Waits for the reads in flight. */
void transfer_stop(struct transfer *transfer);

/* Loop thread: the worker puts the change in force between two of its rounds; it has when this
 * returns 0. A budget that has fallen is reached later, as pins go. -ETIMEDOUT when the worker
 * does not come round: nothing has changed. */
int transfer_apply(struct transfer *transfer, struct transfer_change *change, struct error *err);
