/*
 * How a quantised product is cut into tiles, the same for AVX2 and AVX-512: TILE_ROWS rows, a row per lane, times
 * up to TILE_TOKENS activation rows. Each lane is its row's chain over the blocks, so a tile may hold any rows.
 * The file that includes this defines TILE_ROWS, TILE_TOKENS and the functions for 1 to TILE_TOKENS tokens.
 *
 * A tile's weights are unpacked once per block into eight registers: dword k (weights 4k..4k+3) of every row. A
 * token's dot products with all rows are then eight multiply-adds with a broadcast dword of its activations, and
 * need no sum across lanes.
 */
#pragma once

#include "kernels/kernels.h"

#include <assert.h>

/* Activation rows that stay in the first-level cache while the weight rows go by. */
#define BLOCKS_TOKENS 64

/* So that the sums of a tile lie in registers; with a check at every access compiling that takes minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL_TOKENS
#elif TILE_TOKENS == 16
#define UNROLL_TOKENS _Pragma("GCC unroll 16")
#else
#define UNROLL_TOKENS _Pragma("GCC unroll 8")
#endif

/* Where a tile lies: weights of its first row, bytes from row to row, and the lanes whose results are wanted. */
struct unpacker;
struct tile {
	const uint8_t *weights;
	size_t row_bytes;
	uint32_t blocks;
	uint32_t row; /* the output of lane 0 */
	uint32_t from, to; /* lanes from..to-1 are stored */
	const struct unpacker
		*unpacker; /* template_runs.h; NULL where the type has tile functions of its own */
};

typedef void tile_function(const struct tile *tile, const struct activation *x, float *const *y);

/* A run of rows through the tile functions for 1 to TILE_TOKENS tokens. */
static void blocks_rows(tile_function *const *functions, const struct tile *tile,
	const struct activation *x, uint32_t n, float *const *y)
{
	uint32_t t = 0;

	for (; t + TILE_TOKENS <= n; t += TILE_TOKENS)
		functions[TILE_TOKENS - 1](tile, x + t, y + t);
	if (t < n)
		functions[n - t - 1](tile, x + t, y + t);
}

static void blocks_matmul(tile_function *const *functions, const struct unpacker *unpacker,
	const struct matrix *w, uint32_t first, uint32_t last, const struct activation *x,
	uint32_t n, float *const *y)
{
	const uint8_t *data = w->data;
	struct tile tile = {.row_bytes = w->row_bytes,
		.blocks = w->cols / Q8_BLOCK,
		.to = TILE_ROWS,
		.unpacker = unpacker};
	uint32_t row = first;

	for (; row + TILE_ROWS <= last; row += TILE_ROWS) {
		tile.weights = data + row * w->row_bytes;
		tile.row = row;
		blocks_rows(functions, &tile, x, n, y);
	}
	if (row == last)
		return;
	if (w->rows >= TILE_ROWS) {
		/* A tile that covers what is left, and rows beside it that are computed and not stored. */
		tile.row = last >= TILE_ROWS ? last - TILE_ROWS : 0;
		tile.weights = data + tile.row * w->row_bytes;
		tile.from = row - tile.row;
		tile.to = last - tile.row;
		blocks_rows(functions, &tile, x, n, y);
		return;
	}
	/* The matrix has no full tile: every lane works on the same row. */
	tile.row_bytes = 0;
	tile.to = 1;
	for (; row < last; row++) {
		tile.weights = data + row * w->row_bytes;
		tile.row = row;
		blocks_rows(functions, &tile, x, n, y);
	}
}

static void blocks_matmul_all(tile_function *const *functions, const struct unpacker *unpacker,
	const struct matrix *w, uint32_t first, uint32_t last, const struct activation *x,
	uint32_t n, float *const *y)
{
	for (uint32_t t = 0; t < n; t += BLOCKS_TOKENS)
		blocks_matmul(functions, unpacker, w, first, last, x + t,
			n - t < BLOCKS_TOKENS ? n - t : BLOCKS_TOKENS, y + t);
}
