/* Rows of a batch as kernels see them, and rows of 8-bit activations made by a warp. */
#pragma once

#include "simt.h"

#include "kernels/cpu/quantise.h"

/* As struct rows; at null: there are none. */
struct dev_rows {
	unsigned char *at;
	size_t stride;
	uint32_t n;
};

struct dev_inputs {
	struct dev_rows f32, q8;
};

DEV float *float_row(struct dev_rows rows, uint32_t i)
{
	return (float *)(rows.at + i * rows.stride);
}

DEV struct q8_block *q8_row(struct dev_rows rows, uint32_t i)
{
	return (struct q8_block *)(rows.at + i * rows.stride);
}

/* Row i of y, or the row of `kept` that replaces it. */
DEV float *kept_row(struct dev_rows y, const uint32_t *keep, struct dev_rows kept, uint32_t i)
{
	return keep && keep[i] != 0xffffffffu ? float_row(kept, keep[i]) : float_row(y, i);
}

/* a > b ? a : b, as numerics.md has it for NaNs. */
DEV float f_max(float a, float b)
{
	return a > b ? a : b;
}

DEV float sigmoid(float x)
{
	return f_div(1.0f, f_add(1.0f, exp32(f_sub(-0.0f, x))));
}

DEV float silu(float x)
{
	return f_mul(x, sigmoid(x));
}

/* The fold of LANES over the sixteen lanes around this one: each of them has the sum. All 32 lanes
 * of the warp take part. */
DEV float lanes_fold(float x)
{
	for (unsigned half = 8; half; half /= 2)
		x = f_add(x, __shfl_xor_sync(WARP_ALL, x, half));
	return x;
}

DEV uint32_t warp_max(uint32_t x)
{
	for (unsigned half = 16; half; half /= 2) {
		uint32_t other = __shfl_xor_sync(WARP_ALL, x, half);

		x = other > x ? other : x;
	}
	return x;
}

/* Quantises a block of 32 activations, one in each lane of a warp. */
DEV void warp_quantise(float x, struct q8_block *out)
{
	unsigned lane = threadIdx.x % 32;
	uint32_t amax = warp_max(bits_of_float(x) & 0x7fffffffu);
	struct q8_block block;
	float inverse = quantise_scale(amax, &block);
	int32_t q = 0;

	if (inverse > 0)
		q = (int32_t)(bits_of_float(f_add(f_mul(x, inverse), EXP_SHIFT)) - 0x4b400000u);
	int32_t sum = q;
	for (unsigned half = 8; half; half /= 2)
		sum += __shfl_xor_sync(WARP_ALL, sum, half);
	int32_t other = __shfl_xor_sync(WARP_ALL, sum, 16);
	out->q[lane] = (int8_t)q;
	if (lane == 0) {
		if (inverse > 0)
			quantise_sums(sum, other, &block);
		out->d = block.d;
		out->d_sum = block.d_sum;
		out->minus_128 = block.minus_128;
		out->sums[0] = block.sums[0];
		out->sums[1] = block.sums[1];
	}
}
