/*
 * The measured limits of this machine: the read bandwidth of its memory, and the multiply-adds per
 * second of 8-bit and 16-bit integers, of bfloat16 and of float32 in registers. Floors are computed
 * from them; so they are measured in the same run as the engine's figures.
 */
#pragma once

#include "kernels/kv_format.h"
#include "kernels/tensor.h"
#include "kernels/pool.h"
#include "shared/base/error.h"

#include <stddef.h>

struct peaks {
	double read_gb_s; /* all threads reading memory in order */
	/* 8-bit products summed in 32 bits; a multiply and an add are two operations */
	double int8_gop_s;
	/* the same for 16-bit products, in pairs: for attention over keys and values in blocks */
	double int16_gop_s;
	double f32_gop_s; /* float32 fma, two operations */
	/* products of pairs of bfloat16, summed in float32, which the kernels do not use
	 * (numerics.md has the reason); 0: no such instruction */
	double bf16_gop_s;
};

/* The peak that applies to a product with weights of this type, by the arithmetic that numerics.md
 * defines: 8-bit products for quantised weights, float32 for all others, bfloat16 included. */
double peaks_gop_s(const struct peaks *peaks, const struct tensor_type_info *type);

/* The same for attention over keys and values of this type, with these dimensions: scores of
 * KV_Q8_0 are products of bytes, all other blocks use 16-bit integers, and plain types float32. */
double peaks_attention_gop_s(
	const struct peaks *peaks, enum kv_type type, double k_dim, double v_dim);

struct peaks_memory {
	unsigned char *data; /* bytes, in huge pages where the system gives them; filled */
	size_t bytes, mapped; /* mapped: in whole pages */
};

/* -ENOMEM, also where a limit would end the process when the memory is touched. */
int peaks_memory_get(struct peaks_memory *memory, size_t bytes, struct error *err);
void peaks_memory_put(struct peaks_memory *memory);

/* Measures one round, with all threads of the pool: for each peak the best of a few attempts,
 * because only the limit of the machine is wanted. */
void peaks_measure(const struct peaks_memory *memory, struct pool *pool, struct peaks *out);

/* Measures only the read bandwidth, in GB/s. On a shared machine it changes from one second to the
 * next, so measure it before and after anything that is bound by memory. */
double peaks_read(const struct peaks_memory *memory, struct pool *pool);

#define PEAKS_ROUNDS 99
/* The median of n rounds for each peak, n in 1..PEAKS_ROUNDS. */
struct peaks peaks_median(const struct peaks *rounds, uint32_t n);
