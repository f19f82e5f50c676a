#include "kernels/gpu/steps/experts_launch.h"

#include "kernels/gpu/kernels/experts.cuh"

#include <cassert>

/* With few pairs a block takes all of them; with more it takes 32 at a time. */
template <int TYPE>
static void launch_in(struct stream *stream, const experts_args *a, unsigned n, unsigned most)
{
	unsigned blocks = a->shape[EXPERT_GATE].rows / EXPERTS_ROWS;

	if (most <= 8)
		LAUNCH(stream, (experts_in<TYPE, 1>), (simt_dim{blocks, n, 1}), EXPERTS_THREADS,
			sizeof(experts_in_shared<1>), *a);
	else
		LAUNCH(stream, (experts_in<TYPE, 4>), (simt_dim{blocks, n, blocks_of(most, 32)}),
			EXPERTS_THREADS, sizeof(experts_in_shared<4>), *a);
}

template <int TYPE>
static void launch_one(
	struct stream *stream, const experts_args *a, unsigned matrix, unsigned n, unsigned most)
{
	const experts_shape *shape = &a->shape[matrix];
	unsigned tiles = blocks_of(shape->rows, 16),
		 segments = blocks_of(shape->cols, PRODUCT_SEGMENT);
	unsigned threads = 32 * (segments < EXPERTS_WARPS ? segments : EXPERTS_WARPS);

	if (most <= 8)
		LAUNCH(stream, (experts_one<TYPE, 1>), (simt_dim{tiles, n, 1}), threads,
			sizeof(experts_one_shared<1>), *a, matrix);
	else
		LAUNCH(stream, (experts_one<TYPE, 4>), (simt_dim{tiles, n, blocks_of(most, 32)}),
			threads, sizeof(experts_one_shared<4>), *a, matrix);
}

void experts_launch_in(struct stream *stream, enum tensor_type type, const experts_args *a,
	unsigned n, unsigned most)
{
	switch (type) {
#define LAUNCH_IN(of)                              \
	case of:                                   \
		launch_in<of>(stream, a, n, most); \
		return;
		EACH_QUANTISED(LAUNCH_IN)
#undef LAUNCH_IN
	default:
		assert(false && "a quantised type");
	}
}

void experts_launch_one(struct stream *stream, enum tensor_type type, const experts_args *a,
	unsigned matrix, unsigned n, unsigned most)
{
	switch (type) {
#define LAUNCH_ONE(of)                                      \
	case of:                                            \
		launch_one<of>(stream, a, matrix, n, most); \
		return;
		EACH_QUANTISED(LAUNCH_ONE)
#undef LAUNCH_ONE
	default:
		assert(false && "a quantised type");
	}
}

void experts_launch_plain(struct stream *stream, enum tensor_type type, const experts_args *a,
	unsigned matrix, unsigned n, unsigned most)
{
	simt_dim grid = {blocks_of(a->shape[matrix].rows, 16), n, blocks_of(most, 8)};
	size_t shared = sizeof(expert_rows<float, 1>);

	if (type == TENSOR_F16)
		LAUNCH(stream, (experts_plain<TENSOR_F16>), grid, EXPERTS_THREADS, shared, *a,
			matrix);
	else if (type == TENSOR_BF16)
		LAUNCH(stream, (experts_plain<TENSOR_BF16>), grid, EXPERTS_THREADS, shared, *a,
			matrix);
	else
		LAUNCH(stream, (experts_plain<TENSOR_F32>), grid, EXPERTS_THREADS, shared, *a,
			matrix);
}

void experts_launch_activate(
	struct stream *stream, const experts_args *a, unsigned n, unsigned most)
{
	unsigned blocks = blocks_of(a->shape[EXPERT_GATE].rows, 32);

	LAUNCH(stream, experts_activate, (simt_dim{blocks, n, blocks_of(most, EXPERTS_WARPS)}),
		EXPERTS_THREADS, 0, *a);
}

void experts_launch_find(struct stream *stream, const find_args *a)
{
	LAUNCH(stream, experts_find, (simt_dim{1, 1, 1}), 128, 0, *a);
}
