/*
 * Products of matrices in the file's layout, and, of the types in template_coded.h, in TILES too:
 * TILE_ROWS rows, one per lane, times up to TILE_TOKENS activation rows. Each lane is the chain of
 * its own row, so a tile may hold any rows. They are transposed and unpacked a group at a time
 * (template_unpack.h). The group lies in the first-level cache, and its product depends only on the
 * type's kind. So a type costs one unpacking function, and the sums of a tile stay in registers
 * over a group. Include after lanes_*.h.
 */
#pragma once

#include "kernels/cpu/template_coded.h"
#include "kernels/cpu/template_unpack.h"

#include <assert.h>

/* A tile: the weights of its first row, the distance between rows in bytes, and the lanes whose
 * results are wanted. In TILES, weights points to a tile of TILE_LANES rows, and this one begins at
 * `lane`. */
struct tile {
	const uint8_t *weights;
	size_t row_bytes;
	bool tiled;
	uint32_t lane;
	uint32_t blocks;
	uint32_t row; /* the output of lane 0 */
	uint32_t from, to; /* lanes from..to-1 are stored */
	const struct unpacker *unpacker;
};

typedef void tile_function(const struct tile *tile, const struct activation *x, float *const *y);

/* While a group of this tile is computed, the same number of bytes of the next group is prefetched
 * to the second-level cache. A tile has more rows than the processor recognises as streams. Q4_0 on
 * two threads of a Zen 5: 13 GB/s without, 32 with; Q8_0, with twice the bytes for the same
 * unpacking, 25 and 29. */
ALWAYS_INLINE void fetch_next(const struct tile *tile, uint32_t group, uint32_t group_bytes)
{
	const size_t bytes = (size_t)TILE_ROWS * group_bytes;
	const size_t rows = tile->tiled ? TILE_LANES : TILE_ROWS;
	const char *ahead = (const char *)tile->weights + rows * tile->row_bytes +
			    (group * rows + tile->lane) * group_bytes;

	for (size_t at = 0; at < bytes; at += 64)
		_mm_prefetch(ahead + at, _MM_HINT_T1);
}

/* One tile: kind and T are constants where this is inlined. */
ALWAYS_INLINE void runs_product(enum kind kind, const struct tile *tile, const struct activation *x,
	const uint32_t T, float *const *y)
{
	const struct unpacker *unpacker = tile->unpacker;
	const size_t step = (size_t)unpacker->group_bytes * (tile->tiled ? TILE_LANES : 1);
	const uint8_t *p = tile->weights;
	struct group group;
	flanes acc[TILE_TOKENS], total[TILE_TOKENS];

	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		acc[t] = f_zero();
	for (uint32_t b = 0; b < tile->blocks; b += GROUP_RUNS, p += step) {
		uint32_t n = tile->blocks - b < GROUP_RUNS ? tile->blocks - b : GROUP_RUNS;

		if (b % SEGMENT_RUNS == 0 && b > 0)
			end_segment(b == SEGMENT_RUNS, T, acc, total);
		fetch_next(tile, b / GROUP_RUNS, unpacker->group_bytes);
		if (tile->tiled)
			unpacker->tiles(p, tile->lane, n, &group);
		else
			unpacker->unpack(p, tile->row_bytes, n, &group);
		for (uint32_t r = 0; r < n; r++)
			UNROLL_TOKENS
		for (uint32_t t = 0; t < T; t++)
			acc[t] = add_run(
				kind, unpacker->offset, &group.run[r], x[t].q8 + b + r, acc[t]);
	}
	if (tile->blocks > SEGMENT_RUNS)
		end_segments(T, acc, total);
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		f_store_some(y[t] + tile->row, acc[t], tile->from, tile->to);
}

