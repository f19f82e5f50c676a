/*
 * What the GPU's steps share: the queue that they run in, and addresses of rows and weights as
 * kernels see them. Each step is in the file that its comment names. Only this folder includes this
 * header.
 *
 * A step runs on the host and returns when its kernels are queued. It copies what they need of its
 * descriptor: single values as kernel arguments, arrays with stream_array.
 */
#pragma once

#include "simt.h"

#include "kernels/gpu/kernels/rows.cuh"
#include "kernels/gpu/library.h"
#include "kernels/gpu/runtime.h"

#include <cassert>

struct gpu_backend {
	struct backend backend;
	struct runtime *runtime;
};

/* What a queue's marks tell apart (times.cc). */
struct gpu_times {
	bool on;
	uint32_t part; /* of what is queued now */
	unsigned n;
	struct {
		uint32_t part;
		unsigned work; /* that begins at the mark: enum queue_work, or GPU_IDLE */
	} of[STREAM_MARKS];
};
static constexpr unsigned GPU_IDLE = QUEUE_COPY + 1;

struct gpu_queue {
	struct queue queue;
	struct runtime *runtime;
	struct stream *stream;
	struct queue_limits limits;
	/* Memory of the steps that only kernels see, as gpu_layout placed it: */
	struct buffer memory;
	/* Whether graphs are recorded; whether what comes now is part of one; whether that is
	 * replayed, so that steps have nothing to do. */
	bool graphs, in_graph, replays;
	struct gpu_times *times; /* null until the first watch */
	void *pick; /* of pick.cc: gpu_pick_open */
	void *attention; /* of attend.cc and mla.cc */
	unsigned char *ffn; /* of experts.cc */
	float *between; /* of adapt.cc */
	unsigned char *fast; /* of fast.cc */
	struct library *library; /* null: there are no fast rows */
};

/* Divides q->memory; called twice: with base null it only counts. */
struct gpu_carve {
	unsigned char *base;
	size_t used;
};

/* Takes `bytes`, at a multiple of 256; null while counting. */
static inline unsigned char *gpu_carve(struct gpu_carve *c, size_t bytes)
{
	size_t at = c->used;

	c->used += (bytes + 255) / 256 * 256;
	return c->base ? c->base + at : nullptr;
}

static inline struct gpu_queue *gpu_queue(struct queue *q)
{
	return reinterpret_cast<struct gpu_queue *>(q);
}

static inline struct dev_rows dev_rows(const struct rows *rows)
{
	if (!rows->buffer)
		return {nullptr, 0, 0};
	return {rows->buffer->device + rows->offset, rows->stride, rows->n};
}

static inline struct dev_inputs dev_inputs(const struct inputs *in)
{
	return {dev_rows(&in->f32), dev_rows(&in->q8)};
}

/* Null when there is no buffer. */
static inline unsigned char *dev_place(struct place place)
{
	return place.buffer ? place.buffer->device + place.offset : nullptr;
}

/* The same as an array. */
template <class T> T *dev_array(struct place place)
{
	return reinterpret_cast<T *>(dev_place(place));
}

/* n floats that belong to the weights, or null. */
static inline const float *dev_floats(const struct gpu_queue *q, const float *at, size_t n)
{
	return static_cast<const float *>(runtime_weights(q->runtime, at, n * sizeof(*at)));
}

/* A matrix whose data kernels can read. */
static inline struct matrix dev_matrix(const struct gpu_queue *q, const struct matrix *w)
{
	struct matrix out = *w;

	out.data = runtime_weights(q->runtime, w->data, w->rows * w->row_bytes);
	return out;
}

/* times.cc: the functions of the table. gpu_times_mark: what is queued next is such work. */
bool gpu_watch(struct queue *q);
void gpu_mark(struct queue *q, uint32_t part);
void gpu_times(struct queue *q, void (*show)(void *arg, const struct queue_span *span), void *arg);
void gpu_times_mark(struct gpu_queue *q, unsigned work);
static inline void gpu_work(struct queue *q, unsigned work)
{
	const struct gpu_queue *queue = gpu_queue(q);

	if (queue->times && queue->times->on)
		gpu_times_mark(gpu_queue(q), work);
}

