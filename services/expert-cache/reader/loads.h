/*
 * Experts on their way from the file into slots: reads are submitted and collected, promoted, taken
 * back, and what has arrived is packed where that is wanted. Used by the transfer worker alone;
 * failures by any thread.
 */
#pragma once

#include "services/expert-cache/store/integrity.h"
#include "services/expert-cache/reader/reader.h"
#include "services/expert-cache/store/store.h"

#include <stdatomic.h>

/* Loads at once: the reader holds back what the disk cannot take. */
#define LOADS_MAX 64

struct load {
	uint32_t slot;
	struct cache_prefetch want;
	enum load_reason why; /* DEMAND also when one came while it was loading */
	uint32_t pass; /* of its layer when it was started */
	unsigned parts_left;
	bool again; /* what came was not what it should be, and is read once more */
	int status;
	uint64_t start_ns; /* when its reads were submitted */
	struct read_request part[EXPERT_PARTS];
};

struct loads {
	struct store *store;
	struct reader *reader;
	struct integrity integrity;
	uint64_t generation; /* of this process: what loads_lose puts into the region */
	struct load *load; /* [LOADS_MAX] */
	uint32_t n_idle, n_packing;
	uint32_t idle[LOADS_MAX]; /* a stack of those not in use */
	uint32_t packing[LOADS_MAX]; /* read, and not packed yet, in the order in which they came */
	bool packs; /* from now on */
	uint32_t running; /* the layer that the verifier began last */
	uint32_t pass[LIMIT_LAYERS]; /* how often each layer has run */
	void *scratch; /* a tile of any expert */
	_Atomic uint64_t failures; /* loads that could not be read */
	atomic_bool lost;
};

/* Borrows store and reader. */
int loads_init(struct loads *loads, struct store *store, struct reader *reader, uint64_t generation,
	struct error *err);
/* Any thread: the model file is not what it was. Nothing is loaded any more, demands are
 * refused, and the verifier is told through the region. The log says why, once. */
void loads_lose(struct loads *loads, const struct error *why);
bool loads_lost(const struct loads *loads);
/* Nothing is busy. */
void loads_exit(struct loads *loads);

static inline uint32_t loads_busy(const struct loads *loads)
{
	return LOADS_MAX - loads->n_idle;
}

/* False when there is no slot for it. The caller has seen that a load is idle, and want is
 * neither resident nor loading. */
bool loads_start(struct loads *loads, const struct cache_prefetch *want, enum load_reason why,
	uint64_t now_ns);
/* [promote] A demand waits for what is loading for another reason: what is not in the kernel yet overtakes. */
void loads_demand(struct loads *loads, uint32_t layer, uint32_t expert);
/* The verifier began a layer: the one before has run, and has demanded what it lacked. */
void loads_layer(struct loads *loads, uint32_t layer);
/* Takes back the prefetches that the policy does not want any more, as far as they are not being read. */
void loads_cancel_obsolete(struct loads *loads, uint64_t now_ns);
/* Submits what was started, waits for at most timeout_ns, no longer than the bell is as seen
 * (NULL: no bell), and takes what has arrived. */
void loads_collect(struct loads *loads, const struct doorbell_seen *seen, uint64_t timeout_ns);
/* Packs one expert that has arrived, a demanded one first: it takes a while, so what can be
 * submitted is submitted before. */
void loads_pack_one(struct loads *loads);
