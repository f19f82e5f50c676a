/*
 * Products of plain weights (F32, F16, BF16) with float32 activations, in the order LANES of
 * numerics.md. A tile of weight rows is multiplied with a tile of activation rows, so that a weight
 * is widened once for the tile. MATMUL_ROWS and MATMUL_TOKENS are the size of the tile that the
 * registers hold. Include after vec_*.h.
 */
#pragma once

#include "kernels/tensor.h"

#include <assert.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Activation rows that stay in the caches while the weight rows pass. */
#define MATMUL_BLOCK 64

/* This many columns of this many rows of both, and their sums, stay in the first-level cache
 * together. Whole long rows do not: their tiles would wait for the second level. */
#define MATMUL_COLUMNS 512
#define MATMUL_PANEL_ROWS 32
#define MATMUL_PANEL_TOKENS 8

struct panel {
	struct v16 sum[MATMUL_PANEL_ROWS / MATMUL_ROWS][MATMUL_PANEL_TOKENS / MATMUL_TOKENS]
		      [MATMUL_ROWS][MATMUL_TOKENS];
};

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

/* Adds columns from..to-1 of R rows and T activation rows to their sums. from is a multiple of 16;
 * T, R and fetch are constants where this is inlined. fetch: meanwhile the same columns of the next
 * R rows are prefetched to the second level. Prefetching to the first level is worse than nothing,
 * since rows of 4 KiB lie in the same sets of it. Zen 4, one thread, memory of 26 GB/s, with 1 and
 * 4 tokens: F16 from 18.2 to 24.1 and from 14.8 to 20.5 GB/s, F32 from 21.1 to 25.2 and from 18.4
 * to 21.1. */
ALWAYS_INLINE void tile_columns(enum tensor_type type, const uint8_t *weights, size_t row_bytes,
	const uint32_t R, const struct activation *x, const uint32_t T, uint32_t from, uint32_t to,
	const bool fetch, struct v16 sum[MATMUL_ROWS][MATMUL_TOKENS])
{
	const size_t bytes = type == TENSOR_F32 ? 4 : 2;
	struct v16 in[MATMUL_TOKENS];
	uint32_t k = from, left;

	for (; k + 16 <= to; k += 16) {
		for (uint32_t r = 0; fetch && k * bytes % 64 == 0 && r < R; r++)
			__builtin_prefetch(weights + (R + r) * row_bytes + k * bytes, 0, 2);
		for (uint32_t t = 0; t < T; t++)
			in[t] = v16_load(x[t].f32 + k);
		for (uint32_t r = 0; r < R; r++) {
			struct v16 wide = weights_16(type, weights + r * row_bytes, k);

			for (uint32_t t = 0; t < T; t++)
				sum[r][t] = v16_fma(wide, in[t], sum[r][t]);
		}
	}
	left = to - k;
	for (uint32_t r = 0; left && r < R; r++) {
		struct v16 wide = weights_n(type, weights + r * row_bytes, k, left);

		for (uint32_t t = 0; t < T; t++)
			sum[r][t] =
				v16_fma_n(wide, v16_load_n(x[t].f32 + k, left), sum[r][t], left);
	}
}

/* y[t][row + r] for r < R, t < T. */
ALWAYS_INLINE void matmul_tile(enum tensor_type type, const struct matrix *w, uint32_t row,
	const uint32_t R, const struct activation *x, const uint32_t T, const bool fetch,
	float *const *y)
{
	const uint8_t *weights = (const uint8_t *)w->data + (size_t)row * w->row_bytes;
	struct v16 sum[MATMUL_ROWS][MATMUL_TOKENS];

	for (uint32_t r = 0; r < R; r++)
		for (uint32_t t = 0; t < T; t++)
			sum[r][t] = v16_set1(0);
	tile_columns(type, weights, w->row_bytes, R, x, T, 0, w->cols, fetch, sum);
	for (uint32_t r = 0; r < R; r++)
		for (uint32_t t = 0; t < T; t++)
			y[t][row + r] = v16_sum(sum[r][t]);
}

/* The first tile reads the weights from memory, and prefetches the weights of the next rows. */
ALWAYS_INLINE void matmul_rows(enum tensor_type type, const struct matrix *w, uint32_t row,
	const uint32_t R, const struct activation *x, uint32_t n, float *const *y)
{
	uint32_t t = 0;

	if (n >= MATMUL_TOKENS) {
		matmul_tile(type, w, row, R, x, MATMUL_TOKENS, true, y);
		t = MATMUL_TOKENS;
	} else if (MATMUL_TOKENS > 2 && n >= 2) {
		matmul_tile(type, w, row, R, x, 2, true, y);
		t = 2;
	} else {
		matmul_tile(type, w, row, R, x, 1, true, y);
		t = 1;
	}
	for (; t + MATMUL_TOKENS <= n; t += MATMUL_TOKENS)
		matmul_tile(type, w, row, R, x + t, MATMUL_TOKENS, false, y + t);
	for (; MATMUL_TOKENS > 2 && t + 2 <= n; t += 2)
		matmul_tile(type, w, row, R, x + t, 2, false, y + t);
	for (; t < n; t++)
		matmul_tile(type, w, row, R, x + t, 1, false, y + t);
}