/* A function for each kind and number of tokens, so that the sums stay in registers. */
#define RUNS(kind, tokens)                                                            \
	static void runs_##kind##_##tokens(                                           \
		const struct tile *tile, const struct activation *x, float *const *y) \
	{                                                                             \
		runs_product(KIND_##kind, tile, x, tokens, y);                        \
	}
#define RUNS_8(kind)  \
	RUNS(kind, 1) \
	RUNS(kind, 2) \
	RUNS(kind, 3) \
	RUNS(kind, 4) \
	RUNS(kind, 5) \
	RUNS(kind, 6) \
	RUNS(kind, 7) \
	RUNS(kind, 8)
#define NAMES_8(kind)                                                                        \
	runs_##kind##_1, runs_##kind##_2, runs_##kind##_3, runs_##kind##_4, runs_##kind##_5, \
		runs_##kind##_6, runs_##kind##_7, runs_##kind##_8
#if TILE_TOKENS == 16
#define RUNS_ALL(kind)                                                                           \
	RUNS_8(kind)                                                                             \
	RUNS(kind, 9)                                                                            \
	RUNS(kind, 10)                                                                           \
	RUNS(kind, 11)                                                                           \
	RUNS(kind, 12)                                                                           \
	RUNS(kind, 13)                                                                           \
	RUNS(kind, 14)                                                                           \
	RUNS(kind, 15)                                                                           \
	RUNS(kind, 16)                                                                           \
	static tile_function *const tiles_##kind[TILE_TOKENS] = {NAMES_8(kind), runs_##kind##_9, \
		runs_##kind##_10, runs_##kind##_11, runs_##kind##_12, runs_##kind##_13,          \
		runs_##kind##_14, runs_##kind##_15, runs_##kind##_16}
#else
#define RUNS_ALL(kind) \
	RUNS_8(kind)   \
	static tile_function *const tiles_##kind[TILE_TOKENS] = {NAMES_8(kind)}
#endif

RUNS_ALL(OFFSET);
RUNS_ALL(SIGNED);
RUNS_ALL(MIN);
RUNS_ALL(FACTORS_32);
RUNS_ALL(FACTORS_4);
RUNS_ALL(FACTORS_MIN);
RUNS_ALL(FACTORS_SIGNED);
RUNS_ALL(HALVES);

static const struct {
	enum tensor_type type;
	tile_function *const *tiles;
	struct unpacker unpacker;
} run_types[] = {
	{TENSOR_Q8_0, tiles_SIGNED, {unpack_q8_0, NULL, 8 * 34, 0}},
	{TENSOR_Q4_0, tiles_OFFSET, {unpack_q4_0, NULL, 8 * 18, 8}},
	{TENSOR_Q4_1, tiles_MIN, {unpack_q4_1, NULL, 8 * 20, 0}},
	{TENSOR_Q5_0, tiles_OFFSET, {unpack_q5_0, NULL, 8 * 22, 16}},
	{TENSOR_Q5_1, tiles_MIN, {unpack_q5_1, NULL, 8 * 24, 0}},
	{TENSOR_MXFP4, tiles_OFFSET, {unpack_mxfp4, NULL, 8 * 17, MXFP4_OFFSET}},
	{TENSOR_IQ4_NL, tiles_SIGNED, {unpack_iq4_nl, NULL, 8 * 18, 0}},
	{TENSOR_IQ4_XS, tiles_SIGNED, {unpack_iq4_xs, NULL, 136, 0}},
	{TENSOR_Q2_K, tiles_FACTORS_MIN, {unpack_q2_k, NULL, 84, 0}},
	{TENSOR_Q3_K, tiles_FACTORS_4, {unpack_q3_k, NULL, 110, 0}},
	{TENSOR_Q4_K, tiles_MIN, {unpack_q4_k, NULL, 144, 0}},
	{TENSOR_Q5_K, tiles_MIN, {unpack_q5_k, NULL, 176, 0}},
	{TENSOR_Q6_K, tiles_FACTORS_32, {unpack_q6_k, NULL, 210, 0}},
	{TENSOR_NVFP4, tiles_HALVES, {unpack_nvfp4, unpack_tiles_nvfp4, 4 * 36, 0}},
	{TENSOR_IQ1_S, tiles_SIGNED, {unpack_iq1_s, unpack_tiles_iq1_s, 50, 0}},
	{TENSOR_IQ1_M, tiles_FACTORS_SIGNED, {unpack_iq1_m, unpack_tiles_iq1_m, 56, 0}},
	{TENSOR_IQ2_XXS, tiles_SIGNED, {unpack_iq2_xxs, unpack_tiles_iq2_xxs, 66, 0}},
	{TENSOR_IQ2_XS, tiles_FACTORS_SIGNED, {unpack_iq2_xs, unpack_tiles_iq2_xs, 74, 0}},
	{TENSOR_IQ2_S, tiles_FACTORS_SIGNED, {unpack_iq2_s, unpack_tiles_iq2_s, 82, 0}},
	{TENSOR_IQ3_XXS, tiles_SIGNED, {unpack_iq3_xxs, unpack_tiles_iq3_xxs, 98, 0}},
	{TENSOR_IQ3_S, tiles_SIGNED, {unpack_iq3_s, unpack_tiles_iq3_s, 110, 0}},
	{TENSOR_TQ1_0, tiles_OFFSET, {unpack_tq1_0, unpack_tiles_tq1_0, 54, 1}},
	{TENSOR_TQ2_0, tiles_OFFSET, {unpack_tq2_0, unpack_tiles_tq2_0, 66, 1}},
};

/* Runs rows through the tile functions for 1 to TILE_TOKENS tokens, or through `few`. */
static void rows_tokens(tile_function *const *functions, tile_function *few,
	const struct tile *tile, const struct activation *x, uint32_t n, float *const *y)
{
	uint32_t t = 0;

	if (few) {
		few(tile, x, y);
		return;
	}
	for (; t + TILE_TOKENS <= n; t += TILE_TOKENS)
		functions[TILE_TOKENS - 1](tile, x + t, y + t);
	if (t < n)
		functions[n - t - 1](tile, x + t, y + t);
}

static void rows_matmul(tile_function *const *functions, tile_function *few,
	const struct unpacker *unpacker, const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
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
		rows_tokens(functions, few, &tile, x, n, y);
	}
	if (row == last)
		return;
	if (w->rows >= TILE_ROWS) {
		/* A tile that covers the remaining rows; the other rows in it are computed and not
		 * stored. */
		tile.row = last >= TILE_ROWS ? last - TILE_ROWS : 0;
		tile.weights = data + tile.row * w->row_bytes;
		tile.from = row - tile.row;
		tile.to = last - tile.row;
		rows_tokens(functions, few, &tile, x, n, y);
		return;
	}
	/* The matrix has no full tile: every lane computes the same row. */
	tile.row_bytes = 0;
	tile.to = 1;
	for (; row < last; row++) {
		tile.weights = data + row * w->row_bytes;
		tile.row = row;
		rows_tokens(functions, few, &tile, x, n, y);
	}
}

