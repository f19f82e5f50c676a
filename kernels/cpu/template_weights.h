/*
 * Weights times values, for values in blocks of integers (numerics.md). template_attention.h
 * includes this.
 *
 * A weight takes over the scale of its cell's block and becomes an integer, so that the sum over a
 * chunk's cells is a sum of integers. One instruction takes two cells, twice as many as a
 * multiply-add of float32, and 16 bits need no widening. Values lie paired (kv_format.h): those of
 * two cells are adjacent, as the instruction takes them.
 */
#pragma once

#include "kernels/cpu/template_scores.h"

#include <float.h>

enum { CHUNK_PAIRS = ATTENTION_CHUNK / 2 };
/* Lower bound for the greatest weight of a chunk (g in numerics.md). */
#define WEIGHTS_LEAST 0x1p-100f

/* Collects the scales of a chunk's values, for the turns that hold some of positions first..last-1,
 * and each cell's greatest. An infinite or NaN scale is stored as 0, so that integers are made from
 * numbers, and as infinite among the greatest. */
ATTENTION_INLINE void take_scales(enum kv_type type, const struct attention_pass *pass,
	const struct chunk_turns *values, uint32_t first, uint32_t last)
{
	const uint32_t n_blocks = kv_blocks(pass->job->v_dim);
	const struct v16 zero = v16_set1(0), infinite = v16_set1(__builtin_inff());

	for (uint32_t i = first / KV_TURN * KV_TURN; i < last; i += KV_TURN) {
		struct v16 most = zero;

		for (uint32_t b = 0; b < n_blocks; b++) {
			struct v16 d = kv_scales_16(
				type, values->at[i / KV_TURN] + b * KV_TURN_SCALES_BYTES);
			/* NaN for an infinity too; v16_max(NaN, x) and v16_min(NaN, x) are x. */
			struct v16 number = v16_fma(d, zero, d);

			most = v16_max(most, v16_min(number, infinite));
			v16_store(pass->scales + (size_t)b * ATTENTION_CHUNK + i,
				v16_max(number, zero));
		}
		v16_store(pass->scales + (size_t)n_blocks * ATTENTION_CHUNK + i, most);
	}
}

/* The cells of a run, extended to whole turns of its chunk. */
struct run_turns {
	uint32_t first, end;
};

static inline struct run_turns turns_of(const struct attention_run *run)
{
	return (struct run_turns){run->first / KV_TURN * KV_TURN,
		(run->first + run->n + KV_TURN - 1) / KV_TURN * KV_TURN};
}

/* True when memory is to be read while integers are made. With 8 bits, using the values takes
 * longer than reading them. */
#define FETCH_WITH_INTEGERS(type) ((type) == KV_Q16_0)
/* Vectors of weights in these rows, each used twice; with each, one line is prefetched. */
#define INTEGER_STEPS (2 * WEIGH_ROWS * ATTENTION_CHUNK / 16)

/* Computes the integers of H rows from the run's row r on; unit[h] becomes the unit of row h's. */
ATTENTION_INLINE void integer_weights(enum kv_type type, const struct attention_pass *pass,
	const struct attention_run *run, uint32_t r, const uint32_t H, float *unit,
	struct kv_fetch *fetch)
{
	const uint32_t n_blocks = kv_blocks(pass->job->v_dim);
	const struct run_turns turns = turns_of(run);
	const float *most = pass->scales + (size_t)n_blocks * ATTENTION_CHUNK;
	const struct v16 zero = v16_set1(0), largest = v16_set1(FLT_MAX);
	float *rows = pass->scores + (size_t)(run->row + r) * SCORES_STRIDE, by[16];
	struct v16 each[WEIGH_ROWS], all[WEIGH_ROWS], one;
	struct fetch_lines lines = {0};

	if (FETCH_WITH_INTEGERS(type))
		lines = kv_fetch(fetch, rows, INTEGER_STEPS);
#pragma GCC unroll 8
	for (uint32_t h = 0; h < H; h++) {
		float *p = rows + h * SCORES_STRIDE;

		/* Where the run does not fill its turns, the neighbours' weights are 0. */
		for (uint32_t i = turns.first; i < run->first; i++)
			p[i] = 0;
		for (uint32_t i = run->first + run->n; i < turns.end; i++)
			p[i] = 0;
		each[h] = all[h] = zero;
		for (uint32_t i = turns.first; i < turns.end; i += 16) {
			/* An unattended cell's scale may be infinite: 0 times that is NaN, which
			 * v16_max turns into 0. */
			struct v16 w = v16_max(v16_mul(v16_load(p + i), v16_load(most + i)), zero);

			if (FETCH_WITH_INTEGERS(type))
				fetch_line(&lines);
			each[h] = v16_max(each[h], w);
			all[h] = v16_add(all[h], w);
		}
	}
	one = v16_mul(v16_max(fold_rows(each, H, false), v16_set1(WEIGHTS_LEAST)),
		v16_set1(1.0f / KV_WEIGHT_MOST));
	if (type == KV_Q16_0)
		one = v16_max(one,
			v16_mul(fold_rows(all, H, true), v16_set1(1.0f / KV_Q16_WEIGHTS_MOST)));
	v16_store(by, v16_div(v16_set1(1), one));
	v16_store(unit, one);
	for (uint32_t h = 0; h < H; h++) {
		const struct v16 factor = v16_set1(by[h]);
		int16_t *out = pass->integers + (size_t)h * ATTENTION_CHUNK;
		float *p = rows + h * SCORES_STRIDE;

		for (uint32_t i = turns.first; i < turns.end; i += 16) {
			/* A NaN becomes 0; the row's sum of weights is a NaN, too. Such a row may
			 * have weights above 1, because a NaN score can hide a greater score from
			 * the maximum. The bound keeps them numbers, and no integer becomes too
			 * large. */
			const struct v16 weight =
				v16_min(v16_max(v16_mul(v16_load(p + i), factor), zero), largest);

			if (FETCH_WITH_INTEGERS(type))
				fetch_line(&lines);
			for (uint32_t b = 0; b < n_blocks; b++)
				v16_store_i16(out + (size_t)b * WEIGH_ROWS * ATTENTION_CHUNK + i,
					v16_mul(weight, v16_load(pass->scales +
								 (size_t)b * ATTENTION_CHUNK + i)));
		}
	}
}

