/*
 * A single-producer, single-consumer ring of fixed-size slots in a shared region. The producer and
 * the consumer each call their own functions from one thread; they may live in different processes.
 * `head` and `tail` are free-running 64-bit counters on cache lines of their own, and each side
 * caches the other side's counter. A slot becomes visible only with the release store of `head`, so
 * either side may die at any instant: its successor attaches and continues at the counters that it
 * finds. A slot that a dead producer had reserved is written anew. A slot that a dead consumer had
 * not released is read again, so a consumer must bear to see a slot twice. If a peer has corrupted
 * a counter (they are more than n_slots apart), the consumer finds the ring empty, the producer
 * finds it full, and ring_broken returns true.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/ipc/doorbell.h"

#include <stdalign.h>
#include <stdbool.h>

struct ring_shared {
	uint32_t magic, slot_bytes, n_slots,
		pad; /* n_slots: a power of two; slot_bytes: a multiple of CACHE_LINE (64) */
	/* number of the next slot to write; only the producer stores it */
	alignas(CACHE_LINE) _Atomic uint64_t head;
	/* entries that were given up (ring_drop); only the producer stores it */
	_Atomic uint64_t dropped;
	/* number of the next slot to read; only the consumer stores it */
	alignas(CACHE_LINE) _Atomic uint64_t tail;
	alignas(CACHE_LINE) struct doorbell bell; /* rung after a push; the consumer waits here */
	alignas(CACHE_LINE) unsigned char slots[];
};

/* One side's view of a ring, private to one thread of its process. */
struct ring {
	struct ring_shared *shared;
	/* copied when attaching, so that a peer cannot change them later */
	uint32_t slot_bytes, mask;
	uint64_t cached; /* the other side's counter, as last read */
};

/* Bytes of memory that a ring takes, a multiple of CACHE_LINE. 0 if the sizes are not legal. */
size_t ring_bytes(size_t slot_bytes, size_t n_slots);
/* Makes `mem` an empty ring. mem: CACHE_LINE-aligned, ring_bytes(slot_bytes, n_slots) bytes. */
void ring_format(void *mem, size_t slot_bytes, size_t n_slots);
/* Attaches either side to the ring at `mem`, which continues at the counters found there. Checks
 * the magic number, the sizes, and that the ring fits in `bytes`. slot_bytes 0 accepts any slot
 * size. Returns 0, or -EINVAL with the reason. */
int ring_attach(struct ring *ring, void *mem, size_t bytes, size_t slot_bytes, struct error *err);

/* Producer. ring_reserve returns the next free slot, or NULL when the ring is full. ring_publish
 * makes that slot visible to the consumer and rings the bell. */
void *ring_reserve(struct ring *ring);
void ring_publish(struct ring *ring);
/* Like ring_publish, but does not ring the bell, which would cost a full memory barrier. Use it
 * when the consumer waits on another bell, or looks at the ring without being woken. */
void ring_publish_quietly(struct ring *ring);
/* Call after a publish. True when the slot just published was the last of either half of the ring.
 * A producer that notifies its consumer only then never finds the ring full, provided that the
 * consumer drains it before the other half fills. Entries of an unfinished half stay unannounced.
 */
bool ring_half_written(const struct ring *ring);
/* Prefetches the first cache line of the next slot for writing. The slots of a long ring have left
 * the caches since they were last written; without the prefetch, the stores that follow a store to
 * such a line wait until the line arrives. */
void ring_prefetch(const struct ring *ring);
/* Pushes one slot and rings the bell. Reads slot_bytes bytes from `slot`. False when the ring is
 * full, which is not counted: call ring_drop if the entry is given up. */
bool ring_push(struct ring *ring, const void *slot);
/* Like ring_push, for an object of at most slot_bytes bytes. Fills the rest of the slot with zeros.
 */
bool ring_put(struct ring *ring, const void *object, size_t bytes);
void ring_drop(struct ring *ring); /* counts one entry that is given up, because it found no room */

/* Consumer. ring_peek returns the oldest slot, or NULL when the ring is empty. The slot belongs to
 * the consumer until ring_release. */
const void *ring_peek(struct ring *ring);
void ring_release(struct ring *ring);
/* Pops one slot: copies slot_bytes bytes to `slot`. False when the ring is empty. */
bool ring_pop(struct ring *ring, void *slot);
/* Like ring_pop, but copies only the first `bytes` bytes of the slot; bytes is at most slot_bytes.
 */
bool ring_get(struct ring *ring, void *object, size_t bytes);

/* Number of slots that wait to be read; 0 when the ring is broken. For a third party it is only
 * roughly right, because both counters may move between its two loads. */
uint64_t ring_length(const struct ring *ring);
/* Number of entries that the producer has given up since the ring was made. */
uint64_t ring_dropped(const struct ring *ring);
/* True when the counters are further apart than the ring is long. Only the producer or the consumer
 * may ask: for a third party both counters may move between its two loads. */
bool ring_broken(const struct ring *ring);
/* Repairs a ring whose counters were corrupted; each side calls its own function. Sets the caller's
 * counter to the other side's, which makes the ring empty and usable again; the entries in it are
 * lost. Returns false and changes nothing when the ring is not broken. If both sides mend at the
 * same moment the ring may stay broken; the next call mends it. */
bool ring_mend_producer(struct ring *ring);
bool ring_mend_consumer(struct ring *ring);
