/*
 * What this machine can do at most, measured: the read bandwidth of its memory, and the multiply-adds of 8-bit and 16-bit
 * integers, of bfloat16 and of float32 in registers. The floors that the engine's figures are held against, taken in the same run.
 */
#pragma once

#include "kernels/kv_format.h"
#include "kernels/tensor.h"
#include "kernels/pool.h"
#include "shared/base/error.h"

#include <stddef.h>

struct peaks {
	double read_gb_s; /* all threads reading memory in order */
	double int8_gop_s; /* 8-bit products summed in 32 bits; a multiply and an add are two operations */
	double int16_gop_s; /* the same of 16-bit ones, by pairs: attention's, over keys and values of blocks */
	double f32_gop_s; /* float32 fma, two operations */
	double bf16_gop_s; /* products of pairs of bfloat16 summed in float32, which the kernels do not use (numerics.md says why);
			      0: no such instruction */
};

/* The peak that a product with weights of this type is held against: that of the arithmetic that numerics.md lays down, bytes'
 * for quantised weights and float32's for others, bfloat16's too. */
double peaks_gop_s(const struct peaks *peaks, const struct tensor_type_info *type);

/* The same of attention over keys and values of this type, of so many dimensions: scores of KV_Q8_0 are products of bytes, all
 * others of blocks of 16-bit integers, and of plain types float32's. */
double peaks_attention_gop_s(
	const struct peaks *peaks, enum kv_type type, double k_dim, double v_dim);

struct peaks_memory {
	unsigned char *data; /* bytes, in huge pages where the system gives them; filled */
	size_t bytes, mapped; /* mapped: in whole pages */
};

/* -ENOMEM, also where a limit would end the process when it is touched. */
int peaks_memory_get(struct peaks_memory *memory, size_t bytes, struct error *err);
void peaks_memory_put(struct peaks_memory *memory);

/* One round, with all threads of the pool: of each the best of a few goes, since nothing but the machine's limit is
 * wanted. */
void peaks_measure(const struct peaks_memory *memory, struct pool *pool, struct peaks *out);

/* The read bandwidth alone, GB/s: on a machine shared with others it changes from one second to the next, so that who
 * measures something bound by memory asks before and after. */
double peaks_read(const struct peaks_memory *memory, struct pool *pool);

#define PEAKS_ROUNDS 99
/* Of each peak the median of n rounds, 1..PEAKS_ROUNDS. */
struct peaks peaks_median(const struct peaks *rounds, uint32_t n);
