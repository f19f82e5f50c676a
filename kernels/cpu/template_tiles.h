/*
 * Products of matrices in TILES (kernels/tiles.h): a row of weights per lane, as in
 * template_runs.h, but nothing is transposed. A run is loaded, and its bits are put in place in
 * registers. Written once for AVX2, which takes half a tile at a time, and AVX-512. Include after
 * lanes_*.h.
 */
#pragma once

#include "kernels/cpu/template_scales.h"
#include "kernels/tiles.h"

/* How far ahead weights are prefetched. With many tokens there is computing to do meanwhile. Lines
 * that wait for memory would then be in the way of the activations' lines, so weights come to the
 * second level. With few tokens, memory is the limit, and weights come to the first-level cache,
 * which holds no more than TILES_AHEAD_FEW. They come straight to it where they are used in the
 * order in which they lie and need no other change. Otherwise they come to the second level
 * first, and from there when they are near, since the first level waits for few lines of memory at
 * once. Zen 4, one thread, memory of 28 GB/s: Q6_K from 17.7 to 26.2 GB/s with one token and from
 * 18.9 to 27.6 with two, Q5_K from 23.3 to 28.9, Q4_K from 22.7 to 29.1 with two; but Q4_0 with one
 * token from 31.3 to 24.1. */
#define TILES_AHEAD_FEW 4096
#define TILES_AHEAD_MANY 8192
#define TILES_AHEAD_NEAR 2048
#define TILES_FEW 2 /* tokens */

/* What the runs of a block of 256 share: d and m of each run, or, with factors, d and m of the
 * first one for all. */
struct tile_shared {
	struct group group;
	ilanes scales[4]; /* as factors_*() prepare them */
};

/* A group: where it lies, how many blocks it has, and what its runs share. */
struct tile_group {
	const uint8_t *p; /* the planes, from the first lane of this half on */
	uint32_t n; /* blocks */
	struct tile_shared *shared;
};

/* Address of unit u of a plane that begins `before` bytes of a block into the group. Units have 1,
 * 2 or 4 bytes. A plane has TILE_LANES rows; these are the TILE_ROWS from the group's lane on. */
ALWAYS_INLINE const uint8_t *plane(
	const struct tile_group *g, uint32_t before, uint32_t unit, uint32_t u, uint32_t lane)
{
	return g->p + ((size_t)before * g->n + (size_t)u * unit) * TILE_LANES + (size_t)lane * unit;
}

ALWAYS_INLINE flanes plane_half(
	const struct tile_group *g, uint32_t before, uint32_t u, uint32_t lane)
{
	return lanes_half(plane(g, before, 2, u, lane));
}

ALWAYS_INLINE ilanes plane_32(
	const struct tile_group *g, uint32_t before, uint32_t u, uint32_t lane)
{
	return lanes_32(plane(g, before, 4, u, lane));
}

/* Loads n dwords from unit u of the plane on. */
ALWAYS_INLINE void planes_32(const struct tile_group *g, uint32_t before, uint32_t u, uint32_t n,
	uint32_t lane, ilanes *out)
{
	const uint8_t *p = plane(g, before, 4, u, lane);

#pragma GCC unroll 8
	for (uint32_t k = 0; k < n; k++)
		out[k] = lanes_32(p + (size_t)k * 4 * TILE_LANES);
}

/* Loads four dwords of nibbles: low nibbles are weights 0..15, high ones 16..31. */
ALWAYS_INLINE void run_nibbles(
	const struct tile_group *g, uint32_t before, uint32_t r, uint32_t lane, ilanes w[8])
{
	ilanes both[4];

	planes_32(g, before, 4 * r, 4, lane, both);
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		w[k] = low_nibbles(both[k]);
		w[4 + k] = high_nibbles(both[k]);
	}
}