/* Rows first..last-1, which lie in full tiles of TILES. */
static void rows_matmul_tiled(tile_function *const *functions, const struct unpacker *unpacker,
	const struct matrix *w, uint32_t first, uint32_t last, const struct activation *x,
	uint32_t n, float *const *y)
{
	const uint8_t *data = w->data;
	struct tile tile = {.row_bytes = w->row_bytes,
		.tiled = true,
		.blocks = w->cols / Q8_BLOCK,
		.unpacker = unpacker};

	for (uint32_t row = first; row < last; row = tile.row + TILE_ROWS) {
		tile.row = row / TILE_ROWS * TILE_ROWS;
		tile.lane = tile.row % TILE_LANES;
		tile.weights = data + (tile.row - tile.lane) * w->row_bytes;
		tile.from = row - tile.row;
		tile.to = last - tile.row < TILE_ROWS ? last - tile.row : TILE_ROWS;
		rows_tokens(functions, NULL, &tile, x, n, y);
	}
}

/* few: the tile function for this type, these columns and n tokens, if there is a special one;
 * otherwise NULL. */
static void runs_matmul(tile_function *few, const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	size_t i = 0;

	while (run_types[i].type != w->type) {
		i++;
		assert(i < sizeof(run_types) / sizeof(run_types[0]));
	}
	for (uint32_t t = 0; t < n; t += PRODUCT_TOKENS) {
		uint32_t some = n - t < PRODUCT_TOKENS ? n - t : PRODUCT_TOKENS;

		if (w->layout == LAYOUT_TILES)
			rows_matmul_tiled(run_types[i].tiles, &run_types[i].unpacker, w, first,
				last, x + t, some, y + t);
		else
			rows_matmul(run_types[i].tiles, few, &run_types[i].unpacker, w, first, last,
				x + t, some, y + t);
	}
}
