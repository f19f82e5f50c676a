/* Products by the device's library, for rows whose arithmetic may be another one (struct step_fast). */
#include "kernels/gpu/steps/steps.h"

#include "kernels/gpu/kernels/fast.cuh"

/* The memory of q->fast, for limits.fast_rows rows. */
struct fast_memory {
	uint16_t *narrow; /* [fast_cols] each */
	float *wide; /* [fast_outputs] each */
	float *back;
	unsigned char *library;
};

static struct fast_memory memory_at(const struct queue_limits *limits, struct gpu_carve *c)
{
	size_t values = (size_t)limits->fast_rows * limits->fast_cols;
	struct fast_memory m = {};

	m.narrow = (uint16_t *)gpu_carve(c, values * sizeof(uint16_t));
	m.wide = (float *)gpu_carve(
		c, (size_t)limits->fast_rows * limits->fast_outputs * sizeof(float));
	m.back = (float *)gpu_carve(c, limits->fast_rows * sizeof(float));
	m.library = gpu_carve(c, limits->fast_cols > 0 ? library_bytes() : 0);
	return m;
}

void gpu_fast_layout(struct gpu_queue *q, struct gpu_carve *c)
{
	unsigned char *base = gpu_carve(c, 0);

	memory_at(&q->limits, c);
	q->fast = base;
}

int gpu_fast_open(struct gpu_queue *q, struct error *err)
{
	struct gpu_carve c = {q->fast, 0};

	if (q->limits.fast_cols == 0)
		return 0;
	return library_open(
		q->runtime, q->stream, memory_at(&q->limits, &c).library, &q->library, err);
}

void gpu_fast_product(
	struct gpu_queue *q, const struct matrix *w, struct dev_rows x, struct dev_rows y)
{
	struct gpu_carve c = {q->fast, 0};
	struct fast_memory memory = memory_at(&q->limits, &c);
	struct library_product p = {};
	fast_args narrow = {};

	assert(q->library && x.n == y.n && x.n <= q->limits.fast_rows &&
		w->cols <= q->limits.fast_cols && w->rows <= q->limits.fast_outputs &&
		matrix_fast(w));
	narrow.x = x;
	narrow.narrow = memory.narrow;
	narrow.back = memory.back;
	narrow.cols = w->cols;
	narrow.type = w->type;
	LAUNCH(q->stream, fast_narrow, (simt_dim{x.n, 1, 1}), FAST_THREADS, sizeof(fast_shared),
		narrow);
	p.w = w->data;
	p.x = memory.narrow;
	p.y = memory.wide;
	p.rows = w->rows;
	p.cols = w->cols;
	p.n = y.n;
	p.type = w->type;
	p.scale = w->scaled ? w->scale : 1;
	library_multiply(q->library, &p);
	LAUNCH(q->stream, fast_back, (simt_dim{blocks_of(w->rows, FAST_THREADS), y.n, 1}),
		FAST_THREADS, 0, memory.wide, y, w->rows, memory.back);
}
