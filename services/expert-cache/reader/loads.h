/*
 * Experts that are being loaded from the file into slots: their reads are submitted, promoted,
 * cancelled and collected, and arrived experts are packed if wanted. Used by the transfer worker
 * alone; failures may be read by any thread.
 */
#pragma once

#include "services/expert-cache/store/integrity.h"
#include "services/expert-cache/reader/reader.h"
#include "services/expert-cache/store/store.h"

#include <stdatomic.h>

/* Loads at a time; the reader holds back what the disk cannot take. */
#define LOADS_MAX 64

struct load {
	uint32_t slot;
	struct cache_prefetch want;
	enum load_reason why; /* also DEMAND when a demand came while it was loading */
	uint32_t pass; /* of its layer when it was started */
	unsigned parts_left;
	bool again; /* what arrived was wrong, and is being read once more */
	int status;
	uint64_t start_ns; /* when its reads were submitted */
	struct read_request part[EXPERT_PARTS];
};

struct loads {
	struct store *store;
	struct reader *reader;
	struct integrity integrity;
	uint64_t generation; /* generation of this process, which loads_lose puts into the region */
	struct load *load; /* [LOADS_MAX] */
	uint32_t n_idle, n_packing;
	uint32_t idle[LOADS_MAX]; /* a stack of unused entries of load */
	uint32_t packing[LOADS_MAX]; /* read but not packed yet, in order of arrival */
	bool packs; /* experts are packed from now on */
	uint32_t running; /* the layer that the verifier began last */
	uint32_t pass[LIMIT_LAYERS]; /* number of runs of each layer */
	void *scratch; /* room for a tile of any expert */
	_Atomic uint64_t failures; /* loads that failed */
	atomic_bool lost;
};

/* Borrows store and reader. */
int loads_init(struct loads *loads, struct store *store, struct reader *reader, uint64_t generation,
	struct error *err);
/* Any thread: marks the model file as changed. Nothing is loaded any more, demands are refused, and
 * the region tells the verifier. Logs the reason once. */
void loads_lose(struct loads *loads, const struct error *why);
bool loads_lost(const struct loads *loads);
/* Call when no load is in progress. */
void loads_exit(struct loads *loads);

static inline uint32_t loads_busy(const struct loads *loads)
{
	return LOADS_MAX - loads->n_idle;
}

/* Starts a load; false when there is no slot for it. Before: a load must be idle, and want neither
 * resident nor loading. */
bool loads_start(struct loads *loads, const struct cache_prefetch *want, enum load_reason why,
	uint64_t now_ns);
/* [promote] A demand waits for an expert that is loading for another reason: its reads that are not
 * in the kernel yet overtake. */
void loads_demand(struct loads *loads, uint32_t layer, uint32_t expert);
/* Call when the verifier began a layer: the previous one has run, and has demanded what it lacked.
 */
void loads_layer(struct loads *loads, uint32_t layer);
/* Cancels the prefetches that the policy no longer wants, as far as they are not being read. */
void loads_cancel_obsolete(struct loads *loads, uint64_t now_ns);
/* Submits what was started, waits until something arrives, the bell (NULL: none) is no longer as
 * seen, or timeout_ns is over, and takes what has arrived. */
void loads_collect(struct loads *loads, const struct doorbell_seen *seen, uint64_t timeout_ns);
/* Packs one expert that has arrived, a demanded one first. It takes a while, so everything that can
 * be submitted is submitted before. */
void loads_pack_one(struct loads *loads);
