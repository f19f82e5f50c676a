/*
 * The meaning of the fields of blocks, for sixteen or eight rows at once, one per lane, in
 * whichever layout they were loaded. Include after lanes_*.h. blocks.c reads the same fields one
 * weight at a time, and says where each bit lies.
 */
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/template_product.h"

ALWAYS_INLINE ilanes low_nibbles(ilanes a)
{
	return i_and(a, i_set1_8(15));
}

ALWAYS_INLINE ilanes high_nibbles(ilanes a)
{
	return i_and(i_right(a, 4), i_set1_8(15));
}

/* Moves bit `from` of every byte of a to bit `to`. */
ALWAYS_INLINE ilanes move_bits(ilanes a, uint32_t mask, uint32_t from, uint32_t to)
{
	ilanes moved = from < to ? i_left(a, to - from) : i_right(a, from - to);

	return i_and(moved, i_set1_8((int)(mask << to)));
}

/* Byte i of every lane. */
ALWAYS_INLINE ilanes byte_of(ilanes a, uint32_t i)
{
	return i_and(i_right(a, 8 * i), i_set1(255));
}

ALWAYS_INLINE void look_up_all(const int8_t table[16], ilanes w[8])
{
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++)
		w[k] = i_look_up(table, w[k]);
}

#define MXFP4_OFFSET 12
static const int8_t mxfp4_raised[16] = {MXFP4_TABLE(TILES_OFFSET(MXFP4_OFFSET))};

/* mxfp4_scale() of each lane's byte. */
ALWAYS_INLINE flanes mxfp4_scales(ilanes e)
{
	ilanes half = i_right(e, 1), other = i_sub(e, half), bias = i_set1(63);

	return f_mul(f_of_bits(i_left(i_add(half, bias), 23)),
		f_of_bits(i_left(i_add(other, bias), 23)));
}

static const int8_t iq4_biased[16] = {IQ4_TABLE(IQ4_BIAS)};
static const int8_t fp4_biased[16] = {MXFP4_TABLE(IQ4_BIAS)};
static const int8_t iq1_biased[16] = {IQ1_TABLE(IQ4_BIAS)};
static const int8_t iq2_biased[16] = {IQ2_TABLE(IQ4_BIAS)};
static const int8_t iq3_xxs_biased[16] = {IQ3_XXS_TABLE(IQ4_BIAS)};
static const int8_t iq3_s_biased[16] = {IQ3_S_TABLE(IQ4_BIAS)};

/* nvfp4_scale() of each lane's byte. */
ALWAYS_INLINE flanes nvfp4_scales(ilanes e)
{
	/* All ones, except where e is 127. */
	ilanes number =
		i_xor(i_right_signed(i_sub(i_xor(e, i_set1(127)), i_set1(1)), 31), i_set1(-1));

	return f_mul(f_of_half(i_left(i_and(e, i_and(number, i_set1(127))), 7)), f_set1(128));
}

/* signs_of_sevens() of each lane. */
ALWAYS_INLINE ilanes sevens_signs(ilanes fields)
{
	ilanes signs = i_and(fields, i_set1(0x7f)), odd;

	signs = i_or(signs, i_left(i_and(fields, i_set1(0x3f80)), 1));
	signs = i_or(signs, i_left(i_and(fields, i_set1(0x1fc000)), 2));
	signs = i_or(signs, i_left(i_and(fields, i_set1(0xfe00000)), 3));
	odd = i_xor(signs, i_right(signs, 4));
	odd = i_xor(odd, i_right(odd, 2));
	odd = i_xor(odd, i_right(odd, 1));
	return i_or(signs, i_left(i_and(odd, i_set1_8(1)), 7));
}

/* 2 * scale + 1, where the scale is in each lane's low bits. */
ALWAYS_INLINE ilanes odd_of(ilanes scale, int mask)
{
	return i_or(i_left(i_and(scale, i_set1(mask)), 1), i_set1(1));
}

/* Each byte of a is a fraction in base three. Returns three times it, without the new fraction: the
 * first digit. */
