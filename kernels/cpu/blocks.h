/*
 * Blocks of every quantised type in plain C: the definition the instruction sets are compared with, and what
 * dequantises for all of them. Pure functions, any thread.
 */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/kernels.h"

#define RUN_WEIGHTS 32
/* Runs of a block of 256 weights. */
#define RUNS_256 8

/* 32 consecutive weights of a row, by the names of BLOCKS in kernels.h; types without m leave m and e alone. */
struct run {
	float d, m;
	int16_t c[2], e[2];
	int8_t q[RUN_WEIGHTS];
};

/* Run r of a row: weights 32r..32r+31. */
typedef void run_reader(const uint8_t *row, uint32_t r, struct run *out);

struct block_reader {
	run_reader *read;
	bool has_m;
};

/* type must be a quantised one. */
struct block_reader kernels_block_reader(enum tensor_type type);

/* Weights first..first+n-1 of a row as float32, any type; for quantised types first and n are multiples of 32. */
void kernels_dequantise(
	enum tensor_type type, const uint8_t *row, uint32_t first, uint32_t n, float *out);
/* Weights 256 * group and up to 255 behind it, in either layout. */
void kernels_dequantise_group(const struct matrix *w, uint32_t row, uint32_t group, float *out);
/* The op of every backend. */
void kernels_dequantise_row(const struct matrix *w, uint32_t row, float *out);

/* Products as BLOCKS has them, one row after the other. */
void kernels_scalar_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);

/* MXFP4's scale: 2^(e - 128), exact down to the subnormal 2^-128, as a product of two normal powers. */
static inline float mxfp4_scale(uint8_t e)
{
	uint32_t half = e / 2u;

	return float_of_bits((half + 63) << 23) * float_of_bits((e - half + 63) << 23);
}

/* The weights of IQ4_NL and IQ4_XS by code, and twice the FP4 (E2M1) values; each `more` higher, as a byte. */
#define IQ4_TABLE(more)                                                                           \
	BYTE(more, -127), BYTE(more, -104), BYTE(more, -83), BYTE(more, -65), BYTE(more, -49),    \
		BYTE(more, -35), BYTE(more, -22), BYTE(more, -10), BYTE(more, 1), BYTE(more, 13), \
		BYTE(more, 25), BYTE(more, 38), BYTE(more, 53), BYTE(more, 69), BYTE(more, 89),   \
		BYTE(more, 113)
#define MXFP4_TABLE(more)                                                                         \
	BYTE(more, 0), BYTE(more, 1), BYTE(more, 2), BYTE(more, 3), BYTE(more, 4), BYTE(more, 6), \
		BYTE(more, 8), BYTE(more, 12), BYTE(more, 0), BYTE(more, -1), BYTE(more, -2),     \
		BYTE(more, -3), BYTE(more, -4), BYTE(more, -6), BYTE(more, -8), BYTE(more, -12)
#define BYTE(more, value) (int8_t)((value) + (more))
