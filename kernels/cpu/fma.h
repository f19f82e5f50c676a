/*
 * fma32(a, b, c): a * b + c with one rounding. It is the instruction where there is one. The base
 * x86-64 has none, and the forward pass calls no libm, so otherwise it is computed here.
 */
#pragma once

#include "shared/base/exact.h"

#include <stdint.h>
#include <string.h>

EXACT float fma32(float a, float b, float c)
{
#if defined(__CUDA_ARCH__)
	return __fmaf_rn(a, b, c);
#elif defined(__FMA__)
	return __builtin_fmaf(a, b, c);
#else
	/* The product of two 24-bit numbers is exact in a double. The sum is rounded to odd (Boldo
	 * and Melquiond, "Emulation of FMA and correctly rounded sums", 2008), so that the second
	 * rounding, to float32, gives the same as one rounding would, also for subnormal results.
	 */
	double product = (double)a * (double)b;
	double sum = product + (double)c;
	double back = sum - product;
	double error = (product - (sum - back)) + ((double)c - back);

	if (error > 0 || error < 0) {
		uint64_t bits;

		memcpy(&bits, &sum, sizeof(bits));
		if ((bits & 1) == 0) {
			/* The magnitude grows when the lost part points away from zero. */
			bits = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
			memcpy(&sum, &bits, sizeof(sum));
		}
	}
	return (float)sum;
#endif
}
