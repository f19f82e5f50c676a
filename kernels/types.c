#include "kernels/kernels.h"

static const struct tensor_type_info types[] = {
	{TENSOR_F32, "F32", 1, 4, false},
	{TENSOR_F16, "F16", 1, 2, false},
	{TENSOR_BF16, "BF16", 1, 2, false},
	{TENSOR_Q8_0, "Q8_0", 32, 34, true},
	{TENSOR_Q4_0, "Q4_0", 32, 18, true},
	{TENSOR_Q4_1, "Q4_1", 32, 20, true},
};

const struct tensor_type_info *tensor_type_info(uint32_t type)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if ((uint32_t)types[i].type == type)
			return &types[i];
	return NULL;
}
