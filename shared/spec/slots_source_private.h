/*
 * What slots_source.c (the expert source) and slots_wait.c (its waits) share. Nobody else includes
 * it; all of it belongs to the verifier's one thread.
 */
#pragma once

#include "shared/spec/slots.h"

struct experts_cached {
	struct expert_source source;
	struct experts_cached_options options;
	struct slots_geometry geometry;
	struct region region; /* fd -1: none attached */
	struct region hints; /* beside it */
	struct slots slots;
	struct buffer arena, file; /* of the slots; of the experts in the file */
	uint32_t epoch;
	uint64_t n_attached; /* regions that were taken, ever */
	bool damaged; /* a slot in use was not ours any more when it was given back */
	uint64_t iteration; /* counts begins, over restarts: from the generation */
	uint64_t session;
	bool (*meanwhile)(void *arg); /* NULL: nothing to do */
	void *meanwhile_arg;
	/* The transfer worker's last sign of life when it was given up; while it gives no other,
	 * nothing is asked of it. */
	uint64_t hung_beat_ns;

	/* The layer under way. */
	uint32_t layer, n;
	uint16_t experts[LIMIT_EXPERTS];
	/* Indices into experts, by what becomes of them; every one of 0..n-1 not yet returned is
	 * in one of the first three. */
	uint32_t n_pinned, n_missing, n_unserved;
	uint16_t pinned[LIMIT_EXPERTS]; /* resident, slot[] says where */
	uint16_t missing[LIMIT_EXPERTS]; /* demanded */
	uint16_t unserved[LIMIT_EXPERTS]; /* to be read from the file here */
	uint32_t slot[LIMIT_EXPERTS];
	/* Views given out, oldest first: what they pin or have read from the file stays until their tickets are reached. */
	uint32_t n_held;
	struct held_view {
		uint32_t slot, layer, expert; /* slot SLOT_NONE: of the file */
		ticket until; /* 0: used was not told of it */
	} held[2 * LIMIT_EXPERTS];
	struct queue *q; /* of the tickets */
	uint64_t progress_ns; /* when something last arrived */
};

/* Whether a region is attached and its cache process lives. */
bool slots_cache_alive(const struct experts_cached *cached);
/* Whether the transfer worker has done something since it was last given up. */
bool slots_worker_alive(const struct experts_cached *cached);
/* Nothing has arrived: sleeps until something may have, or moves missing experts to the
 * unserved. seen: arrivals, read before the look that found nothing. */
void slots_wait_or_give_up(struct experts_cached *cached, uint32_t seen);
