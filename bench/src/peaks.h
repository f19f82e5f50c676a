/*
 * What this machine can do at most, measured: the read bandwidth of its memory, and the multiply-adds of 8-bit integers
 * and of float32 in registers. The floors that the engine's figures are held against, taken in the same run.
 */
#pragma once

#include "kernels/pool.h"
#include "shared/base/error.h"

#include <stddef.h>

struct peaks {
	double read_gb_s; /* all threads reading memory in order */
	double int8_gop_s; /* 8-bit products summed in 32 bits; a multiply and an add are two operations */
	double f32_gop_s; /* float32 fma, two operations */
};

struct peaks_memory {
	unsigned char *data; /* bytes, in huge pages where the system gives them; filled */
	size_t bytes;
};

/* -ENOMEM. */
int peaks_memory_get(struct peaks_memory *memory, size_t bytes, struct error *err);
void peaks_memory_put(struct peaks_memory *memory);

/* One round, with all threads of the pool. */
void peaks_measure(const struct peaks_memory *memory, struct pool *pool, struct peaks *out);