/* Loads the low or the high nibbles of eight dwords. */
ALWAYS_INLINE void eight_nibbles(const struct tile_group *g, uint32_t before, uint32_t eight,
	bool high, uint32_t lane, ilanes w[8])
{
	planes_32(g, before, 8 * eight, 8, lane, w);
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++)
		w[k] = low_nibbles(i_right(w[k], high ? 4 : 0));
}

/* Adds further bits of the weights: takes bits `from` and on of the bytes of eight dwords as bits
 * `to` and on. mask applies at the new place. */
ALWAYS_INLINE void add_bits(const struct tile_group *g, uint32_t before, uint32_t eight,
	uint32_t from, uint32_t to, int mask, uint32_t lane, ilanes w[8])
{
	ilanes bits[8];

	planes_32(g, before, 8 * eight, 8, lane, bits);
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++)
		w[k] = i_or(w[k], i_and(bits_moved(bits[k], from, to), i_set1_8(mask)));
}

static void shared_none(const struct tile_group *g, uint32_t lane)
{
	(void)g;
	(void)lane;
}

ALWAYS_INLINE void run_q8_0(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = plane_half(g, 0, r, lane);
	planes_32(g, 2, 8 * r, 8, lane, out->w);
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++)
		out->w[k] = i_xor(out->w[k], i_set1_8(IQ4_BIAS));
}

ALWAYS_INLINE void run_q4_0(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = plane_half(g, 0, r, lane);
	run_nibbles(g, 2, r, lane, out->w);
	raise_all(8, out->w);
}

ALWAYS_INLINE void run_q4_1(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = plane_half(g, 0, r, lane);
	out->m = plane_half(g, 2, r, lane);
	run_nibbles(g, 4, r, lane, out->w);
}

ALWAYS_INLINE void run_q5_0(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = plane_half(g, 0, r, lane);
	run_nibbles(g, 6, r, lane, out->w);
	add_one_bits(plane_32(g, 2, r, lane), 16, out->w);
	raise_all(16, out->w);
}

ALWAYS_INLINE void run_q5_1(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = plane_half(g, 0, r, lane);
	out->m = plane_half(g, 2, r, lane);
	run_nibbles(g, 8, r, lane, out->w);
	add_one_bits(plane_32(g, 4, r, lane), 16, out->w);
}

ALWAYS_INLINE void run_mxfp4(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = mxfp4_scales(lanes_8(plane(g, 0, 1, r, lane)));
	run_nibbles(g, 1, r, lane, out->w);
	look_up_all(mxfp4_raised, out->w);
}

ALWAYS_INLINE void run_iq4_nl(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = plane_half(g, 0, r, lane);
	run_nibbles(g, 2, r, lane, out->w);
	look_up_all(iq4_biased, out->w);
}

static void shared_iq4_xs(const struct tile_group *g, uint32_t lane)
{
	scales_iq4_xs(plane_half(g, 0, 0, lane), lanes_16(plane(g, 2, 2, 0, lane)),
		plane_32(g, 4, 0, lane), &g->shared->group);
}

ALWAYS_INLINE void run_iq4_xs(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = g->shared->group.run[r].d;
	run_nibbles(g, 8, r, lane, out->w);
	look_up_all(iq4_biased, out->w);
}

/* Q4_K and Q5_K begin in the same way. */
static void shared_q4_k(const struct tile_group *g, uint32_t lane)
{
	ilanes head[4];

	planes_32(g, 0, 0, 4, lane, head);
	scales_k(head, &g->shared->group);
}

ALWAYS_INLINE void take_scales(const struct tile_group *g, uint32_t r, struct lanes_run *out)
{
	out->d = g->shared->group.run[r].d;
	out->m = g->shared->group.run[r].m;
}

ALWAYS_INLINE void run_q4_k(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	take_scales(g, r, out);
	eight_nibbles(g, 16, r / 2, r % 2, lane, out->w);
}

