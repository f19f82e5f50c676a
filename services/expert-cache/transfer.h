/*
 * The transfer worker: one thread that takes demands, hints and activation counts from the region's rings and keeps
 * the slots filled. What is demanded goes first, then hints by score, then preloading in file order; the later two use
 * at most a quarter of the reads in flight, so that a demand never queues behind many of them.
 */
#pragma once

#include "services/expert-cache/integrity.h"
#include "services/expert-cache/reader.h"
#include "services/expert-cache/store.h"

#include <pthread.h>
#include <stdatomic.h>

/* Loads that the reader has at once; it holds back what the disk cannot take. */
#define TRANSFER_LOADS 64

struct transfer_options {
	bool preload;
	uint64_t spin_ns;
	uint64_t generation; /* of this process: what transfer_lose puts into the region */
};

/* One expert on its way: a read per part. */
struct load {
	uint32_t slot, layer, expert;
	enum load_reason why; /* DEMAND also when one came while it was loading */
	unsigned parts_left;
	int status;
	uint64_t hint_until_ns;
	struct read_request part[EXPERT_PARTS];
};

struct transfer {
	struct store *store;
	struct reader *reader;
	struct integrity integrity;
	struct transfer_options options;
	struct load *loads; /* [n_loads] */
	uint32_t n_loads, n_idle, n_prefetching;
	uint32_t *idle; /* [n_loads] a stack of those not in use */
	/* Demands of the iteration under way that have no slot yet, first come first served. */
	uint32_t n_wanted;
	struct wanted {
		uint16_t layer, expert;
	} * wanted; /* [LIMIT_EXPERTS] */
	uint64_t wanted_since_ns;
	void *scratch; /* a tile of any expert, where slots are packed; else NULL */
	uint32_t preload_layer, preload_expert;
	pthread_t thread;
	bool running;
	atomic_bool stop, lost;
	/* For the loop thread. */
	_Atomic uint64_t beat_ns; /* the worker's last sign of life */
	_Atomic uint64_t failures; /* loads that could not be read */
	_Atomic uint32_t queue; /* demands and prefetches that wait, loads under way */
	_Atomic bool preloading;
};

/* Borrows store and reader. */
int transfer_start(struct transfer *transfer, struct store *store, struct reader *reader,
	const struct transfer_options *options, struct error *err);
/* Any thread: the model file is not what it was. Nothing is loaded any more, demands are refused, and the verifier is
 * told through the region. The log says why, once. */
void transfer_lose(struct transfer *transfer, const struct error *why);
/* Waits for the reads in flight. */
void transfer_stop(struct transfer *transfer);
