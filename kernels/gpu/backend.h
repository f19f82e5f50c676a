/*
 * The GPU's back end. Its kernels and steps are compiled twice: for the emulation ("simt", a library
 * that programs link) and, where NVIDIA's toolkit is, for devices ("cuda", the shared object
 * outrider-backend-cuda.so). Nothing else in the tree knows CUDA.
 */
#pragma once

#include "kernels/backend.h"

struct backend_gpu_options {
	const char *device; /* "" or NULL: the first */
	/* the order in which the emulation runs threads, 0: ascending; the results are the same */
	uint32_t seed;
};

/* Creates the emulation. -ENOMEM. */
int backend_simt_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err);

/* The function of the shared object, by its name there. */
#define BACKEND_CUDA_CREATE "outrider_backend_cuda_create"
typedef int backend_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err);

/* Loads the shared object and creates a device's back end. -ENOENT: there is no shared object;
 * -ENODEV: there is no driver, or no GPU. */
int backend_cuda_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err);
