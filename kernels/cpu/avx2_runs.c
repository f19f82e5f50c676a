/* Quantised products of matrices in the file's layout (template_runs.h). */
#include "kernels/cpu/lanes_avx2.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/template_runs.h"

void kernels_avx2_matmul_rows(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	runs_matmul(NULL, w, first, last, x, n, y);
}
