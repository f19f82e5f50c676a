/* Small operations that the attention kernels share. */
#pragma once

#include "kernels/gpu/kernels/rows.cuh"

#define INFINITE float_of_bits(0x7f800000u)

/* Before a loop whose arrays are registers of a device. */
#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

/* Rounds |x| < 2^22 to the nearest integer, ties to even. Its low 16 bits are right for any x whose
 * integer fits 16 bits. */
DEV uint32_t integer_bits(float x)
{
	return bits_of_float(f_add(x, EXP_SHIFT));
}

/* The greatest value of the sixteen lanes around this one. */
DEV float lanes_max(float v)
{
	for (unsigned i = 8; i; i /= 2)
		v = f_max(v, __shfl_xor_sync(WARP_ALL, v, i));
	return v;
}

/* NORM SUM of the squares of n values, by a warp. Lane l has the values with k % 16 = l % 16 of
 * eight neighbouring groups. */
DEV float warp_square_sum(const float *x, unsigned n, unsigned lane)
{
	float p[8];

	for (unsigned j = 0; j < 8; j++) {
		p[j] = 0;
		for (unsigned k = (lane / 16 * 8 + j) * 16 + lane % 16; k < n; k += 256)
			p[j] = f_fma(x[k], x[k], p[j]);
	}
	for (unsigned step = 1; step < 8; step *= 2)
		for (unsigned j = 0; j < 8; j += 2 * step)
			p[j] = f_add(p[j], p[j + step]);
	p[0] = f_add(p[0], __shfl_xor_sync(WARP_ALL, p[0], 16));
	return lanes_fold(p[0]);
}