ALWAYS_INLINE void run_q5_k(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	take_scales(g, r, out);
	eight_nibbles(g, 48, r / 2, r % 2, lane, out->w);
	add_bits(g, 16, 0, r, 4, 0x10, lane, out->w);
}

static void shared_q6_k(const struct tile_group *g, uint32_t lane)
{
	planes_32(g, 192, 0, 4, lane, g->shared->scales);
	g->shared->group.run[0].d = plane_half(g, 208, 0, lane);
}

ALWAYS_INLINE void run_q6_k(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	uint32_t half = r / 4, part = r % 4;

	out->d = g->shared->group.run[0].d;
	factors_q6_k(g->shared->scales, r, out);
	eight_nibbles(g, 0, 2 * half + part % 2, part / 2, lane, out->w);
	add_bits(g, 128, half, 2 * part, 4, 0x30, lane, out->w);
}

static void shared_q2_k(const struct tile_group *g, uint32_t lane)
{
	planes_32(g, 0, 0, 4, lane, g->shared->scales);
	g->shared->group.run[0].d = plane_half(g, 80, 0, lane);
	g->shared->group.run[0].m = f_negate(plane_half(g, 82, 0, lane));
}

/* Loads two bits of every byte of eight dwords. */
ALWAYS_INLINE void run_twos(
	const struct tile_group *g, uint32_t before, uint32_t r, uint32_t lane, ilanes w[8])
{
	planes_32(g, before, r / 4 * 8, 8, lane, w);
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++)
		w[k] = i_and(i_right(w[k], r % 4 * 2), i_set1_8(3));
}

ALWAYS_INLINE void run_q2_k(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	take_scales(g, 0, out);
	factors_q2_k(g->shared->scales, r, out);
	run_twos(g, 16, r, lane, out->w);
}

static void shared_q3_k(const struct tile_group *g, uint32_t lane)
{
	ilanes packed[3];

	planes_32(g, 96, 0, 3, lane, packed);
	scales_q3_k(packed, g->shared->scales);
	g->shared->group.run[0].d = plane_half(g, 108, 0, lane);
}

ALWAYS_INLINE void run_q3_k(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out)
{
	out->d = g->shared->group.run[0].d;
	factors_q3_k(g->shared->scales, r, out);
	run_twos(g, 32, r, lane, out->w);
	add_bits(g, 0, 0, r, 2, 4, lane, out->w);
}

/* The work of a tile function: rows first..last-1 of a matrix, which lie in its full tiles. */
struct tile_work {
	const uint8_t *tiles;
	size_t row_bytes;
	uint32_t blocks; /* blocks in a row */
	uint32_t first, last;
};

typedef void tiles_function(
	const struct tile_work *work, const struct activation *x, float *const *y);

/* Prefetches the lines of `bytes` bytes that lie `distance` ahead of p. `to` is a constant where
 * this is inlined. */
#define FETCH(p, bytes, distance, to)                 \
	for (uint32_t at = 0; at < (bytes); at += 64) \
	_mm_prefetch((const char *)(p) + (distance) + at, to)

/* A type for tile_product: how it is multiplied and unpacked (template_product.h), and whether it
 * reads a block's planes in another order than they lie. All fields are constants where this is
 * inlined. */
struct tile_type {
	enum kind kind;
	uint32_t block_weights, block_bytes;
	int16_t offset;
	bool jumps;
	void (*shared)(const struct tile_group *, uint32_t);
	void (*run)(const struct tile_group *, uint32_t, uint32_t, struct lanes_run *);
};

ALWAYS_INLINE void fetch(
	const struct tile_type *type, const uint8_t *p, uint32_t bytes, const uint32_t T)
{
	const bool direct = !type->jumps && T * type->block_weights < 2 * type->block_bytes;

	if (T <= TILES_FEW && direct)
		FETCH(p, bytes, TILES_AHEAD_FEW, _MM_HINT_T0);
	else
		FETCH(p, bytes, TILES_AHEAD_MANY, _MM_HINT_T1);
	if (T <= TILES_FEW && !direct)
		FETCH(p, bytes, TILES_AHEAD_NEAR, _MM_HINT_T0);
}

