#include "kernels/cpu/requantise.h"

#include <errno.h>
#include <stdlib.h>

/* A stored vector of KV_Q8_0 has the same blocks as a row of Q8_0. */
int requantise(
	const struct kernels *kernels, const struct matrix *from, void *to, struct error *err)
{
	size_t bytes = kv_vector_bytes(KV_Q8_0, from->cols);
	float *row = malloc(from->cols * sizeof(*row));

	if (!row)
		return error_set(err, ENOMEM, "no memory for a row of %u weights", from->cols);
	for (uint32_t r = 0; r < from->rows; r++) {
		kernels->dequantise_row(from, r, row);
		kernels->kv_store(row, from->cols, KV_Q8_0, (unsigned char *)to + r * bytes);
	}
	free(row);
	return 0;
}
