/* What quantising a block of activations decides once for its 32 values, the same in every backend. */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/kernels.h"

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
	return 127.0f / amax;
}
