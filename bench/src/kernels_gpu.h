/*
 * `outrider-bench kernels --backend simt|cuda`: the products of a GPU, or of its emulation, beside
 * what copies in its memory and over its link reach in the same rounds.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct kernels_gpu_options {
	const char *backend; /* "simt" or "cuda" */
	const uint32_t *types, *counts; /* [n_types], [n_counts] tokens */
	uint32_t n_types, n_counts;
	uint32_t rounds; /* 1..PEAKS_ROUNDS */
	bool tiles, json;
};

/* Prints to stdout. -errno: no GPU, no memory, or the GPU failed. */
int kernels_gpu(const struct kernels_gpu_options *options, struct error *err);
