/* Quantised products of matrices in TILES (template_tiles.h), and the choice by layout. */
#include "kernels/cpu/lanes_avx2.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/template_tiles.h"

void kernels_avx2_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	if (w->layout == LAYOUT_TILES)
		tiles_matmul(kernels_avx2_matmul_rows, w, first, last, x, n, y);
	else
		kernels_avx2_matmul_rows(w, first, last, x, n, y);
}
