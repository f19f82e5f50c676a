/*
 * The emulated device, and its streams: what runtime.cc (the device and its memory), stream.cc and
 * graphs.cc share.
 */
#pragma once

#include "kernels/gpu/args_ring.h"
#include "kernels/gpu/graph_list.h"
#include "kernels/gpu/placed.h"

#include "fibers.h"

#include <atomic>
#include <pthread.h>

enum { RING_BYTES = 1 << 20 };
inline constexpr char COPY[] = "copy"; /* in place of a kernel's name */

struct runtime {
	unsigned seed;
	struct backend_device device;
	struct placed_list placed;
	struct placed_list wrapped; /* whole pages of the host's that are registered */
	uint64_t memory; /* of the device */
	std::atomic<uint64_t> used;
	uint64_t taken, taken_from; /* by other programs, from this allocation on */
	std::atomic<uint64_t> allocations;
	/* At this launch, or this copy, counted from 1, the device is lost; 0: never. */
	uint64_t lost_at, lost_at_copy, lost_at_weights;
	std::atomic<uint64_t> launches, copies, weights;
	std::atomic<const char *> lost_in; /* the kernel, or COPY; null: the device is there */
};
/* Before each record of the ring, and of a graph. run null: go on at the ring's beginning. */
struct record {
	void (*run)(void *at, unsigned seed);
	stream_differs *differs; /* null: it cannot be in a graph */
	size_t bytes; /* with this struct */
	bool always; /* also when the device is lost */
};

/* What was queued while a graph was recorded. */
struct recorded {
	unsigned char *records;
	size_t bytes, room;
	size_t args, args_bytes; /* its arrays in the list's memory */
};

enum graph_mode { GRAPH_NONE, GRAPH_RECORDS, GRAPH_REPLAYS };
enum { RECORD_BYTES = 8192 }; /* of a record in a graph, at most */

struct stream {
	struct runtime *rt;
	unsigned seed;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool ends;
	unsigned char *ring;
	/* Bytes put in and taken out, counted from the beginning. Changed under the mutex. */
	uint64_t in, out;
	uint64_t pushed; /* what `in` becomes at stream_commit */
	ticket issued;
	std::atomic<ticket> reached;
	uint64_t *marks; /* [STREAM_MARKS] their times; null until stream_watch */
	struct args_ring args;
	/* How far the arrays of stream_args have been searched for addresses. */
	unsigned seen_segment;
	size_t seen;
	struct graph_list graphs;
	enum graph_mode mode;
	uint64_t key;
	struct recorded *graph; /* unless mode is GRAPH_NONE */
	/* Of a replay, to compare: the record at hand, its place in the graph, and the arrays. */
	unsigned char *now;
	size_t at;
	unsigned char *arrays;
	size_t arrays_used;
};

/* Takes room for a record of so many bytes (record_bytes) in the ring, until ring_commit. */
struct record *ring_push(struct stream *s, size_t bytes);
void ring_commit(struct stream *s);
static inline size_t record_bytes(size_t bytes)
{
	return (sizeof(struct record) + bytes + 63) / 64 * 64;
}

/* graphs.cc. What they queued must have ended. */
void forget_graphs(struct stream *s);
