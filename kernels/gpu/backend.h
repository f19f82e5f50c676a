/*
 * The GPU's back end. Its kernels and steps are compiled twice: for the emulation ("simt", a library
 * that programs link) and, where NVIDIA's toolkit is, for devices ("cuda", the shared object
 * outrider-backend-cuda.so). Nothing else in the tree knows CUDA.
 */
#pragma once

#include "kernels/backend.h"

struct backend_gpu_options {
	const char *device; /* its number or its UUID; "" or NULL: the first */
	/* the order in which the emulation runs threads, 0: ascending; the results are the same */
	uint32_t seed;
};

/* Creates the emulation. -ENOMEM. */
int backend_simt_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err);

/* The shared object's function by its name there, and the text BACKEND_INTERFACE that it was
 * compiled with: the version, and a checksum of the headers that it shares with the programs. */
#define BACKEND_CUDA_CREATE "outrider_backend_cuda_create"
#define BACKEND_CUDA_INTERFACE "outrider_backend_cuda_interface"
typedef int backend_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err);

/* Loads the shared object and creates a device's back end. -ENOENT: there is no shared object;
 * -ENOEXEC: it is of another version; -ENODEV: there is no driver, or no GPU; -EINVAL: there is no
 * such device. */
int backend_cuda_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err);
