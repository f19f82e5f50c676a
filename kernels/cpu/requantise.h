/* The conversion of a matrix to Q8_0, which every back end's `requantise` does with the CPU. */
#pragma once

#include "kernels/cpu/simd.h"
#include "shared/base/error.h"

/* As backend_ops.requantise, with the functions of one instruction set. */
int requantise(
	const struct kernels *kernels, const struct matrix *from, void *to, struct error *err);
