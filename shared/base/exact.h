/*
 * EXACT begins the definition of a small function that every back end computes with, so that there
 * is one definition of its bits: C on the CPU, and C++ that a GPU's compiler also compiles for the
 * device.
 */
#pragma once

#ifdef __CUDACC__
#define EXACT static __host__ __device__ __forceinline__
#else
#define EXACT static inline
#endif
