/*
 * Gated adapters: low-rank additions to products, for the rows that take them (numerics.md,
 * "Additions"), in two launches; the sampler of their drafts; and the embeddings of their masks. The
 * products of both matrices are LANES: half a warp has a row of weights, which up to eight rows of
 * inputs share.
 */
#pragma once

#include "kernels/gpu/kernels/norm.cuh"
#include "kernels/gpu/kernels/products.cuh"

/* Which row is the i-th: of[first + i] / each, or with `of` null first + i. */
struct addition_index {
	const uint32_t *of;
	uint32_t first, each;
};

DEV uint32_t addition_row(const struct addition_index &index, uint32_t i)
{
	return index.of ? index.of[index.first + i] / index.each : index.first + i;
}

/* y = fma(scale, b * (a * x), y), for n rows. */
struct addition {
	struct matrix a, b; /* {rank, inputs}, {outputs, rank}; of plain types */
	struct dev_rows x, y;
	struct addition_index from, to; /* rows of x, and of y */
	const uint8_t *gated; /* nonzero at a row's place: it takes the addition; null: all do */
	struct addition_index gate; /* places in gated */
	float *between; /* [n][rank] a * x */
	float scale;
	uint32_t n;
};

DEV bool addition_applies(const struct addition &a, uint32_t i)
{
	return i < a.n && (!a.gated || a.gated[addition_row(a.gate, i)]);
}

/* Whether any of the rows first..first+7 takes the addition: the same for all threads of a block. */
DEV bool addition_any(const struct addition &a, uint32_t first)
{
	bool any = false;

	for (unsigned i = 0; i < PLAIN_TOKENS; i++)
		any |= addition_applies(a, first + i);
	return any;
}

/* The inputs of either product, for plain_sums. */
struct addition_inputs {
	const struct addition &a;

	__device__ __forceinline__ const float *f32(uint32_t i) const
	{
		return addition_applies(a, i) ? float_row(a.x, addition_row(a.from, i)) : nullptr;
	}
};

struct addition_between {
	const struct addition &a;

	__device__ __forceinline__ const float *f32(uint32_t i) const
	{
		return addition_applies(a, i) ? a.between + (size_t)i * a.a.rows : nullptr;
	}
};

/* plain_sums of row `row` of w, or of its last one: all lanes take part. */
template <class ROWS>
DEV void addition_sums(const struct matrix &w, uint32_t row, const ROWS &rows, uint32_t first,
	float (&sum)[PLAIN_TOKENS])
{
	const unsigned char *at =
		(const unsigned char *)w.data + (row < w.rows ? row : w.rows - 1) * w.row_bytes;

	if (w.type == TENSOR_F16)
		plain_sums<TENSOR_F16>(at, w.cols, rows, first, sum);
	else if (w.type == TENSOR_BF16)
		plain_sums<TENSOR_BF16>(at, w.cols, rows, first, sum);
	else
		plain_sums<TENSOR_F32>(at, w.cols, rows, first, sum);
	for (unsigned i = 0; w.scaled && i < PLAIN_TOKENS; i++)
		sum[i] = f_mul(sum[i], w.scale);
}

/* One of both products, of 8 rows of w with 8 rows of inputs: put(i, row, sum) is called by the
 * thread that has the sum. */
template <class ROWS, class PUT>
DEV void addition_product(
	const struct addition &a, const struct matrix &w, const ROWS &rows, const PUT &put)
{
	uint32_t row = blockIdx.x * (PLAIN_THREADS / 16) + threadIdx.x / 16;
	uint32_t first = blockIdx.y * PLAIN_TOKENS, lane = threadIdx.x % 16;
	float sum[PLAIN_TOKENS];

	if (blockIdx.x * (PLAIN_THREADS / 16) >= w.rows || !addition_any(a, first))
		return;
	addition_sums(w, row, rows, first, sum);
	for (unsigned i = 0; i < PLAIN_TOKENS; i++)
		if (row < w.rows && lane == i && addition_applies(a, first + i))
			put(first + i, row, sum[i]);
}

struct addition_put_between {
	const struct addition &a;

	__device__ __forceinline__ void operator()(uint32_t i, uint32_t row, float sum) const
	{
		a.between[(size_t)i * a.a.rows + row] = sum;
	}
};

struct addition_put_out {
	const struct addition &a;

	__device__ __forceinline__ void operator()(uint32_t i, uint32_t row, float sum) const
	{
		float *y = float_row(a.y, addition_row(a.to, i)) + row;

		*y = f_fma(a.scale, sum, *y);
	}
};

/* between = a * x. Grid: (greatest rank / 8, most rows / 8, additions). */
KERNEL addition_in(const struct addition *of)
{
	const struct addition &a = of[blockIdx.z];

	addition_product(a, a.a, addition_inputs{a}, addition_put_between{a});
}

/* y = fma(scale, b * between, y). Grid: (most outputs / 8, most rows / 8, additions). */
KERNEL addition_out(const struct addition *of)
{
	const struct addition &a = of[blockIdx.z];

	addition_product(a, a.b, addition_between{a}, addition_put_out{a});
}

/* ---- Drafts. ---- */

struct silu_norm_args {
	uint32_t width;
	struct dev_rows y, add, z, out; /* add, z: or absent */
	const float *w;
	float eps, skip;
};

/* A block of the grid: a row. */
KERNEL silu_norm(struct silu_norm_args a)
{
	struct norm_shared &s = shared_memory<struct norm_shared>();
	float *y = float_row(a.y, blockIdx.x), *out = float_row(a.out, blockIdx.x);
	struct norm_args norm = {};

	for (uint32_t k = threadIdx.x; k < a.width; k += NORM_THREADS)
		y[k] = silu(y[k]);
	norm.width = a.width;
	norm.eps = a.eps;
	float factor = norm_factor(norm, y, y, s);
	for (uint32_t k = threadIdx.x; k < a.width; k += NORM_THREADS) {
		float value = f_mul(f_mul(y[k], factor), a.w[k]);

		if (a.add.at)
			value = f_add(value, float_row(a.add, blockIdx.x)[k]);
		if (a.z.at)
			value = f_fma(a.skip, float_row(a.z, blockIdx.x)[k], value);
		out[k] = value;
	}
}

/* ---- Masks. ---- */

/* A thread: one value of a row, if that has a mask: a token from n_vocab on. */
KERNEL embed_masks(struct dev_rows tokens, const float *masks, size_t stride, uint32_t n_vocab,
	uint32_t width, struct dev_rows x)
{
	uint32_t k = blockIdx.x * EMBED_THREADS + threadIdx.x, t = blockIdx.y;
	const struct step_token *token = (const struct step_token *)(tokens.at + t * tokens.stride);

	if (k < width && token->id >= n_vocab)
		float_row(x, t)[k] = masks[(token->id - n_vocab) * stride + k];
}
