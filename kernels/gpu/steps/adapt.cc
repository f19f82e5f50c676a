/* Gated adapters: additions to products, the sampler of their drafts, and their masks' embeddings. */
#include "kernels/gpu/steps/adapt.h"

/* What is between the two products of all additions that run together: of those to products, or of
 * those to gate and up. */
static size_t between_floats(const struct queue_limits *limits)
{
	size_t ffn = 2 * (size_t)limits->ffn_pairs;

	return limits->adapt_rank * (limits->pairs > ffn ? limits->pairs : ffn);
}

void gpu_adapt_layout(struct gpu_queue *q, struct gpu_carve *c)
{
	q->between = (float *)gpu_carve(c, between_floats(&q->limits) * sizeof(float));
}

struct additions additions_begin(struct gpu_queue *q, uint32_t most)
{
	struct addition *of = stream_array<struct addition>(q->stream, most);

	memset((void *)of, 0, most * sizeof(*of));
	return {of, 0, 0, 0, 0, 0};
}

struct addition *additions_add(
	struct gpu_queue *q, struct additions *to, const struct low_rank *w, uint32_t n)
{
	if (!w->a.data || n == 0)
		return nullptr;
	struct addition *a = &to->of[to->n++];
	*a = addition{};
	a->a = dev_matrix(q, &w->a);
	a->b = dev_matrix(q, &w->b);
	a->scale = w->scale;
	a->n = n;
	a->between = q->between + to->between;
	to->between += (size_t)n * w->a.rows;
	assert(to->between <= between_floats(&q->limits));
	to->rank = w->a.rows > to->rank ? w->a.rows : to->rank;
	to->outputs = w->b.rows > to->outputs ? w->b.rows : to->outputs;
	to->rows = n > to->rows ? n : to->rows;
	return a;
}

void additions_run(struct gpu_queue *q, const struct additions *what)
{
	const unsigned rows = PLAIN_THREADS / 16, columns = blocks_of(what->rows, PLAIN_TOKENS);
	const struct addition *of = what->of;

	if (what->n == 0)
		return;
	LAUNCH(q->stream, addition_in, (simt_dim{blocks_of(what->rank, rows), columns, what->n}),
		PLAIN_THREADS, 0, of);
	LAUNCH(q->stream, addition_out,
		(simt_dim{blocks_of(what->outputs, rows), columns, what->n}), PLAIN_THREADS, 0, of);
}

void gpu_adapt(struct queue *queue, const struct step_adapt *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	const struct dev_rows which = dev_rows(&step->which);
	const struct addition_index rows = {(const uint32_t *)which.at, 0, 1};
	struct additions all = additions_begin(q, step->n);

	assert(which.stride == sizeof(uint32_t));
	for (uint32_t i = 0; i < step->n; i++) {
		struct addition *a = additions_add(q, &all, &step->of[i].w, which.n);

		if (!a)
			continue;
		a->x = dev_rows(&step->of[i].x);
		a->y = dev_rows(&step->of[i].y);
		a->from = a->to = rows;
	}
	additions_run(q, &all);
}

void gpu_silu_norm(struct queue *queue, const struct step_silu_norm *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	const struct silu_norm_args args = {step->width, dev_rows(&step->y), dev_rows(&step->add),
		dev_rows(&step->z), dev_rows(&step->out), dev_floats(q, step->w, step->width),
		step->eps, step->skip};

	if (step->y.n > 0)
		LAUNCH(q->stream, silu_norm, (simt_dim{step->y.n, 1, 1}), NORM_THREADS,
			sizeof(struct norm_shared), args);
}

void gpu_embed_masks(struct gpu_queue *q, const struct step_embed *step)
{
	const simt_dim grid = {blocks_of(step->table.cols, EMBED_THREADS), step->tokens.n, 1};

	if (step->masks)
		LAUNCH(q->stream, embed_masks, grid, EMBED_THREADS, 0, dev_rows(&step->tokens),
			dev_floats(q, step->masks, step->table.cols), step->mask_stride,
			step->table.rows, step->table.cols, dev_rows(&step->x));
}
