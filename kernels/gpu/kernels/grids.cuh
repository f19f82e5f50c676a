/* The grids of GGUF's IQ types (kernels/cpu/grids.h), where kernels can read them. */
#pragma once

#include "simt.h"

#ifdef __CUDACC__
#define GRID(name, n) static __device__ const uint32_t name[n]
#include "kernels/cpu/grid_iq1.c"
#include "kernels/cpu/grid_iq2.c"
#include "kernels/cpu/grid_iq3.c"
#else
extern "C" {
#include "kernels/cpu/grids.h"
}
#endif

DEV uint32_t grid_iq1_s(uint32_t i)
{
	return kernels_grid_iq1_s[i];
}
DEV uint32_t grid_iq2_xxs(uint32_t i)
{
	return kernels_grid_iq2_xxs[i];
}
DEV uint32_t grid_iq2_xs(uint32_t i)
{
	return kernels_grid_iq2_xs[i];
}
DEV uint32_t grid_iq2_s(uint32_t i)
{
	return kernels_grid_iq2_s[i];
}
DEV uint32_t grid_iq3_xxs(uint32_t i)
{
	return kernels_grid_iq3_xxs[i];
}
DEV uint32_t grid_iq3_s(uint32_t i)
{
	return kernels_grid_iq3_s[i];
}
