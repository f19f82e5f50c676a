/* Products of a batch, the end of a pass, and the conversion of a matrix. */
#include "kernels/gpu/steps/steps.h"

#include "kernels/gpu/kernels/many.cuh"
#include "kernels/gpu/kernels/norm.cuh"
#include "kernels/gpu/kernels/products.cuh"

/* Segments that a block takes at a time, at most; eights of tokens that share one reading of the
 * weights. */
static constexpr unsigned FEW_WARPS = 4, FEW_EIGHTS = 4;

static unsigned few_warps(uint32_t cols)
{
	unsigned segments = blocks_of(cols, PRODUCT_SEGMENT);

	return segments < FEW_WARPS ? segments : FEW_WARPS;
}

/* Of the rows behind the tiles. */
template <int TYPE, int NT>
static void launch_few_rows(struct gpu_queue *q, struct product_args args, uint32_t tiled)
{
	unsigned warps = few_warps(args.w.cols), columns = blocks_of(args.y.n, 8 * NT);

	args.first = tiled;
	LAUNCH(q->stream, (few_plain_rows<TYPE, NT>),
		(simt_dim{blocks_of(args.w.rows - tiled, 16), columns, 1}), 32 * warps,
		few_shared_bytes<NT>(warps), args);
}

template <int TYPE, int NT>
static void launch_few(struct gpu_queue *q, struct product_args args, uint32_t tiled)
{
	unsigned warps = few_warps(args.w.cols), columns = blocks_of(args.y.n, 8 * NT);

	args.first = 0;
	if (tiled > 0)
		LAUNCH(q->stream, (few_tiles<TYPE, NT>), (simt_dim{tiled / 16, columns, 1}),
			32 * warps, few_shared_bytes<NT>(warps), args);
	if (tiled < args.w.rows)
		launch_few_rows<TYPE, NT>(q, args, tiled);
}

/* Of the rows that lie in tiles. */
template <int TYPE>
static void launch_many(struct gpu_queue *q, struct product_args args, uint32_t tiled)
{
	const simt_dim grid = {blocks_of(tiled, MANY_ROWS), blocks_of(args.y.n, MANY_TOKENS), 1};

	LAUNCH(q->stream, (many_tiles<TYPE>), grid, MANY_THREADS, sizeof(many_shared), args);
}

/* Its copies take pieces that begin at multiples of their size. */
static bool suits_many(const struct product_args &args)
{
	uintptr_t at = reinterpret_cast<uintptr_t>(args.x.at) | args.x.stride;

	return args.y.n > MANY_TOKENS / 2 && at % MANY_PIECE == 0;
}

template <int TYPE> static void quantised(struct gpu_queue *q, const struct product_args &args)
{
	uint32_t tiled = args.w.layout == LAYOUT_TILES ? args.w.rows / 16 * 16 : 0;

	if (tiled > 0 && suits_many(args)) {
		launch_many<TYPE>(q, args, tiled);
		if (tiled < args.w.rows)
			launch_few_rows<TYPE, FEW_EIGHTS>(q, args, tiled);
	} else if (args.y.n <= 8)
		launch_few<TYPE, 1>(q, args, tiled);
	else
		launch_few<TYPE, FEW_EIGHTS>(q, args, tiled);
}

template <int TYPE> static void plain(struct gpu_queue *q, const struct product_args &args)
{
	const simt_dim grid = {
		blocks_of(args.w.rows, PLAIN_THREADS / 16), blocks_of(args.y.n, PLAIN_TOKENS), 1};

	LAUNCH(q->stream, (plain_products<TYPE>), grid, PLAIN_THREADS, 0, args);
}

void gpu_product(struct gpu_queue *q, const struct product_call *call)
{
	struct product_args args = {};

	if (call->y.n == 0)
		return;
	args.w = dev_matrix(q, &call->w);
	args.x = matrix_quantised(&call->w) ? call->x.q8 : call->x.f32;
	args.y = call->y;
	args.keep = call->keep;
	args.kept = call->kept;
	args.bias = call->bias;
	switch (args.w.type) {
	case TENSOR_F32:
		plain<TENSOR_F32>(q, args);
		break;
	case TENSOR_F16:
		plain<TENSOR_F16>(q, args);
		break;
	case TENSOR_BF16:
		plain<TENSOR_BF16>(q, args);
		break;
#define QUANTISED(TYPE)                   \
	case TYPE:                        \
		quantised<TYPE>(q, args); \
		break;
		EACH_QUANTISED(QUANTISED)
#undef QUANTISED
	}
}

/* A product some of whose rows are fast. */
static void product_in_pieces(
	struct gpu_queue *q, const struct product_call *call, const struct step_fast *fast)
{
	const struct matrix w = dev_matrix(q, &call->w);

	gpu_each_piece(fast, call->y.n, [&](struct step_run run, bool is_fast) {
		struct product_call piece = *call;

		piece.x = {dev_piece(call->x.f32, run), dev_piece(call->x.q8, run)};
		piece.y = dev_piece(call->y, run);
		if (piece.keep)
			piece.keep += run.first;
		if (is_fast)
			gpu_fast_product(q, &w, piece.x.f32, piece.y);
		else
			gpu_product(q, &piece);
	});
}

void gpu_products(struct queue *queue, const struct step_products *step)
{
	struct gpu_queue *q = gpu_queue(queue);

	for (uint32_t i = 0; i < step->n; i++) {
		const struct step_product *p = &step->of[i];
		struct product_call call = {};

		call.w = p->w;
		call.x = dev_inputs(&p->x);
		call.y = dev_rows(&p->y);
		call.keep = dev_array<const uint32_t>(p->keep);
		call.kept = dev_rows(&p->kept);
		if (step->fast.n > 0 && matrix_fast(&p->w))
			product_in_pieces(q, &call, &step->fast);
		else
			gpu_product(q, &call);
	}
}

static void last_norm(struct gpu_queue *q, const struct step_logits *step)
{
	struct norm_args args = {};
	uint32_t width = step->output.cols;

	args.width = width;
	args.x = dev_rows(&step->x);
	args.which = dev_rows(&step->which).at;
	args.which_stride = step->which.stride;
	args.y = dev_rows(&step->h.f32);
	args.q8 = dev_rows(&step->h.q8);
	args.w = dev_floats(q, step->w, width);
	args.bias = dev_floats(q, step->bias, width);
	args.eps = step->eps;
	LAUNCH(q->stream, norm, (simt_dim{step->which.n, 1, 1}), NORM_THREADS,
		sizeof(struct norm_shared), args);
}

void gpu_logits(struct queue *queue, const struct step_logits *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	struct product_call call = {};

	if (step->which.n == 0)
		return;
	last_norm(q, step);
	call.w = step->output;
	call.x = dev_inputs(&step->h);
	call.y = dev_rows(&step->logits);
	call.bias = dev_floats(q, step->output_bias, step->output.rows);
	gpu_product(q, &call);
}
