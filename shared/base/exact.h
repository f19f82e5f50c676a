/* EXACT marks functions in headers that the GPU's kernels share with the CPU, so that there is one
 * definition of what must be the same to the bit. */
#pragma once

#ifdef __CUDACC__
#define EXACT static __host__ __device__ __forceinline__
#else
#define EXACT static inline
#endif
