#include "kernels/tensor.h"

#include <stdio.h>

/* Indexed by type, because products look one up for every item. Types that do not exist have no
 * name. */
static const struct tensor_type_info types[] = {
	[TENSOR_F32] = {TENSOR_F32, "F32", 1, 4, false},
	[TENSOR_F16] = {TENSOR_F16, "F16", 1, 2, false},
	[TENSOR_BF16] = {TENSOR_BF16, "BF16", 1, 2, false},
	[TENSOR_Q8_0] = {TENSOR_Q8_0, "Q8_0", 32, 34, true},
	[TENSOR_Q4_0] = {TENSOR_Q4_0, "Q4_0", 32, 18, true},
	[TENSOR_Q4_1] = {TENSOR_Q4_1, "Q4_1", 32, 20, true},
	[TENSOR_Q5_0] = {TENSOR_Q5_0, "Q5_0", 32, 22, true},
	[TENSOR_Q5_1] = {TENSOR_Q5_1, "Q5_1", 32, 24, true},
	[TENSOR_Q2_K] = {TENSOR_Q2_K, "Q2_K", 256, 84, true},
	[TENSOR_Q3_K] = {TENSOR_Q3_K, "Q3_K", 256, 110, true},
	[TENSOR_Q4_K] = {TENSOR_Q4_K, "Q4_K", 256, 144, true},
	[TENSOR_Q5_K] = {TENSOR_Q5_K, "Q5_K", 256, 176, true},
	[TENSOR_Q6_K] = {TENSOR_Q6_K, "Q6_K", 256, 210, true},
	[TENSOR_IQ4_NL] = {TENSOR_IQ4_NL, "IQ4_NL", 32, 18, true},
	[TENSOR_IQ4_XS] = {TENSOR_IQ4_XS, "IQ4_XS", 256, 136, true},
	[TENSOR_MXFP4] = {TENSOR_MXFP4, "MXFP4", 32, 17, true},
	[TENSOR_NVFP4] = {TENSOR_NVFP4, "NVFP4", 64, 36, true},
	[TENSOR_IQ1_S] = {TENSOR_IQ1_S, "IQ1_S", 256, 50, true},
	[TENSOR_IQ1_M] = {TENSOR_IQ1_M, "IQ1_M", 256, 56, true},
	[TENSOR_IQ2_XXS] = {TENSOR_IQ2_XXS, "IQ2_XXS", 256, 66, true},
	[TENSOR_IQ2_XS] = {TENSOR_IQ2_XS, "IQ2_XS", 256, 74, true},
	[TENSOR_IQ2_S] = {TENSOR_IQ2_S, "IQ2_S", 256, 82, true},
	[TENSOR_IQ3_XXS] = {TENSOR_IQ3_XXS, "IQ3_XXS", 256, 98, true},
	[TENSOR_IQ3_S] = {TENSOR_IQ3_S, "IQ3_S", 256, 110, true},
	[TENSOR_TQ1_0] = {TENSOR_TQ1_0, "TQ1_0", 256, 54, true},
	[TENSOR_TQ2_0] = {TENSOR_TQ2_0, "TQ2_0", 256, 66, true},
};

const struct tensor_type_info *tensor_type_info(uint32_t type)
{
	return type < sizeof(types) / sizeof(types[0]) && types[type].name ? &types[type] : NULL;
}

size_t tensor_type_names(char *text, size_t bytes)
{
	size_t used = 0;

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		size_t left = used < bytes ? bytes - used : 0;

		if (types[i].name)
			used += (size_t)snprintf(left ? text + used : NULL, left, "%s%s",
				i ? ", " : "", types[i].name);
	}
	return used;
}
