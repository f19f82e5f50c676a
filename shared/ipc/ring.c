#include "shared/ipc/ring.h"

#include <string.h>

#define RING_MAGIC 0x474e524fu /* "ORNG" */

static bool sizes_legal(size_t slot_bytes, size_t n_slots)
{
	return slot_bytes != 0 && slot_bytes % CACHE_LINE == 0 && slot_bytes <= UINT32_MAX &&
	       n_slots != 0 && (n_slots & (n_slots - 1)) == 0 && n_slots <= (size_t)1 << 31;
}

size_t ring_bytes(size_t slot_bytes, size_t n_slots)
{
	size_t bytes;

	if (!sizes_legal(slot_bytes, n_slots) ||
		__builtin_mul_overflow(slot_bytes, n_slots, &bytes) ||
		__builtin_add_overflow(bytes, sizeof(struct ring_shared), &bytes))
		return 0;
	return bytes;
}

void ring_format(void *mem, size_t slot_bytes, size_t n_slots)
{
	struct ring_shared *shared = mem;

	assert(sizes_legal(slot_bytes, n_slots));
	assert((uintptr_t)mem % CACHE_LINE == 0);
	memset(shared, 0, sizeof *shared);
	shared->slot_bytes = (uint32_t)slot_bytes;
	shared->n_slots = (uint32_t)n_slots;
	shared->magic = RING_MAGIC;
}

int ring_attach(struct ring *ring, void *mem, size_t bytes, size_t slot_bytes, struct error *err)
{
	struct ring_shared *shared = mem;
	uint32_t got_bytes, n_slots;
	size_t need;

	if ((uintptr_t)mem % CACHE_LINE != 0 || bytes < sizeof *shared)
		return error_set(err, EINVAL,
			"ring: %zu bytes at %p cannot hold one (at least %zu, aligned to %d)",
			bytes, mem, sizeof *shared, CACHE_LINE);
	if (shared->magic != RING_MAGIC)
		return error_set(
			err, EINVAL, "ring: magic is %#x, expected %#x", shared->magic, RING_MAGIC);
	/* Read once: the values that are checked are the values that are used, whatever a peer
	 * writes meanwhile. */
	got_bytes = *(volatile uint32_t *)&shared->slot_bytes;
	n_slots = *(volatile uint32_t *)&shared->n_slots;
	if (slot_bytes != 0 && got_bytes != slot_bytes)
		return error_set(err, EINVAL, "ring: slots are of %u bytes, expected %zu",
			got_bytes, slot_bytes);
	need = ring_bytes(got_bytes, n_slots);
	if (need == 0 || need > bytes)
		return error_set(err, EINVAL, "ring: %u slots of %u bytes do not fit %zu bytes",
			n_slots, got_bytes, bytes);
	ring->shared = shared;
	ring->slot_bytes = got_bytes;
	ring->mask = n_slots - 1;
	/* One ring's length behind the head: to the producer this says "full", to the consumer
	 * "empty". So either side loads the other's true counter before its first slot, wherever
	 * the counters stand. */
	ring->cached = atomic_load_explicit(&shared->head, memory_order_relaxed) - n_slots;
	return 0;
}

static void *slot_at(const struct ring *ring, uint64_t counter)
{
	return ring->shared->slots + (size_t)(counter & ring->mask) * ring->slot_bytes;
}

void *ring_reserve(struct ring *ring)
{
	struct ring_shared *shared = ring->shared;
	/* only the producer stores it */
	uint64_t head = atomic_load_explicit(&shared->head, memory_order_relaxed);

	if (head - ring->cached > ring->mask) {
		/* Acquire pairs with the release in ring_release: the consumer has finished reading
		 * the slot before we see it as free. Without it we could overwrite a slot that is
		 * still being read. */
		ring->cached = atomic_load_explicit(&shared->tail, memory_order_acquire);
		if (head - ring->cached > ring->mask)
			return NULL;
	}
	return slot_at(ring, head);
}