/* rows.cc */
void gpu_embed(struct queue *q, const struct step_embed *step);
void gpu_norm(struct queue *q, const struct step_norm *step);
/* products.cc */
void gpu_products(struct queue *q, const struct step_products *step);
void gpu_logits(struct queue *q, const struct step_logits *step);
/* attend.cc */
void gpu_attend(struct queue *q, const struct step_attend *step);
void gpu_attend_layout(struct gpu_queue *q, struct gpu_carve *c);
/* mla.cc */
void gpu_mla(struct queue *q, const struct step_mla *step);
/* Fills in what is the same in every step, behind the layout. */
void gpu_mla_open(struct gpu_queue *q);
/* delta.cc */
void gpu_delta(struct queue *q, const struct step_delta *step);
void gpu_replay(struct queue *q, const struct step_replay *step);
/* route.cc */
void gpu_route(struct queue *q, const struct step_route *step);
void gpu_budget(struct queue *q, const struct step_budget *step);
/* experts.cc */
void gpu_dense_ffn(struct queue *q, const struct step_dense_ffn *step);
void gpu_experts(struct queue *q, const struct step_experts *step);
void gpu_know_experts(struct queue *q, const struct ffn *shape, const struct step_expert *of,
	uint32_t first, uint32_t n);
void gpu_combine(struct queue *q, const struct step_combine *step);
void gpu_ffn_layout(struct gpu_queue *q, struct gpu_carve *c);
/* adapt.cc. gpu_embed_masks: the rows of gpu_embed that have masks. */
void gpu_adapt(struct queue *q, const struct step_adapt *step);
void gpu_silu_norm(struct queue *q, const struct step_silu_norm *step);
void gpu_embed_masks(struct gpu_queue *q, const struct step_embed *step);
void gpu_adapt_layout(struct gpu_queue *q, struct gpu_carve *c);
/* fast.cc: products by the device's library. open comes behind the layout. */
void gpu_fast_layout(struct gpu_queue *q, struct gpu_carve *c);
int gpu_fast_open(struct gpu_queue *q, struct error *err);
/* y[i] = w * x[i], of float32 rows; w: as kernels see it, matrix_fast. The result depends on x.n. */
void gpu_fast_product(
	struct gpu_queue *q, const struct matrix *w, struct dev_rows x, struct dev_rows y);
/* The rows of a step between its runs: calls fn for each piece that is not empty, in order. */
template <class F> void gpu_each_piece(const struct step_fast *fast, uint32_t n, const F &fn)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < fast->n; i++) {
		const struct step_run run = fast->of[i];

		assert(run.first >= at && run.n > 0 && run.n <= n - run.first);
		if (run.first > at)
			fn(step_run{at, run.first - at}, false);
		fn(run, true);
		at = run.first + run.n;
	}
	if (at < n)
		fn(step_run{at, n - at}, false);
}
static inline struct dev_rows dev_piece(struct dev_rows rows, struct step_run run)
{
	if (!rows.at)
		return rows;
	return {rows.at + run.first * rows.stride, rows.stride, run.n};
}
/* pick.cc. open makes what a queue needs beside its layout, before that. */
void gpu_pick(struct queue *q, const struct step_pick *step);
void gpu_pick_layout(struct gpu_queue *q, struct gpu_carve *c);
int gpu_pick_open(struct gpu_queue *q, struct error *err);
void gpu_pick_close(struct gpu_queue *q);
size_t gpu_pick_bytes(const struct queue_limits *limits);

/* For other steps: y[i] = w * x[i] (products.cc); with keep as in struct step_product. */
struct product_call {
	struct matrix w;
	struct dev_inputs x;
	struct dev_rows y;
	const uint32_t *keep;
	struct dev_rows kept;
	const float *bias; /* [w.rows] added last, or null; as kernels see it */
};
void gpu_product(struct gpu_queue *q, const struct product_call *call);
