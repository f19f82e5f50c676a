/*
 * Products of the types that are unpacked a group at a time (template_unpack.h): the group lies in the first-level
 * cache, and its product with up to TILE_TOKENS activation rows depends only on the kind of type. So a type costs one
 * unpacking function, and the sums of a tile stay in registers over a group. Included after lanes_*.h.
 */
#pragma once

#include "kernels/cpu/template_blocks.h"
#include "kernels/cpu/template_unpack.h"

/* acc and run r's terms; kind is a constant where this is inlined. */
ALWAYS_INLINE flanes add_run(enum kind kind, const struct group *group, uint32_t r, ilanes offset,
	const struct q8_block *x, flanes acc)
{
	const ilanes *w = group->w[r];
	ilanes sums = i_set1(load_i32(x->sums)), dot;

	if (kind == KIND_FACTORS || kind == KIND_FACTORS_MIN)
		dot = dot_factors(w, x->q, group->c[r][0], group->c[r][1]);
	else
		dot = kind == KIND_SIGNED ? dot_signed(w, x->q) : dot_32(w, x->q);
	if (kind == KIND_OFFSET || (kind == KIND_SIGNED && IQ4_BIAS != 0))
		dot = i_sub(dot, i_madd(offset, sums));
	if (kind == KIND_FACTORS)
		dot = i_sub(dot, i_madd(group->pair[r], sums));
	acc = f_fma(f_mul(group->d[r], f_set1(x->d)), f_of_i(dot), acc);
	if (kind == KIND_MIN)
		acc = f_fma(group->m[r], f_set1(x->d_sum), acc);
	if (kind == KIND_FACTORS_MIN)
		acc = f_fma(group->m[r], f_mul(f_set1(x->d), f_of_i(i_madd(group->pair[r], sums))),
			acc);
	return acc;
}

/* One tile: kind and T are constants where this is inlined. */
ALWAYS_INLINE void runs_product(enum kind kind, const struct tile *tile, const struct activation *x,
	const uint32_t T, float *const *y)
{
	const struct unpacker *unpacker = tile->unpacker;
	const ilanes offset = i_set1(unpacker->offset * 0x10001);
	const uint8_t *p = tile->weights;
	struct group group;
	flanes acc[TILE_TOKENS];

	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		acc[t] = f_zero();
	for (uint32_t b = 0; b < tile->blocks; b += GROUP_RUNS, p += unpacker->group_bytes) {
		uint32_t n = tile->blocks - b < GROUP_RUNS ? tile->blocks - b : GROUP_RUNS;

		unpacker->unpack(p, tile->row_bytes, n, &group);
		for (uint32_t r = 0; r < n; r++)
			UNROLL_TOKENS
		for (uint32_t t = 0; t < T; t++)
			acc[t] = add_run(kind, &group, r, offset, x[t].q8 + b + r, acc[t]);
	}
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		f_store_some(y[t] + tile->row, acc[t], tile->from, tile->to);
}

/* A function for each kind and count of tokens, so that the sums stay in registers. */
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
RUNS_ALL(FACTORS);
RUNS_ALL(FACTORS_MIN);

static const struct {
	enum tensor_type type;
	tile_function *const *tiles;
	struct unpacker unpacker;
} run_types[] = {
	{TENSOR_Q5_0, tiles_OFFSET, {unpack_q5_0, 8 * 22, 16}},
	{TENSOR_Q5_1, tiles_MIN, {unpack_q5_1, 8 * 24, 0}},
	{TENSOR_MXFP4, tiles_OFFSET, {unpack_mxfp4, 8 * 17, MXFP4_OFFSET}},
	{TENSOR_IQ4_NL, tiles_SIGNED, {unpack_iq4_nl, 8 * 18, IQ4_BIAS}},
	{TENSOR_IQ4_XS, tiles_SIGNED, {unpack_iq4_xs, 136, IQ4_BIAS}},
	{TENSOR_Q2_K, tiles_FACTORS_MIN, {unpack_q2_k, 84, 0}},
	{TENSOR_Q3_K, tiles_FACTORS, {unpack_q3_k, 110, 0}},
	{TENSOR_Q4_K, tiles_MIN, {unpack_q4_k, 144, 0}},
	{TENSOR_Q5_K, tiles_MIN, {unpack_q5_k, 176, 0}},
	{TENSOR_Q6_K, tiles_FACTORS, {unpack_q6_k, 210, 0}},
};

static void runs_matmul(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	size_t i = 0;

	while (run_types[i].type != w->type) {
		i++;
		assert(i < sizeof(run_types) / sizeof(run_types[0]));
	}
	blocks_matmul_all(run_types[i].tiles, &run_types[i].unpacker, w, first, last, x, n, y);
}
