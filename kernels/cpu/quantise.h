/* The parts of quantising a block of 32 activations that are decided once per block, the same for
 * every instruction set. */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/tensor.h"

/* Blocks whose greatest value is below this become zeros: 127 / amax would come near the end of
 * float32's range, and be inf for subnormals. */
#define QUANTISE_LEAST 0x1p-110f

/* Sets the block to zeros with its d, and returns the factor for x: positive, or 0 or NaN when the
 * block stays zeros (amax too small, infinite, or NaN). amax_bits: the greatest of the bit patterns
 * of |x|, in which inf is above every number and NaN above inf. */
EXACT float quantise_scale(uint32_t amax_bits, struct q8_block *block)
{
	float amax = float_of_bits(amax_bits);

	memset(block, 0, sizeof(*block));
	if (amax < QUANTISE_LEAST)
		return 0;
	block->d = amax / 127.0f;
	block->d_sum = block->d * 0.0f;
	return 127.0f / amax;
}

/* Sets the sums of a block; first and last are the sums over its first and its last 16 q. */
EXACT void quantise_sums(int32_t first, int32_t last, struct q8_block *block)
{
	block->sums[0] = (int16_t)first;
	block->sums[1] = (int16_t)last;
	block->d_sum = block->d * (float)(first + last);
	block->minus_128 = -128 * (first + last);
}

/* A block of a query whose keys are KV_Q16_0. */
struct q16_block {
	float d;
	int16_t q[Q8_BLOCK];
};
