/*
 * The CPU backends. Each is one ops table; the float kernels are written once (template_*.h) over sixteen
 * lanes (vec_*.h) and compiled once per instruction set, the quantised products are written for each.
 */
#pragma once

#include "kernels/cpu/simd.h"

extern const struct kernels kernels_scalar;
extern const struct kernels kernels_avx2;
extern const struct kernels kernels_avx512;
extern const struct kernels kernels_reference;

/* Compiled for the base instruction set, so that asking does not execute what the CPU may lack. */
bool kernels_scalar_supported(void);
bool kernels_reference_supported(void);
bool kernels_avx2_supported(void);
bool kernels_avx512_supported(void);

/* Rows first..last-1 of a quantised matrix times n rows of 8-bit activations (BLOCKS of numerics.md). */
void kernels_avx2_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);
void kernels_avx512_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);
/* The same where the rows lie as in the file, LAYOUT_ROWS. */
void kernels_avx2_matmul_rows(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);
void kernels_avx512_matmul_rows(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);
