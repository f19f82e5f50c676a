/* Quantised products of matrices in TILES; template_tiles.h says how. */
#include "kernels/cpu/lanes_avx512.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/template_tiles.h"

void kernels_avx512_matmul_tiles(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	tiles_matmul(kernels_avx512_matmul_blocks, w, first, last, x, n, y);
}
