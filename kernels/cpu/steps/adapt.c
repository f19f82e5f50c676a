/*
 * Gated adapters: low-rank additions to products, for the rows that take them; and the sampler of
 * their drafts. A block of rows shares one reading of the matrices, which are narrow.
 */
#include "kernels/cpu/steps/steps.h"

#include "shared/base/limits.h"

#include <string.h>

void adapt_add(const struct kernels *kernels, const struct low_rank *w, const struct activation *t,
	uint32_t n, uint32_t first, uint32_t last, float *const *y)
{
	float u[ADAPT_ROWS][ADAPT_OUT], *to[ADAPT_ROWS];

	for (uint32_t i = 0; i < n; i++)
		to[i] = u[i];
	for (uint32_t row = first; row < last; row += ADAPT_OUT) {
		struct matrix part = w->b;

		part.rows = last - row < ADAPT_OUT ? last - row : ADAPT_OUT;
		part.data = (const unsigned char *)w->b.data + row * w->b.row_bytes;
		kernels->matmul(&part, 0, part.rows, t, n, to);
		for (uint32_t i = 0; i < n; i++)
			kernels->axpy(y[i] + (row - first), w->scale, u[i], part.rows);
	}
}

/* y[i] = fma(scale, b * (a * x[i]), y[i]) for n <= ADAPT_ROWS rows. */
static void add_rows(const struct kernels *kernels, const struct low_rank *w,
	const struct activation *x, uint32_t n, float *const *y)
{
	float t[ADAPT_ROWS][LIMIT_LORA_RANK], *to[ADAPT_ROWS];
	struct activation between[ADAPT_ROWS];

	assert(w->a.rows <= LIMIT_LORA_RANK);
	for (uint32_t i = 0; i < n; i++) {
		to[i] = t[i];
		between[i] = (struct activation){t[i], NULL};
	}
	kernels->matmul(&w->a, 0, w->a.rows, x, n, to);
	adapt_add(kernels, w, between, n, 0, w->b.rows, y);
}

/* ---- Products. ---- */

struct adapt {
	const struct kernels *kernels;
	const struct step_adapt *step;
	uint32_t n_blocks; /* of rows */
};

static void adapt_block(void *arg, uint32_t item, uint32_t thread)
{
	const struct adapt *a = arg;
	const struct step_adapt_one *one = &a->step->of[item / a->n_blocks];
	uint32_t first = item % a->n_blocks * ADAPT_ROWS, left = a->step->which.n - first;
	uint32_t n = left < ADAPT_ROWS ? left : ADAPT_ROWS;
	struct activation x[ADAPT_ROWS];
	float *y[ADAPT_ROWS];

	(void)thread;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t row = *(const uint32_t *)row_at(&a->step->which, first + i);

		x[i] = (struct activation){floats_at(&one->x, row), NULL};
		y[i] = floats_at(&one->y, row);
	}
	add_rows(a->kernels, &one->w, x, n, y);
}

void cpu_adapt(struct queue *queue, const struct step_adapt *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct adapt a = {q->kernels, step, (step->which.n + ADAPT_ROWS - 1) / ADAPT_ROWS};
	size_t bytes = 0;

	for (uint32_t i = 0; i < step->n; i++)
		bytes += (step->of[i].w.a.row_bytes * step->of[i].w.a.rows +
				 step->of[i].w.b.row_bytes * step->of[i].w.b.rows) *
			 step->which.n;
	work_items(q, step->n * a.n_blocks, bytes, adapt_block, &a);
}

/* ---- Feed-forwards: pairs are few, and each is an item. ---- */

/* The feed-forward of a pair among the first n. */
static const struct ffn_adapt *adapt_of_pair(const struct cpu_queue *q, uint32_t pair)
{
	uint32_t i = 0;

	while (pair >= q->ffn[i].first + q->ffn[i].n)
		i++;
	return q->gated[pair] ? q->ffn[i].adapt : NULL;
}

static void begin_pair(void *arg, uint32_t pair, uint32_t thread)
{
	const struct cpu_queue *q = arg;
	const struct ffn_adapt *w = adapt_of_pair(q, pair);
	float *t = q->adapted + (size_t)pair * 2 * q->limits.adapt_rank;

	(void)thread;
	for (uint32_t i = 0; w && i < 2; i++, t += q->limits.adapt_rank) {
		const struct matrix *a = i == 0 ? &w->gate.a : &w->up.a;

		assert(a->rows <= q->limits.adapt_rank);
		if (a->data)
			q->kernels->matmul(a, 0, a->rows, &q->x_rows[pair], 1, &t);
	}
}

static void end_pair(void *arg, uint32_t pair, uint32_t thread)
{
	const struct cpu_queue *q = arg;
	const struct ffn_adapt *w = adapt_of_pair(q, pair);

	(void)thread;
	if (w && w->down.a.data)
		add_rows(q->kernels, &w->down, &q->act_rows[pair], 1, &q->y_rows[pair]);
}

static void for_pairs(
	struct cpu_queue *q, uint32_t n, void (*fn)(void *arg, uint32_t pair, uint32_t thread))
{
	const struct work_ffn *last = &q->ffn[n - 1];
	uint32_t pairs = last->first + last->n, n_gated = 0;
	size_t bytes = (size_t)last->ffn.gate.cols * q->limits.adapt_rank * sizeof(float);

	for (uint32_t i = 0; i < n; i++) {
		if (!q->ffn[i].adapt)
			memset(q->gated + q->ffn[i].first, 0, q->ffn[i].n);
		for (uint32_t p = 0; p < q->ffn[i].n; p++)
			n_gated += q->gated[q->ffn[i].first + p] != 0;
	}
	if (n_gated > 0)
		work_items(q, pairs, n_gated * bytes, fn, q);
}

void adapt_begin(struct cpu_queue *q, uint32_t n)
{
	for_pairs(q, n, begin_pair);
}

void adapt_end(struct cpu_queue *q, uint32_t n)
{
	for_pairs(q, n, end_pair);
}

/* ---- The sampler. ---- */

struct silu_norm {
	const struct kernels *kernels;
	const struct step_silu_norm *step;
};

static void silu_norm_row(void *arg, uint32_t i, uint32_t thread)
{
	const struct silu_norm *s = arg;
	const struct kernels *kernels = s->kernels;
	const struct step_silu_norm *step = s->step;
	float *y = floats_at(&step->y, i), *out = floats_at(&step->out, i);

	(void)thread;
	kernels->sigmoid_mul(y, y, step->width, y);
	kernels->rms_norm(y, step->w, step->eps, step->width, out);
	if (step->add.buffer)
		kernels->add(out, floats_at(&step->add, i), step->width);
	if (step->z.buffer)
		kernels->axpy(out, step->skip, floats_at(&step->z, i), step->width);
}

void cpu_silu_norm(struct queue *queue, const struct step_silu_norm *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct silu_norm s = {q->kernels, step};

	work_items(q, step->y.n, step->y.n * 4 * step->width * sizeof(float), silu_norm_row, &s);
}
