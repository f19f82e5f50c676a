/* Quantised products of matrices in the file's layout (template_runs.h and few_avx512.h). */
#include "kernels/cpu/lanes_avx512.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/few_avx512.h"

void kernels_avx512_matmul_rows(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	runs_matmul(few_function(w->type, w->cols, n), w, first, last, x, n, y);
}
