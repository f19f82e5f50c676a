/*
 * Products of plain weights (F32, F16, BF16) with float32 activations: LANES of kernels.h, a tile of rows times
 * a tile of activation rows at once, so that a weight is widened once for the tile. Included after vec_*.h;
 * MATMUL_ROWS and MATMUL_TOKENS are the tile the registers hold.
 */
#pragma once

#include "kernels/kernels.h"

#include <assert.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Activation rows that stay in the first-level cache while the weight rows go by. */
#define MATMUL_BLOCK 64

ALWAYS_INLINE struct v16 weights_16(enum tensor_type type, const uint8_t *row, uint32_t k)
{
	const void *p = row + (size_t)k * (type == TENSOR_F32 ? 4 : 2);

	if (type == TENSOR_F32)
		return v16_load(p);
	return type == TENSOR_F16 ? v16_load_f16(p) : v16_load_bf16(p);
}

ALWAYS_INLINE struct v16 weights_n(
	enum tensor_type type, const uint8_t *row, uint32_t k, uint32_t n)
{
	const void *p = row + (size_t)k * (type == TENSOR_F32 ? 4 : 2);

	if (type == TENSOR_F32)
		return v16_load_n(p, n);
	return type == TENSOR_F16 ? v16_load_f16_n(p, n) : v16_load_bf16_n(p, n);
}

/* y[t][row + r] for r < R, t < T; T and R are constants where this is inlined. */
ALWAYS_INLINE void matmul_tile(enum tensor_type type, const struct matrix *w, uint32_t row,
	const uint32_t R, const struct activation *x, const uint32_t T, float *const *y)
{
	const uint8_t *weights = (const uint8_t *)w->data + (size_t)row * w->row_bytes;
	struct v16 sum[MATMUL_ROWS][MATMUL_TOKENS], in[MATMUL_TOKENS];
	uint32_t k = 0, left;

	for (uint32_t r = 0; r < R; r++)
		for (uint32_t t = 0; t < T; t++)
			sum[r][t] = v16_set1(0);
	for (; k + 16 <= w->cols; k += 16) {
		for (uint32_t t = 0; t < T; t++)
			in[t] = v16_load(x[t].f32 + k);
		for (uint32_t r = 0; r < R; r++) {
			struct v16 wide = weights_16(type, weights + r * w->row_bytes, k);

			for (uint32_t t = 0; t < T; t++)
				sum[r][t] = v16_fma(wide, in[t], sum[r][t]);
		}
	}
	left = w->cols - k;
	for (uint32_t r = 0; left && r < R; r++) {
		struct v16 wide = weights_n(type, weights + r * w->row_bytes, k, left);

		for (uint32_t t = 0; t < T; t++)
			sum[r][t] =
				v16_fma_n(wide, v16_load_n(x[t].f32 + k, left), sum[r][t], left);
	}
	for (uint32_t r = 0; r < R; r++)
		for (uint32_t t = 0; t < T; t++)
			y[t][row + r] = v16_sum(sum[r][t]);
}

ALWAYS_INLINE void matmul_rows(enum tensor_type type, const struct matrix *w, uint32_t row,
	const uint32_t R, const struct activation *x, uint32_t n, float *const *y)
{
	uint32_t t = 0;

	for (; t + MATMUL_TOKENS <= n; t += MATMUL_TOKENS)
		matmul_tile(type, w, row, R, x + t, MATMUL_TOKENS, y + t);
	for (; MATMUL_TOKENS > 2 && t + 2 <= n; t += 2)
		matmul_tile(type, w, row, R, x + t, 2, y + t);
	for (; t < n; t++)
		matmul_tile(type, w, row, R, x + t, 1, y + t);
}

ALWAYS_INLINE void matmul_plain_typed(enum tensor_type type, const struct matrix *w, uint32_t first,
	uint32_t last, const struct activation *x, uint32_t n, float *const *y)
{
	for (uint32_t t = 0; t < n; t += MATMUL_BLOCK) {
		uint32_t some = n - t < MATMUL_BLOCK ? n - t : MATMUL_BLOCK;
		uint32_t row = first;

		for (; row + MATMUL_ROWS <= last; row += MATMUL_ROWS)
			matmul_rows(type, w, row, MATMUL_ROWS, x + t, some, y + t);
		for (; row < last; row++)
			matmul_rows(type, w, row, 1, x + t, some, y + t);
	}
}

static void matmul_f32(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	matmul_plain_typed(TENSOR_F32, w, first, last, x, n, y);
}

static void matmul_f16(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	matmul_plain_typed(TENSOR_F16, w, first, last, x, n, y);
}

static void matmul_bf16(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	matmul_plain_typed(TENSOR_BF16, w, first, last, x, n, y);
}

/* MATMUL_QUANTISED(...) is the backend's product of quantised weights. */
static void op_matmul(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	assert(first <= last && last <= w->rows);
	switch (w->type) {
	case TENSOR_F32:
		matmul_f32(w, first, last, x, n, y);
		break;
	case TENSOR_F16:
		matmul_f16(w, first, last, x, n, y);
		break;
	case TENSOR_BF16:
		matmul_bf16(w, first, last, x, n, y);
		break;
	default:
		assert(tensor_type_info((uint32_t)w->type)->quantised);
		MATMUL_QUANTISED(w, first, last, x, n, y);
		break;
	}
}
