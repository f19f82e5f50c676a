/*
 * What surrounds the products of the device's library (kernels/gpu/library.h). Before a product, rows of
 * float32 become rows of 16 bits. For float16, whose range is small, a row is multiplied by the power of
 * two that brings its greatest magnitude to 2^14..2^15; for bfloat16 the factor is 1. After a product, the
 * results are divided by that power on their way to where the step wants them. The library always writes
 * to one place, because it may sum in another order where its results are aligned otherwise.
 */
#pragma once

#include "kernels/gpu/kernels/rows.cuh"

#include "kernels/tensor.h"

enum { FAST_THREADS = 256 };

struct fast_args {
	struct dev_rows x; /* [cols] float32 */
	uint16_t *narrow; /* [x.n][cols] out */
	float *back; /* [x.n] out: the factor of the results */
	uint32_t cols;
	uint32_t type;
};

struct fast_shared {
	uint32_t most[FAST_THREADS / 32];
};

/* To nearest even; a NaN stays one. */
DEV uint16_t bfloat_of_float(float x)
{
	uint32_t bits = bits_of_float(x);

	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The power of two that brings a magnitude of these bits to 2^14..2^15; 1 for 0, subnormals, infinity
 * and NaN. *back: its inverse. */
DEV float fast_factor(uint32_t most, float *back)
{
	int exponent = (int)(most >> 23) - 127 - 14;

	*back = 1;
	if (most < 0x00800000u || most >= 0x7f800000u)
		return 1;
	/* Both powers are normal numbers. */
	exponent = exponent < -110 ? -110 : exponent;
	*back = float_of_bits((uint32_t)(127 + exponent) << 23);
	return float_of_bits((uint32_t)(127 - exponent) << 23);
}

/* A block has a row. */
KERNEL fast_narrow(fast_args a)
{
	struct fast_shared &s = shared_memory<struct fast_shared>();
	const float *x = float_row(a.x, blockIdx.x);
	uint16_t *out = a.narrow + (size_t)blockIdx.x * a.cols;
	float factor = 1, back = 1;
	uint32_t most = 0;

	if (a.type == TENSOR_F16) {
		for (uint32_t k = threadIdx.x; k < a.cols; k += FAST_THREADS) {
			uint32_t bits = bits_of_float(x[k]) & 0x7fffffffu;

			most = bits > most ? bits : most;
		}
		most = warp_max(most);
		if (threadIdx.x % 32 == 0)
			s.most[threadIdx.x / 32] = most;
		__syncthreads();
		for (unsigned i = 0; i < FAST_THREADS / 32; i++)
			most = s.most[i] > most ? s.most[i] : most;
		factor = fast_factor(most, &back);
	}
	for (uint32_t k = threadIdx.x; k < a.cols; k += FAST_THREADS)
		out[k] = a.type == TENSOR_F16 ? half_of_float(f_mul(x[k], factor))
					      : bfloat_of_float(x[k]);
	if (threadIdx.x == 0)
		a.back[blockIdx.x] = back;
}

/* y = wide * back, row by row. */
KERNEL fast_back(const float *wide, struct dev_rows y, uint32_t rows, const float *back)
{
	uint32_t i = blockIdx.x * FAST_THREADS + threadIdx.x;

	if (i < rows)
		float_row(y, blockIdx.y)[i] =
			f_mul(wide[(size_t)blockIdx.y * rows + i], back[blockIdx.y]);
}
