/* Steps that treat each row of the batch separately, and the products of a batch. */
#include "kernels/cpu/steps/steps.h"
#include "kernels/kernels.h"

#include <string.h>

/* ---- The start of a pass. ---- */

struct embed {
	const struct kernels *kernels;
	const struct step_embed *step;
};

static void embed_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct embed *e = arg;

	const struct step_embed *step = e->step;
	uint32_t id = token_at(&step->tokens, t)->id;

	(void)thread;
	if (step->masks && id >= step->table.rows)
		memcpy(floats_at(&step->x, t),
			step->masks + (id - step->table.rows) * step->mask_stride,
			step->table.cols * sizeof(float));
	else
		e->kernels->dequantise_row(&step->table, id, floats_at(&step->x, t));
}

static void angles_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct step_embed *step = ((const struct embed *)arg)->step;
	float *row = floats_at(&step->cos_sin, t);
	double position = (double)token_at(&step->tokens, t)->position;

	(void)thread;
	for (uint32_t i = 0; i < step->n_rot / 2; i++) {
		double sine, cosine;

		kernels_sincos(position * step->frequency[i], &sine, &cosine);
		row[2 * i] = (float)(cosine * step->magnitude);
		row[2 * i + 1] = (float)(sine * step->magnitude);
	}
}

void cpu_embed(struct queue *queue, const struct step_embed *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct embed e = {q->kernels, step};

	if (step->n_rot > 0)
		work_items(q, step->tokens.n, step->tokens.n * (size_t)step->n_rot * 256,
			angles_row, &e);
	work_items(q, step->tokens.n, step->tokens.n * step->table.cols * sizeof(float), embed_row,
		&e);
}

/* ---- Norms. ---- */

struct norm {
	const struct kernels *kernels;
	const struct step_norm *step;
};

static void norm_of(const struct kernels *kernels, const float *x, const float *w,
	const float *bias, float eps, uint32_t n, float *y, struct q8_block *q8)
{
	if (bias)
		kernels->layer_norm(x, w, bias, eps, n, y);
	else
		kernels->rms_norm(x, w, eps, n, y);
	if (q8)
		kernels->quantise_q8(y, n, q8);
}

static void norm_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct norm *norm = arg;
	const struct step_norm *step = norm->step;
	float *x = floats_at(&step->x, t);

	(void)thread;
	if (step->add.buffer) {
		float *add = floats_at(&step->add, t);

		if (step->add_bias)
			norm->kernels->add(add, step->add_bias, step->width);
		norm->kernels->add(x, add, step->width);
	} else if (step->add_bias) {
		norm->kernels->add(x, step->add_bias, step->width);
	}
	if (step->w)
		norm_of(norm->kernels, x, step->w, step->bias, step->eps, step->width,
			floats_at(&step->y, t), q8_at(&step->y_q8, t));
	else if (step->y_q8.buffer)
		norm->kernels->quantise_q8(x, step->width, q8_at(&step->y_q8, t));
}

void cpu_norm(struct queue *queue, const struct step_norm *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct norm norm = {q->kernels, step};
	size_t bytes = step->width * sizeof(float);

	work_items(q, step->x.n, step->x.n * (step->add.buffer ? 4 * bytes : 2 * bytes), norm_row,
		&norm);
}

/* ---- Products. ---- */

void cpu_products(struct queue *queue, const struct step_products *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct activation *x = q->x_rows;
	float **y = q->y_rows;
	uint32_t pairs = 0;

	assert(step->n <= q->limits.products);
	for (uint32_t i = 0; i < step->n; i++) {
		const struct step_product *p = &step->of[i];
		uint32_t n = p->y.n;

		pairs += n;
		assert(pairs <= q->limits.pairs);
		input_rows(&p->x, 0, n, x);
		for (uint32_t t = 0; t < n; t++)
			y[t] = kept_at(&p->y, p->keep, &p->kept, t);
		q->products[i] = (struct work_product){p->w, x, y, n};
		x += n;
		y += n;
	}
	if (!step->alone)
		work_next(q, &step->next);
	work_products(q, step->n, step->alone);
}

/* ---- The end of a pass. ---- */

struct logits {
	const struct kernels *kernels;
	const struct step_logits *step;
};

static void last_norm_row(void *arg, uint32_t i, uint32_t thread)
{
	const struct logits *l = arg;
	const struct step_logits *step = l->step;
	uint32_t t = *(const uint32_t *)row_at(&step->which, i);

	(void)thread;
	norm_of(l->kernels, floats_at(&step->x, t), step->w, step->bias, step->eps,
		step->output.cols, floats_at(&step->h.f32, i), q8_at(&step->h.q8, i));
}

static void bias_row(void *arg, uint32_t i, uint32_t thread)
{
	const struct logits *l = arg;

	(void)thread;
	l->kernels->add(floats_at(&l->step->logits, i), l->step->output_bias, l->step->output.rows);
}

void cpu_logits(struct queue *queue, const struct step_logits *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct logits l = {q->kernels, step};
	uint32_t n = step->which.n;
	const struct step_product product = {.w = step->output, .x = step->h, .y = step->logits};

	work_items(q, n, n * 2 * step->output.cols * sizeof(float), last_norm_row, &l);
	cpu_products(queue, &(struct step_products){.of = &product, .n = 1, .next = step->next});
	if (step->output_bias)
		work_items(q, n, n * 2 * step->output.rows * sizeof(float), bias_row, &l);
}