ALWAYS_INLINE ilanes first_digits(ilanes a)
{
	const ilanes even = i_set1(0x00ff00ff);
	ilanes low = i_and(a, even), high = i_and(i_right(a, 8), even);

	low = i_add(low, i_left(low, 1));
	high = i_add(high, i_left(high, 1));
	return i_or(i_and(i_right(low, 8), even), i_and(high, i_set1((int32_t)0xff00ff00)));
}

/* d of the eight runs, from scales with four low and two high bits. */
ALWAYS_INLINE void scales_iq4_xs(flanes d, ilanes high, ilanes low, struct group *out)
{
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		ilanes scale = i_and(i_right(low, 4 * r), i_set1(15));

		scale = i_or(scale, i_left(i_and(i_right(high, 2 * r), i_set1(3)), 4));
		out->run[r].d = f_mul(d, f_of_i(i_sub(scale, i_set1(32))));
	}
}

/* d and m of the eight runs of Q4_K and Q5_K, from the 16 bytes with which a block begins. */
ALWAYS_INLINE void scales_k(const ilanes head[4], struct group *out)
{
	const ilanes six = i_set1_8(63), four = i_set1_8(15), top = i_set1_8(0x30);
	ilanes scales[2], minima[2];
	flanes d, less;

	d = f_of_half(head[0]);
	less = f_negate(f_of_half(i_right(head[0], 16)));
	scales[0] = i_and(head[1], six);
	minima[0] = i_and(head[2], six);
	scales[1] = i_or(i_and(head[3], four), i_and(i_right(head[1], 2), top));
	minima[1] = i_or(i_and(i_right(head[3], 4), four), i_and(i_right(head[2], 2), top));
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		out->run[r].d = f_mul(d, f_of_i(byte_of(scales[r / 4], r % 4)));
		out->run[r].m = f_mul(less, f_of_i(byte_of(minima[r / 4], r % 4)));
	}
}

/* The two scales of run r, in the low bytes of the lanes. */
ALWAYS_INLINE ilanes two_scales(const ilanes scales[4], uint32_t r)
{
	return i_right(scales[r / 2], 16 * (r % 2));
}

/* Byte i of every lane, sign-extended. */
ALWAYS_INLINE ilanes signed_byte_of(ilanes a, uint32_t i)
{
	return i_right_signed(i_left(a, 24 - 8 * i), 24);
}

ALWAYS_INLINE void factors_q6_k(const ilanes scales[4], uint32_t r, struct lanes_run *out)
{
	ilanes two = two_scales(scales, r);

	factors_32(signed_byte_of(two, 0), signed_byte_of(two, 1), &out->c);
}

/* c and e of Q2_K: the low and the high nibbles. */
ALWAYS_INLINE void factors_q2_k(const ilanes scales[4], uint32_t r, struct lanes_run *out)
{
	ilanes c = low_nibbles(two_scales(scales, r)), e = high_nibbles(two_scales(scales, r));

	factors_0(byte_of(c, 0), byte_of(c, 1), &out->c);
	out->e = pair_of(byte_of(e, 0), byte_of(e, 1));
}

/* From twelve bytes, of which the first eight hold the low four bits, to the factors of Q3_K as
 * signed bytes, like Q6_K's. */
ALWAYS_INLINE void scales_q3_k(const ilanes in[3], ilanes scales[4])
{
#pragma GCC unroll 4
	for (uint32_t four = 0; four < 4; four++) {
		ilanes bits = four < 2 ? low_nibbles(in[four % 2]) : high_nibbles(in[four % 2]);

		bits = i_or(bits, move_bits(in[2], 3, 2 * four, 4));
		scales[four] = i_add_8(bits, i_set1_8(-32));
	}
}

ALWAYS_INLINE void factors_q3_k(const ilanes scales[4], uint32_t r, struct lanes_run *out)
{
	ilanes two = two_scales(scales, r);

	factors_4(signed_byte_of(two, 0), signed_byte_of(two, 1), &out->c);
}
