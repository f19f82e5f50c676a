/*
 * What differs between a device and the emulation on the host's side: memory, and streams of kernels
 * that run behind their caller. kernels/gpu/emulated/runtime.cc and kernels/gpu/device/runtime.cc
 * implement it.
 */
#pragma once

/* Before the C headers, which must not be the first to include these. */
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {
#include "kernels/backend.h"
}

struct runtime;
struct stream;

/* One device, or the emulation. `device` chooses it: "" or "0", "1", .. for devices; the emulation
 * ignores it. seed: the order in which the emulation runs threads (fibers.h); a device ignores it.
 * A device is also found by its UUID, "GPU-..". *what is set to a text for messages that lives as
 * long as the runtime. */
int runtime_open(const char *device, unsigned seed, struct runtime **out, const char **what,
	struct error *err);
void runtime_close(struct runtime *rt);
/* Lives as long as the runtime. */
const struct backend_device *runtime_device(const struct runtime *rt);
void runtime_memory(const struct runtime *rt, struct backend_memory *out);
/* As backend_ops.failure. */
int runtime_failure(struct runtime *rt, struct error *err);

/* Memory, as struct backend_ops describes it. They set buffer->device, with which kernels reach
 * it; buffer->backend is the caller's to set. */
int runtime_alloc(struct runtime *rt, size_t bytes, enum buffer_kind kind, struct buffer *out,
	struct error *err);
int runtime_wrap(
	struct runtime *rt, void *memory, size_t bytes, struct buffer *out, struct error *err);
int runtime_export(const struct buffer *buffer, struct error *err);
int runtime_import(struct runtime *rt, int fd, size_t bytes, bool write, struct buffer *out,
	struct error *err);
void runtime_free(struct runtime *rt, struct buffer *buffer);

int runtime_wrap_weights(struct runtime *rt, const void *memory, size_t bytes, struct buffer *out,
	struct error *err);

/* Weights, as struct backend_ops describes it. runtime_weights: where kernels find bytes that were
 * placed, alone or as part of a tensor. NULL stays NULL. Bytes that were not placed are a failure,
 * which ends the process in the emulation. */
int runtime_place(struct runtime *rt, const void *at, size_t bytes, struct error *err);
void runtime_forget(struct runtime *rt, const void *at, size_t bytes);
const void *runtime_weights(struct runtime *rt, const void *at, size_t bytes);

/* A stream belongs to one thread. */
int stream_create(struct runtime *rt, struct stream **out, struct error *err);
void stream_destroy(struct stream *stream);
/* Bytes that a stream takes, without stacks. */
size_t stream_bytes(void);

/* How many blocks take n things, `each` at a time. */
static inline unsigned blocks_of(uint32_t n, unsigned each)
{
	return (n + each - 1) / each;
}

enum { STREAM_ARGS_BYTES = 1 << 20 };
/* Returns memory that host and kernels see, 16-byte aligned, for arrays that a step's kernels read.
 * One step may take STREAM_ARGS_BYTES in all. It is free again when the step's kernels have run;
 * when memory is short the call waits for earlier steps. */
void *stream_args(struct stream *stream, size_t bytes);
template <class T> T *stream_array(struct stream *stream, size_t n)
{
	return static_cast<T *>(stream_args(stream, n * sizeof(T)));
}

void stream_copy(struct stream *stream, void *to, const void *from, size_t bytes);
void stream_wait_value(struct stream *stream, const uint32_t *word, uint32_t value);
void stream_write_value(struct stream *stream, uint32_t *word, uint32_t value);

/* Calls fn(arg), which must not call any function of the runtime, on a thread of the runtime's, when
 * everything before it has run. */
void stream_call(struct stream *stream, void (*fn)(void *arg), void *arg);

ticket stream_ticket(struct stream *stream);
bool stream_reached(struct stream *stream, ticket t);
/* -errno if something before the ticket has failed. */
int stream_wait(struct stream *stream, ticket t);

/* Marks, whose times are known when they have been reached. stream_watch: to be called before the first
 * of them, and now and then, because a device's clock is compared with clock_ns there. Waits for what
 * was queued before. The first call allocates memory; false: there is none. Not in graphs. */
enum { STREAM_MARKS = QUEUE_SPANS + 1 };
bool stream_watch(struct stream *stream);
void stream_mark(struct stream *stream, unsigned mark);
/* The time of a mark that was reached, by clock_ns; 0: not known. */
uint64_t stream_marked(struct stream *stream, unsigned mark);

/* Graphs. What is queued between the two is recorded when the key is new to the stream, and replayed
 * when it is not. False: the caller need not queue it again, because a device replays what it has
 * recorded. The emulation replays as well, but wants it all again, to compare: when something has
 * changed that was recorded by value (arguments of kernels, arrays of stream_args, sizes of
 * launches), it ends the process with the kernel's name. Tickets, flags and calls must not come
 * between the two. Arrays of stream_args take 128 KiB of a graph at most. */
bool stream_graph_begin(struct stream *stream, uint64_t key);
void stream_graph_end(struct stream *stream);

/* For the emulation's LAUNCH: takes `bytes` for a launch, which is queued when stream_commit has been
 * called: run(at, seed). differs compares what was recorded with the same of a replay, and returns
 * what differs, or null; it finds arrays of the latter `moved` bytes from those of the former. */
struct stream_moved {
	const unsigned char *from; /* arrays of the replay */
	size_t bytes;
	ptrdiff_t by;
};
/* Whether bytes are equal: words at a time, some of which may be addresses of arrays. */
bool stream_same(
	const void *recorded, const void *now, size_t bytes, const struct stream_moved *moved);
typedef const char *stream_differs(
	const void *recorded, const void *now, const struct stream_moved *moved);
void *stream_push(struct stream *stream, size_t bytes, void (*run)(void *at, unsigned seed),
	stream_differs *differs);
void stream_commit(struct stream *stream);