/* Adds one run of every row of the group to the products, and prefetches `bytes` bytes ahead. */
ALWAYS_INLINE void tile_run(const struct tile_type *type, const struct tile_group *group,
	uint32_t r, uint32_t bytes, uint32_t lane, const struct activation *x, size_t at,
	const uint32_t T, flanes acc[TILE_TOKENS])
{
	struct lanes_run one;

	if (lane == 0)
		fetch(type, group->p + (size_t)r * bytes, bytes, T);
	type->run(group, r, lane, &one);
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		acc[t] = add_run(type->kind, type->offset, &one, x[t].q8 + at + r, acc[t]);
}

/* Adds all runs of a group of every row to the products. */
ALWAYS_INLINE void tile_group_runs(const struct tile_type *type, const struct tile_group *group,
	uint32_t bytes, uint32_t lane, const struct activation *x, size_t at, const uint32_t T,
	flanes acc[TILE_TOKENS])
{
	const uint32_t runs = group->n * (type->block_weights / Q8_BLOCK);

	type->shared(group, lane);
	/* The runs of a block of 256 share bytes. Unrolled, the position of each run's bits is a
	 * constant (Zen 4, in cache, 1, 4 and 16 tokens: Q6_K 1.25, 1.16 and 1.05 times as fast,
	 * Q4_K 1.05, 1.16 and 1.04). */
	if (type->block_weights == TILES_GROUP_WEIGHTS && T <= TILES_UNROLLED) {
		UNROLL_RUNS
		for (uint32_t r = 0; r < GROUP_RUNS; r++) {
			/* A barrier for the compiler. Without it, prefetches of one run move behind
			 * loads of the next, which then wait for memory: Q6_K falls with one token
			 * from 10.9 to 9.4 GB/s, with four from 23.2 to 11.4. */
			__asm__ volatile("" ::: "memory");
			tile_run(type, group, r, bytes, lane, x, at, T, acc);
		}
		return;
	}
	for (uint32_t r = 0; r < runs; r++)
		tile_run(type, group, r, bytes, lane, x, at, T, acc);
}

/* Half a tile or a whole one, from `row` on. All arguments except work, row, x and y are constants
 * where this is inlined. */
ALWAYS_INLINE void tile_product(const struct tile_type *type, const struct tile_work *work,
	uint32_t row, const struct activation *x, const uint32_t T, float *const *y)
{
	const uint32_t per_group = TILES_GROUP_WEIGHTS / type->block_weights;
	const uint32_t per_segment = PRODUCT_SEGMENT / type->block_weights;
	const uint32_t run_bytes = per_group * type->block_bytes * 2;
	const uint32_t lane = row % TILE_LANES, blocks = work->blocks;
	const uint32_t from = work->first > row ? work->first - row : 0;
	const uint32_t to = work->last - row < TILE_ROWS ? work->last - row : TILE_ROWS;
	struct tile_shared common;
	struct tile_group group = {
		work->tiles + (size_t)(row - lane) * work->row_bytes, per_group, &common};
	flanes acc[TILE_TOKENS], total[TILE_TOKENS];

	/* The rows of y lie far apart and mostly not in a cache, and stores wait for their lines
	 * one after the other. With this prefetch the down products of Q8_0 experts with 32 tokens
	 * each go from 52 to 58 % of the int8 peak of a Zen 5, and prefill is 5 % faster. */
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++) {
		_mm_prefetch((const char *)(y[t] + row), _MM_HINT_T0);
		acc[t] = f_zero();
	}
	for (uint32_t b = 0; b < blocks; b += per_group) {
		if (b % per_segment == 0 && b > 0)
			end_segment(b == per_segment, T, acc, total);
		group.n = blocks - b < per_group ? blocks - b : per_group;
		tile_group_runs(type, &group, run_bytes, lane, x,
			(size_t)b * (type->block_weights / Q8_BLOCK), T, acc);
		group.p += (size_t)group.n * type->block_bytes * TILE_LANES;
	}
	if (blocks > per_segment)
		end_segments(T, acc, total);
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		f_store_some(y[t] + row, acc[t], from, to);
}

