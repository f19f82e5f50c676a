/*
 * Single-producer single-consumer ring of fixed-size slots in a shared region. Free-running 64-bit counters on cache
 * lines of their own, each side caching the other's. Either side may die at any instant: a slot is visible only after
 * the counter's release store, and a successor attaches at the counters it finds. A counter a peer has
 * corrupted (more than n_slots apart) makes the ring read as empty or full and is reported by ring_broken.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/ipc/doorbell.h"

#include <stdalign.h>
#include <stdbool.h>

struct ring_shared {
	uint32_t magic, slot_bytes, n_slots,
		pad; /* n_slots a power of two; slot_bytes a multiple of 64 */
	alignas(CACHE_LINE) _Atomic uint64_t head; /* next to write; the producer's */
	_Atomic uint64_t dropped; /* the producer's count of what found no room */
	alignas(CACHE_LINE) _Atomic uint64_t tail; /* next to read; the consumer's */
	alignas(CACHE_LINE) struct doorbell bell; /* rung after a push; the consumer waits here */
	alignas(CACHE_LINE) unsigned char slots[];
};

/* One side's view. Private to its process and thread. */
struct ring {
	struct ring_shared *shared;
	uint32_t slot_bytes, mask; /* copied at attach: a peer cannot change them under us */
	uint64_t cached; /* the other side's counter as last seen */
};

/* The memory a ring takes, a multiple of CACHE_LINE; 0 when the sizes are not legal. */
size_t ring_bytes(size_t slot_bytes, size_t n_slots);
/* Makes mem (CACHE_LINE-aligned, ring_bytes of it) an empty ring. */
void ring_format(void *mem, size_t slot_bytes, size_t n_slots);
/* Either side's view of a ring; both continue at the counters they find. Checks magic, sizes and that bytes holds
 * them. slot_bytes 0: whatever the ring has. */
int ring_attach(struct ring *ring, void *mem, size_t bytes, size_t slot_bytes, struct error *err);

/* Producer. reserve: the next free slot or NULL when full; publish makes it visible and rings the bell. */
void *ring_reserve(struct ring *ring);
void ring_publish(struct ring *ring);
/* The same without the bell, which costs a full barrier: where the consumer waits elsewhere, or looks by itself. */
void ring_publish_quietly(struct ring *ring);
/* After a publish: whether it ended one half of the ring. A consumer that is told then, and comes before the other half is
 * full, loses nothing. */
bool ring_half_written(const struct ring *ring);
/* Has the first line of the next slot brought here for writing: a long ring's slots have left the caches since they were
 * last written, and every store behind one to such a line waits for it. */
void ring_prefetch(const struct ring *ring);
/* Copies a whole slot (slot_bytes bytes are read); false when full. */
bool ring_push(struct ring *ring, const void *slot);
/* The same from an object of up to slot_bytes; the rest of the slot is zeroed. */
bool ring_put(struct ring *ring, const void *object, size_t bytes);
void ring_drop(struct ring *ring); /* counts one that found no room */

/* Consumer. peek: the oldest slot or NULL; it stays the consumer's until release. */
const void *ring_peek(struct ring *ring);
void ring_release(struct ring *ring);
/* Copies a whole slot (slot_bytes bytes are written); false when empty. */
bool ring_pop(struct ring *ring, void *slot);
/* The same to an object of up to slot_bytes. */
bool ring_get(struct ring *ring, void *object, size_t bytes);

/* Slots waiting to be read; 0 when broken. */
uint64_t ring_length(const struct ring *ring);
/* What found no room since the ring was made: the producer's word. */
uint64_t ring_dropped(const struct ring *ring);
/* Whether the counters are further apart than the ring is long. To be asked by one of the two sides: for anybody
 * else both counters may move between two looks. */
bool ring_broken(const struct ring *ring);
/* By one side of a ring that somebody has corrupted: puts its own counter to where the other side's stands, so that the
 * ring is empty and works again; what was in it is lost. False, and nothing changes, when it is not broken. */
bool ring_mend_producer(struct ring *ring);
bool ring_mend_consumer(struct ring *ring);
