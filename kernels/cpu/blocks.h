/*
 * Reading the blocks of every quantised type in plain C. This is the definition that the
 * instruction sets are compared with, and the code that dequantises for all of them. Pure
 * functions, any thread.
 */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/tensor.h"

#define RUN_WEIGHTS 32
/* Runs in a block of 256 weights. */
#define RUNS_256 8
/* Runs in a segment of a product. */
#define SEGMENT_RUNS (PRODUCT_SEGMENT / RUN_WEIGHTS)

/* 32 consecutive weights of a row. The names are those of BLOCKS in numerics.md; types without an m
 * leave m and e unset. */
struct run {
	float d, m;
	float d_last; /* scale of the last 16 weights, for types where they have one of their own */
	int16_t c[2], e[2];
	int8_t q[RUN_WEIGHTS];
};

/* Reads run r of a row: weights 32 r to 32 r + 31. */
typedef void run_reader(const uint8_t *row, uint32_t r, struct run *out);

struct block_reader {
	run_reader *read;
	bool has_m, has_d_last;
};

/* Readers of the types whose codes choose from a grid, of the ternary types, and of NVFP4
 * (blocks_coded.c). */
run_reader kernels_read_iq1_s, kernels_read_iq1_m, kernels_read_iq2_xxs, kernels_read_iq2_xs,
	kernels_read_iq2_s, kernels_read_iq3_xxs, kernels_read_iq3_s, kernels_read_tq1_0,
	kernels_read_tq2_0, kernels_read_nvfp4;

/* Sets c of both halves, and e to 1. */
static inline void set_factors(struct run *out, int c_first, int c_last)
{
	out->c[0] = (int16_t)c_first;
	out->c[1] = (int16_t)c_last;
	out->e[0] = out->e[1] = 1;
}

/* The reader of a type, which must be quantised. */
struct block_reader kernels_block_reader(enum tensor_type type);

/* Converts weights first..first+n-1 of a row to float32, for any type. For quantised types first
 * and n are multiples of 32. */
void kernels_dequantise(
	enum tensor_type type, const uint8_t *row, uint32_t first, uint32_t n, float *out);
/* Converts weights 256 * group and up to 255 after it, in either layout, without the matrix's
 * scale. */
void kernels_dequantise_group(const struct matrix *w, uint32_t row, uint32_t group, float *out);
/* `dequantise_row` of every table of functions. */
void kernels_dequantise_row(const struct matrix *w, uint32_t row, float *out);

/* Products in the order BLOCKS, row by row. */
void kernels_scalar_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y);

/* MXFP4's scale: 2^(e - 128), exact down to the subnormal 2^-128, as a product of two normal
 * powers. */
EXACT float mxfp4_scale(uint8_t e)
{
	uint32_t half = e / 2u;

	return float_of_bits((half + 63) << 23) * float_of_bits((e - half + 63) << 23);
}

/* Half of NVFP4's scale, an E4M3 number without its sign. Its fields are those of a float16 whose
 * exponent is 8 higher. */
EXACT float nvfp4_scale(uint8_t e)
{
	return e == 127 ? 0 : float_of_half((uint16_t)((e & 127) << 7)) * 128;
}

/* The float16 whose bits IQ1_M spreads over the upper four bits of its four words of scales; each
 * argument holds two words. */
EXACT uint16_t iq1_m_scale(uint32_t first, uint32_t last)
{
	return (uint16_t)((first >> 12 & 0xf) | (first >> 24 & 0xf0) | (last >> 4 & 0xf00) |
			  (last >> 16 & 0xf000));
}

/* The sign bits of 32 weights, from four fields of 7 bits. The eighth bit of each field is such
 * that an even number of bits is set. */
EXACT uint32_t signs_of_sevens(uint32_t fields)
{
	uint32_t signs = (fields & 0x7f) | (fields & 0x3f80) << 1 | (fields & 0x1fc000) << 2 |
			 (fields & 0xfe00000) << 3;
	uint32_t odd = signs ^ signs >> 4;

	odd ^= odd >> 2;
	odd ^= odd >> 1;
	return signs | (odd & 0x01010101) << 7;
}

/* Tables from code to weight for IQ1, IQ2, IQ3_XXS and IQ3_S. An entry 8 higher has the other sign
 * or shift. */
#define IQ1_TABLE(more)                                                                            \
	BYTE(more, -7), BYTE(more, 1), BYTE(more, 9), BYTE(more, 0), BYTE(more, 0), BYTE(more, 0), \
		BYTE(more, 0), BYTE(more, 0), BYTE(more, -9), BYTE(more, -1), BYTE(more, 7),       \
		BYTE(more, 0), BYTE(more, 0), BYTE(more, 0), BYTE(more, 0), BYTE(more, 0)
#define IQ2_TABLE(more)                                                                       \
	BYTE(more, 8), BYTE(more, 25), BYTE(more, 43), BYTE(more, 0), BYTE(more, 0),          \
		BYTE(more, 0), BYTE(more, 0), BYTE(more, 0), BYTE(more, -8), BYTE(more, -25), \
		BYTE(more, -43), BYTE(more, 0), BYTE(more, 0), BYTE(more, 0), BYTE(more, 0),  \
		BYTE(more, 0)
#define IQ3_XXS_TABLE(more)                                                                      \
	BYTE(more, 4), BYTE(more, 12), BYTE(more, 20), BYTE(more, 28), BYTE(more, 36),           \
		BYTE(more, 44), BYTE(more, 52), BYTE(more, 62), BYTE(more, -4), BYTE(more, -12), \
		BYTE(more, -20), BYTE(more, -28), BYTE(more, -36), BYTE(more, -44),              \
		BYTE(more, -52), BYTE(more, -62)
#define IQ3_S_TABLE(more)                                                                          \
	BYTE(more, 1), BYTE(more, 3), BYTE(more, 5), BYTE(more, 7), BYTE(more, 9), BYTE(more, 11), \
		BYTE(more, 13), BYTE(more, 15), BYTE(more, -1), BYTE(more, -3), BYTE(more, -5),    \
		BYTE(more, -7), BYTE(more, -9), BYTE(more, -11), BYTE(more, -13), BYTE(more, -15)
/* Tables from code to weight for IQ4_NL and IQ4_XS, and to twice the FP4 (E2M1) value; each entry
 * `more` higher, as a byte. */
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