/* The types, and what their tile functions are made of. */
#define TILES_TYPES(X)                                                        \
	X(Q8_0, SIGNED, 32, 34, 0, false, shared_none, run_q8_0)              \
	X(Q4_0, OFFSET, 32, 18, 8, false, shared_none, run_q4_0)              \
	X(Q4_1, MIN, 32, 20, 0, false, shared_none, run_q4_1)                 \
	X(Q5_0, OFFSET, 32, 22, 16, false, shared_none, run_q5_0)             \
	X(Q5_1, MIN, 32, 24, 0, false, shared_none, run_q5_1)                 \
	X(IQ4_NL, SIGNED, 32, 18, 0, false, shared_none, run_iq4_nl)          \
	X(MXFP4, OFFSET, 32, 17, MXFP4_OFFSET, false, shared_none, run_mxfp4) \
	X(Q2_K, FACTORS_MIN, 256, 84, 0, true, shared_q2_k, run_q2_k)         \
	X(Q3_K, FACTORS_4, 256, 110, 0, true, shared_q3_k, run_q3_k)          \
	X(Q4_K, MIN, 256, 144, 0, true, shared_q4_k, run_q4_k)                \
	X(Q5_K, MIN, 256, 176, 0, true, shared_q4_k, run_q5_k)                \
	X(Q6_K, FACTORS_32, 256, 210, 0, true, shared_q6_k, run_q6_k)         \
	X(IQ4_XS, SIGNED, 256, 136, 0, false, shared_iq4_xs, run_iq4_xs)

