/* Steps that treat each row of the batch separately. */
#include "kernels/gpu/steps/steps.h"

#include "kernels/gpu/kernels/embed.cuh"
#include "kernels/gpu/kernels/norm.cuh"
#include "kernels/gpu/kernels/products.cuh"

static void embed_angles(struct gpu_queue *q, const struct step_embed *step)
{
	uint32_t pairs = step->n_rot / 2;
	double *frequency = stream_array<double>(q->stream, pairs);
	const simt_dim grid = {blocks_of(pairs, EMBED_THREADS), step->tokens.n, 1};

	memcpy(frequency, step->frequency, pairs * sizeof(*frequency));
	LAUNCH(q->stream, angles, grid, EMBED_THREADS, 0, dev_rows(&step->tokens),
		dev_rows(&step->cos_sin), frequency, step->magnitude, pairs);
}

void gpu_embed(struct queue *queue, const struct step_embed *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	const struct matrix table = dev_matrix(q, &step->table);
	const struct dev_rows tokens = dev_rows(&step->tokens), x = dev_rows(&step->x);
	const simt_dim values = {blocks_of(table.cols, EMBED_THREADS), tokens.n, 1};
	const simt_dim eights = {blocks_of(table.cols / 8, EMBED_THREADS), tokens.n, 1};

	if (tokens.n == 0)
		return;
	if (step->n_rot > 0)
		embed_angles(q, step);
	switch (table.type) {
#define EMBED(kernel, grid, type)                                                          \
	case type:                                                                         \
		LAUNCH(q->stream, kernel<type>, grid, EMBED_THREADS, 0, tokens, table, x); \
		break;
#define PLAIN(type) EMBED(embed_plain, values, type)
#define QUANTISED(type) EMBED(embed_quantised, eights, type)
		PLAIN(TENSOR_F32)
		PLAIN(TENSOR_F16)
		PLAIN(TENSOR_BF16)
		EACH_QUANTISED(QUANTISED)
	}
	gpu_embed_masks(q, step);
}

void gpu_norm(struct queue *queue, const struct step_norm *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	struct norm_args args = {};

	if (step->x.n == 0)
		return;
	args.width = step->width;
	args.x = dev_rows(&step->x);
	args.add = dev_rows(&step->add);
	args.y = dev_rows(&step->y);
	args.q8 = dev_rows(&step->y_q8);
	args.add_bias = dev_floats(q, step->add_bias, step->width);
	args.w = dev_floats(q, step->w, step->width);
	args.bias = dev_floats(q, step->bias, step->width);
	args.eps = step->eps;
	LAUNCH(q->stream, norm, (simt_dim{step->x.n, 1, 1}), NORM_THREADS,
		sizeof(struct norm_shared), args);
}
