/*
 * Conversions of float16 and bfloat16 in integer arithmetic. They give exactly the bits of the F16C
 * instructions, for subnormals, infinities and NaNs too (a signalling NaN becomes quiet and keeps
 * its payload).
 */
#pragma once

#include "shared/base/exact.h"

#include <stdint.h>
#include <string.h>

EXACT float float_of_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

EXACT uint32_t bits_of_float(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

EXACT float float_of_half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
	uint32_t exponent = (h >> 10) & 31u;
	uint32_t fraction = h & 0x3ffu;

	if (exponent == 31) {
		uint32_t quiet = fraction ? 0x400000u : 0;

		return float_of_bits(sign | 0x7f800000u | quiet | fraction << 13);
	}
	if (exponent == 0) {
		/* fraction * 2^-24 is exact. */
		float magnitude = (float)fraction * 0x1p-24f;

		return float_of_bits(sign | bits_of_float(magnitude));
	}
	return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

EXACT uint16_t half_of_float(float f)
{
	uint32_t bits = bits_of_float(f);
	uint32_t sign = bits >> 16 & 0x8000u;
	uint32_t magnitude = bits & 0x7fffffffu;

	if (magnitude > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
	if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
		return (uint16_t)(sign | 0x7c00u);
	if (magnitude < 0x38800000u) {
		/* Below 2^-14 the last place of a float16 is 2^-24. Adding 0.5, whose last place in
		 * float32 is also 2^-24, rounds there to nearest even, and the low bits of the sum
		 * are the fraction. */
		float sum = float_of_bits(magnitude) + 0.5f;

		return (uint16_t)(sign | (bits_of_float(sum) - 0x3f000000u));
	}
	/* Changes the exponent's bias and rounds to nearest even on the 13 bits that are dropped. A
	 * carry out of the fraction correctly gives the next exponent. */
	magnitude -= 112u << 23;
	magnitude += 0xfffu + (magnitude >> 13 & 1u);
	return (uint16_t)(sign | magnitude >> 13);
}

EXACT float float_of_bfloat(uint16_t b)
{
	return float_of_bits((uint32_t)b << 16);
}

/* 16 bits in the file's byte order, at any address. */
EXACT uint16_t load_u16(const void *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

EXACT int32_t load_i32(const void *p)
{
	int32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}