void ring_publish_quietly(struct ring *ring)
{
	struct ring_shared *shared = ring->shared;
	uint64_t head = atomic_load_explicit(&shared->head, memory_order_relaxed);

	/* Release pairs with the acquire in ring_peek: the slot's bytes are written before the
	 * counter says so. Without it the consumer could read a half-written slot. */
	atomic_store_explicit(&shared->head, head + 1, memory_order_release);
}

void ring_publish(struct ring *ring)
{
	ring_publish_quietly(ring);
	doorbell_ring(&ring->shared->bell);
}

bool ring_half_written(const struct ring *ring)
{
	uint64_t head = atomic_load_explicit(&ring->shared->head, memory_order_relaxed);

	return (head & (ring->mask >> 1)) == 0;
}

void ring_prefetch(const struct ring *ring)
{
	uint64_t head = atomic_load_explicit(&ring->shared->head, memory_order_relaxed);

	__builtin_prefetch(slot_at(ring, head), 1);
}

bool ring_put(struct ring *ring, const void *object, size_t bytes)
{
	unsigned char *slot = ring_reserve(ring);

	assert(bytes <= ring->slot_bytes);
	if (!slot)
		return false;
	memcpy(slot, object, bytes);
	memset(slot + bytes, 0, ring->slot_bytes - bytes);
	ring_publish(ring);
	return true;
}

bool ring_push(struct ring *ring, const void *slot)
{
	return ring_put(ring, slot, ring->slot_bytes);
}

uint64_t ring_dropped(const struct ring *ring)
{
	return atomic_load_explicit(&ring->shared->dropped, memory_order_relaxed);
}

void ring_drop(struct ring *ring)
{
	atomic_store_explicit(&ring->shared->dropped, ring_dropped(ring) + 1, memory_order_relaxed);
}

const void *ring_peek(struct ring *ring)
{
	struct ring_shared *shared = ring->shared;
	/* only the consumer stores it */
	uint64_t tail = atomic_load_explicit(&shared->tail, memory_order_relaxed);

	/* If 1..n_slots slots wait, n - 1 <= mask. None, or an impossible counter, wraps to more
	 * than mask. */
	if (ring->cached - tail - 1 > ring->mask) {
		/* Acquire pairs with the release in ring_publish_quietly. */
		ring->cached = atomic_load_explicit(&shared->head, memory_order_acquire);
		if (ring->cached - tail - 1 > ring->mask)
			return NULL;
	}
	return slot_at(ring, tail);
}

void ring_release(struct ring *ring)
{
	struct ring_shared *shared = ring->shared;
	uint64_t tail = atomic_load_explicit(&shared->tail, memory_order_relaxed);

	/* Release pairs with the acquire in ring_reserve. */
	atomic_store_explicit(&shared->tail, tail + 1, memory_order_release);
}

bool ring_get(struct ring *ring, void *object, size_t bytes)
{
	const void *slot = ring_peek(ring);

	assert(bytes <= ring->slot_bytes);
	if (!slot)
		return false;
	memcpy(object, slot, bytes);
	ring_release(ring);
	return true;
}

bool ring_pop(struct ring *ring, void *slot)
{
	return ring_get(ring, slot, ring->slot_bytes);
}

uint64_t ring_length(const struct ring *ring)
{
	uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_relaxed);
	uint64_t n = atomic_load_explicit(&ring->shared->head, memory_order_relaxed) - tail;

	return n <= (uint64_t)ring->mask + 1 ? n : 0;
}

bool ring_broken(const struct ring *ring)
{
	uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_relaxed);

	return atomic_load_explicit(&ring->shared->head, memory_order_relaxed) - tail >
	       (uint64_t)ring->mask + 1;
}

bool ring_mend_producer(struct ring *ring)
{
	struct ring_shared *shared = ring->shared;

	if (!ring_broken(ring))
		return false;
	ring->cached = atomic_load_explicit(&shared->tail, memory_order_acquire);
	atomic_store_explicit(&shared->head, ring->cached, memory_order_release);
	return true;
}

bool ring_mend_consumer(struct ring *ring)
{
	struct ring_shared *shared = ring->shared;

	if (!ring_broken(ring))
		return false;
	ring->cached = atomic_load_explicit(&shared->head, memory_order_acquire);
	atomic_store_explicit(&shared->tail, ring->cached, memory_order_release);
	return true;
}