/* A vector of pairs: 16 values of two cells. */
ATTENTION_INLINE struct i16x32 load_pairs(enum kv_type type, const uint8_t *p)
{
	return type == KV_Q8_0 ? i16x32_load_i8(p) : i16x32_load(p);
}

static inline void join_values(
	float *out, uint32_t some, struct v16 factor, struct i16 dot, struct v16 unit)
{
	store_some(
		out, v16_fma(v16_of_i16(dot), unit, v16_mul(load_some(out, some), factor)), some);
}

/* out[r][e] = fma(sum of x[r][i] * value[i][e], unit[r], out[r][e] * factor[r]) for H rows and the
 * values of block b. x: the integers of the first row for that block. */
ATTENTION_INLINE void block_tile(enum kv_type type, const struct attention_pass *pass,
	const struct chunk_turns *values, const struct attention_run *run, uint32_t r,
	const uint32_t H, uint32_t b, const int16_t *x, const float *unit, struct kv_fetch *fetch)
{
	const uint32_t v_dim = pass->job->v_dim, n_blocks = kv_blocks(v_dim);
	const size_t at = n_blocks * KV_TURN_SCALES_BYTES + b * kv_turn_block_bytes(type);
	const struct run_turns turns = turns_of(run);
	struct fetch_lines lines = kv_fetch(fetch, x, CHUNK_PAIRS);
	const uint32_t left = v_dim - b * Q8_BLOCK;
	float *out = pass->job->part.out + (size_t)(run->row + r) * v_dim + (size_t)b * Q8_BLOCK;
	struct i16 dot[2 * WEIGH_ROWS];

#pragma GCC unroll 16
	for (uint32_t s = 0; s < 2 * H; s++)
		dot[s] = i16_zero();
	for (uint32_t i = turns.first; i < turns.end; i += KV_TURN) {
		const uint8_t *p = values->at[i / KV_TURN] + at;

#pragma GCC unroll 8
		for (uint32_t c = 0; c < KV_TURN; c += 2, p += 2 * kv_block_bytes(type)) {
			struct i16x32 low = load_pairs(type, p);
			struct i16x32 high = load_pairs(type, p + kv_block_bytes(type));

			fetch_line(&lines);
#pragma GCC unroll 8
			for (uint32_t h = 0; h < H; h++) {
				const int16_t *two = x + (size_t)h * ATTENTION_CHUNK + i + c;

				dot[2 * h] = i16_dot_pairs(dot[2 * h], low, two);
				dot[2 * h + 1] = i16_dot_pairs(dot[2 * h + 1], high, two);
			}
		}
	}
#pragma GCC unroll 8
	for (uint32_t h = 0; h < H; h++, out += v_dim) {
		const struct v16 factor = v16_set1(pass->factor[r + h]), one = v16_set1(unit[h]);

		join_values(out, left < 16 ? left : 16, factor, dot[2 * h], one);
		if (left > 16)
			join_values(
				out + 16, left < 32 ? left - 16 : 16, factor, dot[2 * h + 1], one);
	}
}

/* All values of H rows. */
ATTENTION_INLINE void block_rows(enum kv_type type, const struct attention_pass *pass,
	const struct chunk_turns *values, const struct attention_run *run, uint32_t r,
	const uint32_t H, struct kv_fetch *fetch)
{
	const uint32_t tile = H < V16_TILE / 2 ? H : V16_TILE / 2;
	const uint32_t n_blocks = kv_blocks(pass->job->v_dim);
	float unit[16];

	integer_weights(type, pass, run, r, H, unit, fetch);
	for (uint32_t b = 0; b < n_blocks; b++)
		for (uint32_t h = 0; h < H; h += tile)
			block_tile(type, pass, values, run, r + h, tile, b,
				pass->integers + ((size_t)b * WEIGH_ROWS + h) * ATTENTION_CHUNK,
				unit + h, fetch);
}

ATTENTION_INLINE void block_values_of(enum kv_type type, const struct attention_pass *pass,
	const struct chunk_turns *values, const struct attention_run *run, struct kv_fetch *fetch)
{
	const uint32_t most = V16_TILE / 2, tiles = (run->rows + most - 1) / most;
	const uint32_t groups = (run->rows + WEIGH_ROWS - 1) / WEIGH_ROWS;
	uint32_t r = 0, left = run->rows;

	kv_fetch_in(fetch,
		tiles * kv_blocks(pass->job->v_dim) + (FETCH_WITH_INTEGERS(type) ? groups : 0));
	for (; left >= WEIGH_ROWS; left -= WEIGH_ROWS, r += WEIGH_ROWS)
		block_rows(type, pass, values, run, r, WEIGH_ROWS, fetch);
	for (; left >= 4; left -= 4, r += 4)
		block_rows(type, pass, values, run, r, 4, fetch);
	for (; left >= 2; left -= 2, r += 2)
		block_rows(type, pass, values, run, r, 2, fetch);
	if (left)
		block_rows(type, pass, values, run, r, 1, fetch);
}
