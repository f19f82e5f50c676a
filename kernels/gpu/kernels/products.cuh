/* Products of a batch with one matrix, of any type, and rows of an embedding. */
#pragma once

#include "kernels/gpu/kernels/embed.cuh"
#include "kernels/gpu/kernels/few.cuh"

struct product_args {
	struct matrix w;
	uint32_t first; /* row of w: the rows before it are left out */
	struct dev_rows x, y, kept;
	const uint32_t *keep; /* or null: see kept_row */
	const float *bias; /* or null */
};

/* The rows of a batch for few_columns_of. */
struct batch_rows {
	struct dev_rows rows;

	__device__ __forceinline__ const struct q8_block *q8(uint32_t token) const
	{
		return token < rows.n ? q8_row(rows, token) : nullptr;
	}
};

/* A finished product: times the matrix's scale, plus the bias. */
DEV void put_product(const struct product_args &a, uint32_t row, uint32_t token, float y)
{
	if (a.w.scaled)
		y = f_mul(y, a.w.scale);
	if (a.bias)
		y = f_add(y, a.bias[row]);
	kept_row(a.y, a.keep, a.kept, token)[row] = y;
}

template <int TYPE, int NT, class SOURCE>
DEV void few_rows(const struct product_args &a, const SOURCE &source, uint32_t first_row)
{
	uint32_t lane = threadIdx.x % 32, first = blockIdx.y * 8 * NT;
	float *part = &shared_memory<float>();
	struct batch_rows rows = {{a.x.at, a.x.stride, a.y.n}};
	struct few_columns x[NT];
	float total[NT][4];

	few_columns_of<NT>(rows, first, x);
	few_product<TYPE, NT>(source, a.w.cols, x, part, total);
	if (threadIdx.x >= 32)
		return;
	for (unsigned j = 0; j < NT; j++)
		for (unsigned i = 0; i < 4; i++) {
			uint32_t row = first_row + lane / 4 + i / 2 * 8;
			uint32_t token = first + 8 * j + lane % 4 * 2 + i % 2;

			if (row < a.w.rows && token < a.y.n)
				put_product(a, row, token, total[j][i]);
		}
}

/* A block of the grid: a tile, times 8 NT tokens. */
template <int TYPE, int NT> KERNEL few_tiles(struct product_args a)
{
	uint32_t row = a.first + blockIdx.x * 16;
	struct tile_source source = {
		(const unsigned char *)a.w.data + row * a.w.row_bytes, a.w.cols};

	few_rows<TYPE, NT>(a, source, row);
}

/* The same for rows that are in no tile. Behind the last row, a lane takes the last one again. */
template <int TYPE, int NT> KERNEL few_plain_rows(struct product_args a)
{
	uint32_t first = a.first + blockIdx.x * 16, row = first + threadIdx.x % 32 / 4;
	uint32_t last = a.w.rows - 1;
	const unsigned char *data = (const unsigned char *)a.w.data;
	struct row_source source = {{data + (row < last ? row : last) * a.w.row_bytes,
		data + (row + 8 < last ? row + 8 : last) * a.w.row_bytes}};

	few_rows<TYPE, NT>(a, source, first);
}

/* ---- Plain types: LANES sums with float32 activations. ---- */

enum { PLAIN_THREADS = 128, PLAIN_TOKENS = 8 };

/* LANES of a row of n weights with `tokens` rows of x, token by token; half a warp has the row's
 * lanes. */
template <int TYPE, class ROWS>
DEV void plain_sums(const void *row, uint32_t cols, const ROWS &rows, uint32_t first,
	float (&sum)[PLAIN_TOKENS])
{
	const float *x[PLAIN_TOKENS];

	for (unsigned i = 0; i < PLAIN_TOKENS; i++) {
		x[i] = rows.f32(first + i);
		sum[i] = 0;
	}
	for (uint32_t k = threadIdx.x % 16; k < cols; k += 16) {
		float w = plain_value<TYPE>(row, k);

		for (unsigned i = 0; i < PLAIN_TOKENS; i++)
			if (x[i])
				sum[i] = f_fma(w, x[i][k], sum[i]);
	}
	for (unsigned i = 0; i < PLAIN_TOKENS; i++)
		sum[i] = lanes_fold(sum[i]);
}

struct batch_floats {
	struct dev_rows rows;

	__device__ __forceinline__ const float *f32(uint32_t token) const
	{
		return token < rows.n ? float_row(rows, token) : nullptr;
	}
};

/* A block of the grid: eight rows, times PLAIN_TOKENS tokens. */
template <int TYPE> KERNEL plain_products(struct product_args a)
{
	uint32_t row = blockIdx.x * (PLAIN_THREADS / 16) + threadIdx.x / 16;
	uint32_t first = blockIdx.y * PLAIN_TOKENS, lane = threadIdx.x % 16;
	uint32_t at = row < a.w.rows ? row : a.w.rows - 1;
	struct batch_floats rows = {{a.x.at, a.x.stride, a.y.n}};
	float sum[PLAIN_TOKENS];

	plain_sums<TYPE>(
		(const unsigned char *)a.w.data + at * a.w.row_bytes, a.w.cols, rows, first, sum);
	for (unsigned i = 0; i < PLAIN_TOKENS; i++)
		if (row < a.w.rows && lane == i && first + i < a.y.n)
			put_product(a, row, first + i, sum[i]);
}

/* ---- Embedding rows of quantised types. ---- */

/* A thread: eight weights of a token's row. */
template <int TYPE>
KERNEL embed_quantised(struct dev_rows tokens, struct matrix table, struct dev_rows x)
{
	uint32_t i = blockIdx.x * EMBED_THREADS + threadIdx.x, run = i / 4, t = i % 4;

	if (run >= table.cols / 32)
		return;
	const struct step_token *token =
		(const struct step_token *)(tokens.at + blockIdx.y * tokens.stride);

	if (token->id >= table.rows)
		return;
	struct run_part p = take_row_run<TYPE>(table, token->id, run, t);
	float *out = float_row(x, blockIdx.y) + 32 * run + 4 * t;

	for (unsigned half = 0; half < 2; half++)
		for (unsigned k = 0; k < 4; k++) {
			float value = run_value<TYPE>(p, half, k);

			out[16 * half + k] = table.scaled ? f_mul(value, table.scale) : value;
		}
}
