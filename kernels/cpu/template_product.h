/*
 * A run of 32 weights of a row per lane, and what a run adds to a product (BLOCKS of numerics.md).
 * Both layouts share this, once the unpacking of a type has filled the lanes. Include after
 * lanes_*.h.
 */
#pragma once

#include "kernels/cpu/blocks.h"

/* Activation rows that stay in the caches while the weight rows pass. */
#define PRODUCT_TOKENS 64

/* Unrolled, so that the sums of a tile lie in registers. With a sanitizer's check at every access,
 * compiling that takes minutes, so mk/programs.mk defines KERNELS_ROLLED for those builds. */
#ifdef KERNELS_ROLLED
#define UNROLL_TOKENS
#define UNROLL_RUNS
#elif TILE_TOKENS == 16
#define UNROLL_TOKENS _Pragma("GCC unroll 16")
#define UNROLL_RUNS _Pragma("GCC unroll 8")
#else
#define UNROLL_TOKENS _Pragma("GCC unroll 8")
#define UNROLL_RUNS _Pragma("GCC unroll 8")
#endif

/* How the weights w of a type are multiplied; q, c, m and e are those of numerics.md. */
enum kind {
	KIND_OFFSET, /* w = q + TILES_OFFSET(offset); q + offset is 0..31 */
	KIND_SIGNED, /* w = q + IQ4_BIAS */
	KIND_MIN, /* w = q, 0..31; m */
	KIND_FACTORS_32, /* w = q + 32, 0..63; c */
	KIND_FACTORS_4, /* w = q + 4, 0..7; c */
	KIND_FACTORS_MIN, /* w = q, 0..3; c, m, e */
	KIND_FACTORS_SIGNED, /* w = q + IQ4_BIAS, q is -64..63; c_0 and c_1 unchanged */
	/* the same without c; d is the scale of the first 16 weights, m that of the last */
	KIND_HALVES,
};

/* A run in each lane. The names are those of BLOCKS in numerics.md. */
struct lanes_run {
	ilanes w[8]; /* dword k: weights 4k..4k+3, bytes */
	struct factors c; /* as factors_*() of the kind prepare them */
	ilanes e; /* pair_of() the two factors */
	flanes d, m;
};

/* A group: up to eight runs. A type sets the fields that its kind of product reads. */
#define GROUP_RUNS 8
struct group {
	struct lanes_run run[GROUP_RUNS];
};

/* Ends a segment that another follows: adds its sums to the sums of the segments before, and begins
 * the next. The totals are kept in memory, because acc takes the registers. */
ALWAYS_INLINE void end_segment(
	bool first, const uint32_t T, flanes acc[TILE_TOKENS], flanes total[TILE_TOKENS])
{
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++) {
		total[t] = first ? acc[t] : f_add(total[t], acc[t]);
		__asm__("" : "+m"(total[t]));
		acc[t] = f_zero();
	}
}

/* Ends the last of several segments: acc becomes the sum of all. */
ALWAYS_INLINE void end_segments(
	const uint32_t T, flanes acc[TILE_TOKENS], const flanes total[TILE_TOKENS])
{
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		acc[t] = f_add(total[t], acc[t]);
}

/* acc plus the run's terms; dot is its isum. */
ALWAYS_INLINE flanes add_terms(
	const struct lanes_run *run, bool has_m, const struct q8_block *x, ilanes dot, flanes acc)
{
	acc = f_fma(f_mul(run->d, f_set1(x->d)), f_of_i(dot), acc);
	return has_m ? f_fma(run->m, f_set1(x->d_sum), acc) : acc;
}

/* acc plus what a run adds whose halves are summed separately: each half has a factor or a scale.
 */
ALWAYS_INLINE flanes add_halves(
	bool scales, const struct lanes_run *run, const struct q8_block *x, flanes acc)
{
	ilanes sum[2];

	dot_halves_signed(run->w, x, sum);
	if (!scales)
		return add_terms(run, false, x,
			i_add(i_mul(sum[0], run->c.c[0]), i_mul(sum[1], run->c.c[1])), acc);
	acc = f_fma(f_mul(run->d, f_set1(x->d)), f_of_i(sum[0]), acc);
	return f_fma(f_mul(run->m, f_set1(x->d)), f_of_i(sum[1]), acc);
}

/* acc plus what a run adds. kind and offset are constants where this is inlined. */
ALWAYS_INLINE flanes add_run(enum kind kind, int16_t offset, const struct lanes_run *run,
	const struct q8_block *x, flanes acc)
{
	ilanes dot;

	if (kind == KIND_FACTORS_SIGNED || kind == KIND_HALVES)
		return add_halves(kind == KIND_HALVES, run, x, acc);
	switch (kind) {
	case KIND_OFFSET:
		dot = dot_less(run->w, x, offset);
		break;
	case KIND_SIGNED:
		dot = dot_signed_less(run->w, x);
		break;
	case KIND_MIN:
		dot = dot_32(run->w, x->q);
		break;
	case KIND_FACTORS_32:
		dot = dot_factors_32(run->w, &run->c, x);
		break;
	case KIND_FACTORS_4:
		dot = dot_factors_4(run->w, &run->c, x);
		break;
	default:
		dot = dot_factors_0(run->w, &run->c, x);
		break;
	}
	acc = add_terms(run, kind == KIND_MIN, x, dot, acc);
	if (kind == KIND_FACTORS_MIN) {
		ilanes sum = i_madd(run->e, i_set1(load_i32(x->sums)));

		acc = f_fma(run->m, f_mul(f_set1(x->d), f_of_i(sum)), acc);
	}
	return acc;
}
