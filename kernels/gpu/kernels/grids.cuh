/* The grids of GGUF's IQ types (kernels/cpu/grids.h), where kernels can read them. */
#pragma once

#include "simt.h"

#ifdef __CUDACC__
/* Under names of their own: the host's have been declared. */
#define GRID(name, n) static __device__ const uint32_t device_##name[n]
#define GRID_AT(name, i) device_##name[i]
#include "kernels/cpu/grid_iq1.c"
#include "kernels/cpu/grid_iq2.c"
#include "kernels/cpu/grid_iq3.c"
#else
extern "C" {
#include "kernels/cpu/grids.h"
}
#define GRID_AT(name, i) name[i]
#endif

DEV uint32_t grid_iq1_s(uint32_t i)
{
	return GRID_AT(kernels_grid_iq1_s, i);
}
DEV uint32_t grid_iq2_xxs(uint32_t i)
{
	return GRID_AT(kernels_grid_iq2_xxs, i);
}
DEV uint32_t grid_iq2_xs(uint32_t i)
{
	return GRID_AT(kernels_grid_iq2_xs, i);
}
DEV uint32_t grid_iq2_s(uint32_t i)
{
	return GRID_AT(kernels_grid_iq2_s, i);
}
DEV uint32_t grid_iq3_xxs(uint32_t i)
{
	return GRID_AT(kernels_grid_iq3_xxs, i);
}
DEV uint32_t grid_iq3_s(uint32_t i)
{
	return GRID_AT(kernels_grid_iq3_s, i);
}
