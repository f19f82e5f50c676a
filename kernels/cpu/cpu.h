/*
 * The CPU's tables of functions, one for each instruction set. The float functions are written once
 * (template_*.h) over sixteen lanes (vec_*.h) and compiled for each instruction set. The quantised
 * products are written for each.
 */
#pragma once

#include "kernels/cpu/simd.h"

extern const struct kernels kernels_scalar;
extern const struct kernels kernels_avx2;
extern const struct kernels kernels_avx512;
extern const struct kernels kernels_reference;

/* Compiled for the base instruction set, so that the question does not execute instructions that
 * the CPU may lack. */
bool kernels_scalar_supported(void);
bool kernels_reference_supported(void);
bool kernels_avx2_supported(void);
bool kernels_avx512_supported(void);

/* y = rows first..last-1 of a quantised matrix times n rows of 8-bit activations (BLOCKS of
 * numerics.md). */
void kernels_avx2_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);
void kernels_avx512_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);
/* The same for matrices in LAYOUT_ROWS, whose rows lie as in the file. */
void kernels_avx2_matmul_rows(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);
void kernels_avx512_matmul_rows(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);
