/*
 * The memory behind stream_args, which both runtimes have: segments that are used in turn. A segment
 * may be used again when everything has run that was queued before the segment behind it was left:
 * what used the end of the one may have been queued while arrays were taken from the other.
 */
#pragma once

#include "kernels/gpu/runtime.h"

#include <cassert>

enum { ARGS_SEGMENTS = 4 };

struct args_ring {
	unsigned char *memory; /* args_ring_bytes() */
	size_t used; /* in the segment */
	unsigned segment;
	ticket left[ARGS_SEGMENTS]; /* tickets that were taken when a segment was left */
};

static inline size_t args_ring_bytes(void)
{
	return static_cast<size_t>(ARGS_SEGMENTS) * STREAM_ARGS_BYTES;
}

static inline void *args_ring_take(struct args_ring *ring, struct stream *stream, size_t bytes)
{
	size_t all = (bytes + 63) / 64 * 64;

	assert(all <= STREAM_ARGS_BYTES);
	if (ring->used + all > STREAM_ARGS_BYTES) {
		ring->left[ring->segment] = stream_ticket(stream);
		ring->segment = (ring->segment + 1) % ARGS_SEGMENTS;
		ring->used = 0;
		if (ring->left[(ring->segment + 1) % ARGS_SEGMENTS])
			(void)stream_wait(stream, ring->left[(ring->segment + 1) % ARGS_SEGMENTS]);
	}
	void *at =
		ring->memory + static_cast<size_t>(ring->segment) * STREAM_ARGS_BYTES + ring->used;
	ring->used += all;
	return at;
}