/* Adds columns from..to-1 of some of a panel's rows and activation rows to their kept sums. fetch
 * is a constant. */
ALWAYS_INLINE void panel_tile(enum tensor_type type, const struct matrix *w, uint32_t row,
	const struct activation *x, uint32_t from, uint32_t to, const bool fetch,
	struct v16 kept[MATMUL_ROWS][MATMUL_TOKENS])
{
	const uint8_t *weights = (const uint8_t *)w->data + (size_t)row * w->row_bytes;
	struct v16 sum[MATMUL_ROWS][MATMUL_TOKENS];

	for (uint32_t i = 0; i < MATMUL_ROWS; i++)
		for (uint32_t j = 0; j < MATMUL_TOKENS; j++)
			sum[i][j] = kept[i][j];
	tile_columns(
		type, weights, w->row_bytes, MATMUL_ROWS, x, MATMUL_TOKENS, from, to, fetch, sum);
	for (uint32_t i = 0; i < MATMUL_ROWS; i++)
		for (uint32_t j = 0; j < MATMUL_TOKENS; j++)
			kept[i][j] = sum[i][j];
}

/* The same for a whole panel: MATMUL_PANEL_ROWS rows, or those that are left, and
 * MATMUL_PANEL_TOKENS activation rows. */
ALWAYS_INLINE void panel_columns(enum tensor_type type, const struct matrix *w, uint32_t row,
	uint32_t rows, const struct activation *x, uint32_t from, uint32_t to, struct panel *panel)
{
	for (uint32_t r = 0; r < rows; r += MATMUL_ROWS) {
		struct v16(*kept)[MATMUL_ROWS][MATMUL_TOKENS] = panel->sum[r / MATMUL_ROWS];

		panel_tile(type, w, row + r, x, from, to, true, kept[0]);
		for (uint32_t t = MATMUL_TOKENS; t < MATMUL_PANEL_TOKENS; t += MATMUL_TOKENS)
			panel_tile(
				type, w, row + r, x + t, from, to, false, kept[t / MATMUL_TOKENS]);
	}
}

/* rows: a multiple of MATMUL_ROWS, at most MATMUL_PANEL_ROWS. */
ALWAYS_INLINE void matmul_panel(enum tensor_type type, const struct matrix *w, uint32_t row,
	uint32_t rows, const struct activation *x, float *const *y)
{
	struct panel panel;

	memset(&panel, 0, sizeof(panel));
	for (uint32_t k = 0; k < w->cols; k += MATMUL_COLUMNS)
		panel_columns(type, w, row, rows, x, k,
			w->cols - k < MATMUL_COLUMNS ? w->cols : k + MATMUL_COLUMNS, &panel);
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t t = 0; t < MATMUL_PANEL_TOKENS; t++)
			y[t][row + r] = v16_sum(panel.sum[r / MATMUL_ROWS][t / MATMUL_TOKENS]
							 [r % MATMUL_ROWS][t % MATMUL_TOKENS]);
}

/* n <= MATMUL_BLOCK */
ALWAYS_INLINE void matmul_block(enum tensor_type type, const struct matrix *w, uint32_t first,
	uint32_t last, const struct activation *x, uint32_t n, float *const *y)
{
	uint32_t panels = w->cols > MATMUL_COLUMNS ? n / MATMUL_PANEL_TOKENS : 0;
	uint32_t t = panels * MATMUL_PANEL_TOKENS, row = first, rows;

	for (; row + MATMUL_ROWS <= last; row += rows) {
		rows = last - row < MATMUL_PANEL_ROWS ? last - row : MATMUL_PANEL_ROWS;
		rows -= rows % MATMUL_ROWS;
		for (uint32_t i = 0; i < t; i += MATMUL_PANEL_TOKENS)
			matmul_panel(type, w, row, rows, x + i, y + i);
		for (uint32_t r = 0; t < n && r < rows; r += MATMUL_ROWS)
			matmul_rows(type, w, row + r, MATMUL_ROWS, x + t, n - t, y + t);
	}
	for (; row < last; row++)
		matmul_rows(type, w, row, 1, x, n, y);
}

ALWAYS_INLINE void matmul_plain_typed(enum tensor_type type, const struct matrix *w, uint32_t first,
	uint32_t last, const struct activation *x, uint32_t n, float *const *y)
{
	for (uint32_t t = 0; t < n; t += MATMUL_BLOCK)
		matmul_block(type, w, first, last, x + t,
			n - t < MATMUL_BLOCK ? n - t : MATMUL_BLOCK, y + t);
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

/* The last step of products with a scaled matrix. */
static void scale_products(
	const struct matrix *w, uint32_t first, uint32_t last, uint32_t n, float *const *y)
{
	for (uint32_t t = 0; w->scaled && t < n; t++)
		for (uint32_t r = first; r < last; r++)
			y[t][r] *= w->scale;
}

/* MATMUL_QUANTISED(...) is the instruction set's product of quantised weights. */
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
	scale_products(w, first, last, n, y);
}