/* A function for each type and some numbers of tokens, so that the sums stay in registers. */
#define TILES_FUNCTION(type, kind, weights, bytes, offset, jumps, shared, run, tokens)     \
	static void tiles_##type##_##tokens(                                               \
		const struct tile_work *work, const struct activation *x, float *const *y) \
	{                                                                                  \
		static const struct tile_type of = {                                       \
			KIND_##kind, weights, bytes, offset, jumps, shared, run};          \
                                                                                           \
		for (uint32_t row = work->first / TILE_ROWS * TILE_ROWS; row < work->last; \
			row += TILE_ROWS)                                                  \
			tile_product(&of, work, row, x, tokens, y);                        \
	}
#if TILE_ROWS == 16
#define TILES_MOST 16
#define TILES_FUNCTION_MOST(...) TILES_FUNCTION(__VA_ARGS__, 16)
#define TILES_NAME_MOST(type) tiles_##type##_16
#else
#define TILES_MOST 8
#define TILES_FUNCTION_MOST(...)
#define TILES_NAME_MOST(type) tiles_##type##_8
#endif
#define TILES_FUNCTIONS(...)           \
	TILES_FUNCTION(__VA_ARGS__, 1) \
	TILES_FUNCTION(__VA_ARGS__, 2) \
	TILES_FUNCTION(__VA_ARGS__, 3) \
	TILES_FUNCTION(__VA_ARGS__, 4) \
	TILES_FUNCTION(__VA_ARGS__, 5) \
	TILES_FUNCTION(__VA_ARGS__, 6) \
	TILES_FUNCTION(__VA_ARGS__, 7) \
	TILES_FUNCTION(__VA_ARGS__, 8) \
	TILES_FUNCTION_MOST(__VA_ARGS__)
TILES_TYPES(TILES_FUNCTIONS)

#define TILES_ROW(type, ...)                                                                     \
	{TENSOR_##type, {tiles_##type##_1, tiles_##type##_2, tiles_##type##_3, tiles_##type##_4, \
				tiles_##type##_5, tiles_##type##_6, tiles_##type##_7,            \
				tiles_##type##_8, TILES_NAME_MOST(type)}},
static const struct {
	enum tensor_type type;
	tiles_function *functions[9]; /* for 1 to 8 tokens, and for TILES_MOST */
} tiles_types[] = {TILES_TYPES(TILES_ROW)};

/* Rows of tiles times n tokens. */
static void tile_tokens(tiles_function *const *functions, const struct tile_work *work,
	const struct activation *x, uint32_t n, float *const *y)
{
	uint32_t t = 0;

	for (; t + TILES_MOST <= n; t += TILES_MOST)
		functions[8](work, x + t, y + t);
	for (; t + 8 <= n; t += 8)
		functions[7](work, x + t, y + t);
	if (t < n)
		functions[n - t - 1](work, x + t, y + t);
}

/* The rows behind the last full tile, treated as a matrix of their own. */
static void tiles_tail(void (*rows_matmul)(const struct matrix *, uint32_t, uint32_t,
			       const struct activation *, uint32_t, float *const *),
	const struct matrix *w, uint32_t first, uint32_t last, const struct activation *x,
	uint32_t n, float *const *y)
{
	uint32_t tiled = w->rows / TILE_LANES * TILE_LANES;
	struct matrix tail = *w;
	float *out[PRODUCT_TOKENS];

	tail.layout = LAYOUT_ROWS;
	tail.rows -= tiled;
	tail.data = (const uint8_t *)w->data + tiled * w->row_bytes;
	for (uint32_t t = 0; t < n; t++)
		out[t] = y[t] + tiled;
	rows_matmul(&tail, first > tiled ? first - tiled : 0, last - tiled, x, n, out);
}

/* Rows first..end-1, which lie in full tiles. A tile is read once for all tokens: if several
 * functions are needed they take each tile in turn, and a single function takes all tiles. */
static void tiles_matmul_some(tiles_function *const *functions, const struct matrix *w,
	uint32_t first, uint32_t end, const struct activation *x, uint32_t n, float *const *y)
{
	struct tile_work work = {
		.tiles = w->data,
		.row_bytes = w->row_bytes,
		.blocks = w->cols / tensor_type_info((uint32_t)w->type)->block_weights,
	};
	const bool once = n == TILES_MOST || n <= 8;

	for (uint32_t row = first; row < end; row = work.last) {
		uint32_t next = row / TILE_LANES * TILE_LANES + TILE_LANES;

		work.first = row;
		work.last = once || next > end ? end : next;
		tile_tokens(functions, &work, x, n, y);
	}
}

/* rows_matmul: multiplies types that have no tile functions here, in tiles too. */
static void tiles_matmul(void (*rows_matmul)(const struct matrix *, uint32_t, uint32_t,
				 const struct activation *, uint32_t, float *const *),
	const struct matrix *w, uint32_t first, uint32_t last, const struct activation *x,
	uint32_t n, float *const *y)
{
	const size_t n_types = sizeof(tiles_types) / sizeof(tiles_types[0]);
	uint32_t tiled = w->rows / TILE_LANES * TILE_LANES, end = last < tiled ? last : tiled;
	size_t i = 0;

	while (i < n_types && tiles_types[i].type != w->type)
		i++;
	for (uint32_t t = 0; t < n; t += PRODUCT_TOKENS) {
		uint32_t some = n - t < PRODUCT_TOKENS ? n - t : PRODUCT_TOKENS;

		if (i < n_types)
			tiles_matmul_some(
				tiles_types[i].functions, w, first, end, x + t, some, y + t);
		else
			rows_matmul(w, first, end, x + t, some, y + t);
		if (last > tiled)
			tiles_tail(rows_matmul, w, first, last, x + t, some, y + t);
	}
}
