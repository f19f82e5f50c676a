/*
 * `outrider-bench ipc --backend simt|cuda`: the cost of what crosses two processes that share a
 * device, or its emulation: memory that one exports and the other imports, flags between their
 * queues, and copies to memory that was imported.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>

struct ipc_gpu_options {
	const char *backend; /* "simt" or "cuda" */
	double seconds; /* at least one round is measured */
	bool json;
};

/* Measures and prints. */
int ipc_gpu(const struct ipc_gpu_options *options, struct error *err);
