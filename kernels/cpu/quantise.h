/* What quantising a block of activations decides once for its 32 values, the same in every backend. */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/tensor.h"

/* Below this a block counts as zero: 127 / amax would come near float32's end (and be inf for subnormals). */
#define QUANTISE_LEAST 0x1p-110f

/* amax_bits: the greatest of the bit patterns of |x|, so that inf beats every number and NaN beats inf. Sets the
 * block to zeros with its d, and returns what to multiply x by: positive, or 0 or NaN (amax too small, infinite
 * or NaN) when the block stays zeros. */
static inline float quantise_scale(uint32_t amax_bits, struct q8_block *block)
{
	float amax = float_of_bits(amax_bits);

	memset(block, 0, sizeof(*block));
	if (amax < QUANTISE_LEAST)
		return 0;
	block->d = amax / 127.0f;
	block->d_sum = block->d * 0.0f;
	return 127.0f / amax;
}

/* The sums of a block, once its q are there. */
static inline void quantise_sums(int32_t first, int32_t last, struct q8_block *block)
{
	block->sums[0] = (int16_t)first;
	block->sums[1] = (int16_t)last;
	block->d_sum = block->d * (float)(first + last);
	block->minus_128 = -128 * (first + last);
}

/* A block of a query whose keys are of KV_Q16_0. */
struct q16_block {
	float d;
	int16_t q[Q8_BLOCK];
};
