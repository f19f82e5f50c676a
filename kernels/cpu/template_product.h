/*
 * A run of 32 weights of a row per lane, and what a run adds to a product (BLOCKS of kernels.h): the same for both layouts,
 * once their types' unpacking has filled the lanes in. Included after lanes_*.h.
 */
#pragma once

#include "kernels/kernels.h"

/* Activation rows that stay in the caches while the weight rows go by. */
#define PRODUCT_TOKENS 64

/* So that the sums of a tile lie in registers; with a check at every access compiling that takes minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL_TOKENS
#elif TILE_TOKENS == 16
#define UNROLL_TOKENS _Pragma("GCC unroll 16")
#else
#define UNROLL_TOKENS _Pragma("GCC unroll 8")
#endif

/* How a type is multiplied. */
enum kind {
	KIND_OFFSET, /* w = q + TILES_OFFSET(offset), q + offset is 0..31 */
	KIND_SIGNED, /* w = q + IQ4_BIAS */
	KIND_MIN, /* w = q, 0..31; m */
	KIND_FACTORS, /* w = q + offset, 0..63; c, and the offset in pair */
	KIND_FACTORS_MIN, /* w = q, 0..63; c, m, e in pair */
};

/* By the names of BLOCKS in kernels.h. */
struct lanes_run {
	ilanes w[8]; /* dword k: weights 4k..4k+3, bytes */
	ilanes c[2]; /* factor_lanes() of c_0, c_1 */
	ilanes pair; /* two 16-bit halves: e_0 and e_1, or -c_0 and -c_1 times the weights' offset */
	flanes d, m;
};

/* A group: up to eight runs. Types set what their kind of product reads. */
#define GROUP_RUNS 8
struct group {
	struct lanes_run run[GROUP_RUNS];
};

/* acc and the run's terms; kind and offset are constants where this is inlined. */
ALWAYS_INLINE flanes add_run(enum kind kind, int16_t offset, const struct lanes_run *run,
	const struct q8_block *x, flanes acc)
{
	ilanes sums = i_set1(load_i32(x->sums)), dot;

	if (kind == KIND_OFFSET)
		dot = dot_less(run->w, x, offset);
	else if (kind == KIND_SIGNED)
		dot = dot_signed_less(run->w, x);
	else if (kind == KIND_MIN)
		dot = dot_32(run->w, x->q);
	else
		dot = dot_factors(run->w, x->q, run->c[0], run->c[1]);
	if (kind == KIND_FACTORS)
		dot = i_add_madd(dot, run->pair, sums);
	acc = f_fma(f_mul(run->d, f_set1(x->d)), f_of_i(dot), acc);
	if (kind == KIND_MIN)
		acc = f_fma(run->m, f_set1(x->d_sum), acc);
	if (kind == KIND_FACTORS_MIN)
		acc = f_fma(run->m, f_mul(f_set1(x->d), f_of_i(i_madd(run->pair, sums))), acc);
	return acc;
}
