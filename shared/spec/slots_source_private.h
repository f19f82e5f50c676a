/*
 * What slots_source.c (the source of experts) and slots_wait.c (its waits) share. No other file
 * includes it. All of it belongs to the verifier's one thread.
 */
#pragma once

#include "shared/spec/slots.h"

struct experts_cached {
	struct expert_source source;
	struct experts_cached_options options;
	struct slots_geometry geometry;
	struct region region; /* fd -1: no region is attached */
	struct region hints; /* the region "hints" */
	struct slots slots;
	struct buffer arena, file; /* arena: of the slots; file: of the experts in the file */
	uint32_t epoch;
	uint64_t n_attached; /* number of regions ever attached */
	bool damaged; /* a slot that was in use no longer had our pin when it was given back */
	uint64_t iteration; /* counts begun layers, across restarts: starts at the generation */
	uint64_t session;
	bool (*meanwhile)(void *arg); /* NULL: no other work */
	void *meanwhile_arg;
	/* Last sign of life of the transfer worker when it was given up. As long as it gives no
	 * other, nothing is demanded of it. */
	uint64_t hung_beat_ns;

	/* The present layer: */
	uint32_t layer, n;
	uint16_t experts[LIMIT_EXPERTS];
	/* Indices into experts, in groups. Each of 0..n-1 that was not returned yet is in one of
	 * the first three. */
	uint32_t n_pinned, n_missing, n_unserved;
	uint16_t pinned[LIMIT_EXPERTS]; /* resident; slot[] tells where */
	uint16_t missing[LIMIT_EXPERTS]; /* demanded */
	uint16_t unserved[LIMIT_EXPERTS]; /* to be read from the file */
	uint32_t slot[LIMIT_EXPERTS];
	/* Views that were given out, oldest first. What they pin, or have read from the file, stays
	 * until their tickets are reached. */
	uint32_t n_held;
	struct held_view {
		uint32_t slot, layer, expert; /* slot SLOT_NONE: from the file */
		ticket until; /* 0: `used` was not called for it */
	} held[2 * LIMIT_EXPERTS];
	struct queue *q; /* that issued the tickets */
	uint64_t progress_ns; /* time of the last arrival */
};

/* True when a region is attached and its cache process lives. */
bool slots_cache_alive(const struct experts_cached *cached);
/* True when the transfer worker has done something since it was last given up. */
bool slots_worker_alive(const struct experts_cached *cached);
/* Call when nothing has arrived: sleeps until something may have arrived, or moves missing experts
 * to the unserved. seen: the value of arrivals read before the look that found nothing. */
void slots_wait_or_give_up(struct experts_cached *cached, uint32_t seen);
