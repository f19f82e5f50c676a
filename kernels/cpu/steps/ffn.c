/*
 * Feed-forwards: the one of a dense layer, which every row takes; those of a layer's experts; and
 * the sum of their results.
 *
 * An expert's matrices are read once for all rows that chose it. Which experts are computed in one
 * step, and in which order, depends on which are available. The results meet only in combine, which
 * adds them by rank.
 */
#include "kernels/cpu/steps/steps.h"
#include "kernels/tiles.h"

#include <string.h>

/* Computes the first n of q->ffn: gate, up and activation, then down, to q->y_rows. */
static void run_ffn(struct cpu_queue *q, uint32_t n, const struct step_next *next)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct work_ffn *task = &q->ffn[i];

		q->products[i] = (struct work_product){task->ffn.down, q->act_rows + task->first,
			q->y_rows + task->first, task->n};
	}
	bool adapts = false;

	for (uint32_t i = 0; i < n; i++)
		adapts |= q->ffn[i].adapt != NULL;
	if (adapts)
		adapt_begin(q, n);
	work_ahead(q, q->products, n);
	work_ffn(q, n);
	work_next(q, next);
	work_products(q, n, false);
	if (adapts)
		adapt_end(q, n);
}

/* ---- Feed-forwards that every row takes. ---- */

struct dense {
	const struct kernels *kernels;
	const struct step_dense_ffn *step;
};

static void dense_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct dense *d = arg;
	const struct step_dense_ffn *step = d->step;
	uint32_t width = step->ffn.down.rows;
	float *y = floats_at(&step->y, t);

	(void)thread;
	if (step->bias)
		d->kernels->add(y, step->bias, width);
	d->kernels->add(floats_at(&step->x, t), y, width);
}

void cpu_dense_ffn(struct queue *queue, const struct step_dense_ffn *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct dense d = {q->kernels, step};
	uint32_t n = step->y.n;

	assert(n <= q->limits.ffn_pairs);
	input_rows(&step->in, 0, n, q->x_rows);
	for (uint32_t t = 0; t < n; t++)
		q->y_rows[t] = floats_at(&step->y, t);
	q->ffn[0] = (struct work_ffn){step->ffn, 0, n, step->adapt};
	for (uint32_t t = 0; step->adapt && t < n; t++)
		q->gated[t] = ((const uint8_t *)place_at(step->gated))[t];
	run_ffn(q, 1, &step->next);
	if (step->x.buffer)
		work_items(q, n, n * 2 * step->ffn.down.rows * sizeof(float), dense_row, &d);
}

/* ---- Experts. ---- */

/* Fills in one expert's matrix in a copy of the common shape. tiled: a matrix of this shape can lie
 * in tiles. */
static void place_matrix(struct matrix *matrix, bool tiled, struct place place,
	enum matrix_layout layout, float scale)
{
	matrix->data = place.buffer->host + place.offset;
	/* A matrix that cannot be tiled was not packed with the others. */
	matrix->layout = tiled ? layout : LAYOUT_ROWS;
	matrix->scale = scale;
}

void cpu_experts(struct queue *queue, const struct step_experts *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	const uint32_t *pairs = (const uint32_t *)place_at(step->pairs);
	const bool gate_tiled = tiles_possible(&step->shape.gate);
	const bool up_tiled = tiles_possible(&step->shape.up);
	const bool down_tiled = tiles_possible(&step->shape.down);
	uint32_t at = 0;

	assert(step->n <= q->limits.products);
	for (uint32_t i = 0; i < step->n; i++) {
		const struct step_expert *e = &step->of[i];
		struct work_ffn *task = &q->ffn[i];
		struct ffn *ffn = &task->ffn;

		assert(e->n <= q->limits.ffn_pairs - at);
		*ffn = step->shape;
		place_matrix(&ffn->gate, gate_tiled, e->gate, e->layout, e->gate_scale);
		place_matrix(&ffn->up, up_tiled, e->up, e->layout, e->up_scale);
		place_matrix(&ffn->down, down_tiled, e->down, e->layout, e->down_scale);
		ffn->gate_bias = e->gate_bias;
		ffn->up_bias = e->up_bias;
		task->first = at;
		task->n = e->n;
		task->adapt = e->adapt;
		for (uint32_t p = e->first; p < e->first + e->n; p++, at++) {
			uint32_t row = pairs[p] / step->n_used;

			input_rows(&step->in, row, 1, &q->x_rows[at]);
			if (e->adapt)
				q->gated[at] = ((const uint8_t *)place_at(step->gated))[row];
			q->y_rows[at] = floats_at(&step->y, pairs[p]);
		}
	}
	run_ffn(q, step->n, &step->next);
}

/* ---- The sum of their results. ---- */

struct combine {
	const struct kernels *kernels;
	const struct step_combine *step;
};

static void combine_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct combine *c = arg;
	const struct kernels *kernels = c->kernels;
	const struct step_combine *step = c->step;
	const uint16_t *chosen = (const uint16_t *)row_at(&step->chosen, t);
	const float *weights = floats_at(&step->weights, t);
	uint32_t n = step->width;
	float *sum = floats_at(&step->sum, t);

	(void)thread;
	memset(sum, 0, n * sizeof(*sum));
	for (uint32_t j = 0; j < step->n_used; j++) {
		float *y = floats_at(&step->y, (size_t)t * step->n_used + j);

		if (step->bias)
			kernels->add(y, step->bias + chosen[j] * step->bias_stride, n);
		kernels->axpy(sum, weights[j], y, n);
	}
	if (step->shared.buffer) {
		float *shared = floats_at(&step->shared, t);

		if (step->shared_bias)
			kernels->add(shared, step->shared_bias, n);
		if (step->shared_weight.buffer) {
			float *weight = floats_at(&step->shared_weight, t);

			kernels->sigmoid(weight, 1);
			kernels->axpy(sum, *weight, shared, n);
		} else {
			kernels->add(sum, shared, n);
		}
	}
	kernels->add(floats_at(&step->x, t), sum, n);
}

void cpu_combine(struct queue *queue, const struct step_combine *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct combine c = {q->kernels, step};
	uint32_t n = step->x.n;

	work_items(q, n, (size_t)n * (step->n_used + 3) * step->width * sizeof(float), combine_row,
		&c);
}
