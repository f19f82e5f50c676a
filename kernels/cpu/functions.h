/*
 * log and sincos, operation by operation in float64, for every back end. kernels/kernels.h says how
 * exact they are.
 */
#pragma once

#include "kernels/cpu/half.h"

#include <stdint.h>
#include <string.h>

#define ANGLE_END 1073741824.0 /* 2^30: where kernels_sincos stops */

/* A value as the exact sum of two doubles, the second at most half a last place of the first. */
struct pair {
	double high, low;
};

EXACT uint64_t bits_of_double(double d)
{
	uint64_t bits;

	memcpy(&bits, &d, sizeof(bits));
	return bits;
}

EXACT double double_of_bits(uint64_t bits)
{
	double d;

	memcpy(&d, &bits, sizeof(d));
	return d;
}

/* a + b exactly (Knuth's two-sum). */
EXACT struct pair sum_exact(double a, double b)
{
	double sum = a + b;
	double back = sum - a;

	struct pair out = {sum, (a - (sum - back)) + (b - back)};

	return out;
}

/* x = m * 2^return value with m in [sqrt(1/2), sqrt(2)); x is positive and normal. */
EXACT int32_t split_exponent(double x, double *m)
{
	uint64_t bits = bits_of_double(x);
	/* Subtracting the bits of sqrt(1/2) makes the exponent field count from there. */
	uint64_t shifted = bits - 0x3fe6a09e667f3bcdu;
	int32_t exponent = (int32_t)((int64_t)shifted >> 52);

	*m = double_of_bits(bits - ((uint64_t)(int64_t)exponent << 52));
	return exponent;
}

/*
 * log m = 2 atanh s, s = (m - 1) / (m + 1), |s| < 0.1716. Six terms in double leave a relative
 * error below 2^-33, so that the single rounding to float32 decides. Every float32 is a normal
 * double, subnormals included.
 */
EXACT float log32(float x)
{
	double m, s, z, series;
	int32_t exponent;

	if (!(x > 0))
		return float_of_bits(x == 0 ? 0xff800000u : 0x7fc00000u);
	if (x > 0x1.fffffep127f)
		return x;
	exponent = split_exponent((double)x, &m);
	s = (m - 1) / (m + 1);
	z = s * s;
	series = z * (1 / 3.0 + z * (1 / 5.0 + z * (1 / 7.0 + z * (1 / 9.0 + z * (1 / 11.0)))));
	return (float)(exponent * 0x1.62e42fefa39efp-1 + 2 * (s + s * series));
}

/* sin and cos of high + low, |high| <= pi/4; the low part counts to first order. With z = x^2,
 * sin x = x - x^3/6 (1 - z S) and cos x = 1 - z/2 + z^2/24 (1 - z C); the terms are those of S and
 * C, ascending, to the 17th and 18th power of x. */
EXACT void sincos_reduced(double high, double low, double *sine, double *cosine)
{
	const double sine_terms[] = {
		1 / 20.0, 1 / 42.0, 1 / 72.0, 1 / 110.0, 1 / 156.0, 1 / 210.0, 1 / 272.0};
	const double cosine_terms[] = {
		1 / 30.0, 1 / 56.0, 1 / 90.0, 1 / 132.0, 1 / 182.0, 1 / 240.0, 1 / 306.0};
	double z = high * high;
	double half = 0.5 * z;
	double top = 1 - half;
	double s = 1, c = 1;

	for (int k = 6; k >= 0; k--) {
		s = 1 - z * sine_terms[k] * s;
		c = 1 - z * cosine_terms[k] * c;
	}
	*sine = high + (low * top - high * z * (1 / 6.0) * s);
	/* 1 - half is rounded; the small terms restore what it lost. */
	*cosine = top + (((1 - top) - half) + (half * z * (1 / 12.0) * c - high * low));
}

/*
 * Cody and Waite's reduction: n = angle / (pi/2), to the nearest integer. pi/2 is split into three
 * parts, the first two of 33 bits, so that their products with n < 2^20 are exact. The result is
 * exact to the last place up to 2^20 rad. Beyond that the error grows with the angle, and from 2^30
 * on the result is NaN.
 */
EXACT void sincos64(double angle, double *sine, double *cosine)
{
	double shifted = angle * 0x1.45f306dc9c883p-1 + 0x1.8p52;
	double n = shifted - 0x1.8p52;
	struct pair r;
	double s, c;

	if (!(angle > -ANGLE_END && angle < ANGLE_END)) {
		*sine = *cosine = double_of_bits(0x7ff8000000000000u);
		return;
	}
	r = sum_exact(angle - n * 0x1.921fb544p+0, -(n * 0x1.0b4611a6p-34));
	r = sum_exact(r.high, r.low - n * 0x1.3198a2e037073p-69);
	sincos_reduced(r.high, r.low, &s, &c);
	switch (bits_of_double(shifted) & 3) {
	case 0:
		*sine = s;
		*cosine = c;
		break;
	case 1:
		*sine = c;
		*cosine = -s;
		break;
	case 2:
		*sine = -s;
		*cosine = -c;
		break;
	default:
		*sine = -c;
		*cosine = s;
		break;
	}
}
