/* The grids of kernels/cpu/grids.h for kernels: GRID(iq2_xxs). A device has a copy of its own. */
#pragma once

#ifdef __CUDACC__
#include <stdint.h>
#define kernels_grid_iq1_s __device__ device_grid_iq1_s
#define kernels_grid_iq2_xxs __device__ device_grid_iq2_xxs
#define kernels_grid_iq2_xs __device__ device_grid_iq2_xs
#define kernels_grid_iq2_s __device__ device_grid_iq2_s
#define kernels_grid_iq3_xxs __device__ device_grid_iq3_xxs
#define kernels_grid_iq3_s __device__ device_grid_iq3_s
namespace
{
#include "kernels/cpu/grid_iq1.c"
#include "kernels/cpu/grid_iq2.c"
#include "kernels/cpu/grid_iq3.c"
} // namespace
#undef kernels_grid_iq1_s
#undef kernels_grid_iq2_xxs
#undef kernels_grid_iq2_xs
#undef kernels_grid_iq2_s
#undef kernels_grid_iq3_xxs
#undef kernels_grid_iq3_s
#define GRID(name) device_grid_##name
#else
extern "C" {
#include "kernels/cpu/grids.h"
}
#define GRID(name) kernels_grid_##name
#endif
