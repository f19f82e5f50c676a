/*
 * The constants of exp, shared by all its forms: exp32 here, v16_exp in vec_avx2.h and in
 * vec_avx512.h. They do the same float32 operations down to p and give the same bits after it:
 * AVX-512 multiplies p by 2^n (vscalefps), the others add n to p's exponent.
 *
 *   t = fma(x, log2 e, 1.5 * 2^23)      the integer n nearest to x * log2 e, in the low bits of t
 *   n = t - 1.5 * 2^23
 *   r = fma(n, -ln2_high, x), then fma(n, -ln2_low, r)
 *   p = 1/5040, then fma(p, r, 1/k!) for k = 6 .. 0
 *   bits(result) = bits(p) + (bits(t) << 23)
 *   less than EXP_LEAST: +0; more than EXP_MOST: inf; NaN: NaN
 *
 * |r| < 0.3466, so the remainder of the series is below 2^-27. p lies in (0.70, 1.42), and every
 * result between the limits is a normal number. So adding n to the exponent field is exact, and so
 * is multiplying by 2^n.
 */
#pragma once

#include "kernels/cpu/fma.h"
#include "kernels/cpu/half.h"

#define EXP_LEAST (-87.3f)
#define EXP_MOST 88.72283f
#define EXP_LOG2E 0x1.715476p+0f
#define EXP_SHIFT 0x1.8p+23f
#define EXP_LN2_HIGH 0x1.62e4p-1f
#define EXP_LN2_LOW 0x1.7f7d1cp-20f
#define EXP_C7 0x1.a01a02p-13f
#define EXP_C6 0x1.6c16c2p-10f
#define EXP_C5 0x1.111112p-7f
#define EXP_C4 0x1.555556p-5f
#define EXP_C3 0x1.555556p-3f
#define EXP_C2 0.5f

EXACT float exp32(float x)
{
	float t = fma32(x, EXP_LOG2E, EXP_SHIFT);
	float n = t - EXP_SHIFT;
	float r = fma32(n, -EXP_LN2_HIGH, x);
	float p = EXP_C7;

	r = fma32(n, -EXP_LN2_LOW, r);
	p = fma32(p, r, EXP_C6);
	p = fma32(p, r, EXP_C5);
	p = fma32(p, r, EXP_C4);
	p = fma32(p, r, EXP_C3);
	p = fma32(p, r, EXP_C2);
	p = fma32(p, r, 1.0f);
	p = fma32(p, r, 1.0f);
	p = float_of_bits(bits_of_float(p) + (bits_of_float(t) << 23));
	p = x < EXP_LEAST ? 0.0f : p;
	p = x > EXP_MOST ? float_of_bits(0x7f800000u) : p;
	return x != x ? x : p;
}
