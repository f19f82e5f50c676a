/*
 * Tensors as products read them: GGUF's types, matrices of weights, and rows of activations in two
 * forms.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GGUF's ids of the tensor types that the engine computes with. */
enum tensor_type {
	TENSOR_F32 = 0,
	TENSOR_F16 = 1,
	TENSOR_Q4_0 = 2,
	TENSOR_Q4_1 = 3,
	TENSOR_Q5_0 = 6,
	TENSOR_Q5_1 = 7,
	TENSOR_Q8_0 = 8,
	TENSOR_Q2_K = 10,
	TENSOR_Q3_K = 11,
	TENSOR_Q4_K = 12,
	TENSOR_Q5_K = 13,
	TENSOR_Q6_K = 14,
	TENSOR_IQ2_XXS = 16,
	TENSOR_IQ2_XS = 17,
	TENSOR_IQ3_XXS = 18,
	TENSOR_IQ1_S = 19,
	TENSOR_IQ4_NL = 20,
	TENSOR_IQ3_S = 21,
	TENSOR_IQ2_S = 22,
	TENSOR_IQ4_XS = 23,
	TENSOR_IQ1_M = 29,
	TENSOR_BF16 = 30,
	TENSOR_TQ1_0 = 34,
	TENSOR_TQ2_0 = 35,
	TENSOR_MXFP4 = 39,
	TENSOR_NVFP4 = 40,
};

struct tensor_type_info {
	enum tensor_type type;
	const char *name;
	uint32_t block_weights; /* weights per block; 1 for plain types */
	uint32_t block_bytes;
	bool quantised; /* multiplied with 8-bit activations; otherwise with float32 ones (LANES) */
};

/* NULL when the engine cannot compute with this type. */
const struct tensor_type_info *tensor_type_info(uint32_t type);

/* Writes the names of all types, "F32, F16, ...", for messages. Like snprintf: cuts the text to fit
 * and returns the full length. */
#define TENSOR_TYPE_NAMES 224
size_t tensor_type_names(char *text, size_t bytes);

#define Q8_BLOCK 32
/* 32 activations of one row in 8 bits: q, with the scale d (numerics.md). */
struct q8_block {
	float d;
	/* Derived from d and the sum of q once, so that the products of each row need not compute
	 * it: */
	float d_sum; /* d * (float)sum; NaN where d is not finite */
	int32_t minus_128; /* -128 * sum: corrects products that took signed weights 128 too high */
	int16_t sums[2]; /* of the first 16 and of the last 16 of q */
	int8_t q[Q8_BLOCK];
};

/* The sum of all its q. */
static inline int32_t q8_sum(const struct q8_block *x)
{
	return x->sums[0] + x->sums[1];
}

/* The order of a matrix's blocks in memory: row after row as in the file, or sixteen rows
 * interleaved (kernels/tiles.h). */
enum matrix_layout { LAYOUT_ROWS = 0, LAYOUT_TILES };

/* A weight matrix. rows: outputs; cols: inputs. A row takes row_bytes in either layout. data is
 * borrowed and read-only. */
struct matrix {
	enum tensor_type type;
	uint32_t rows, cols;
	size_t row_bytes;
	const void *data;
	enum matrix_layout layout;
	/* products and values are multiplied by `scale` last, which rounds once more */
	bool scaled;
	float scale;
};

/* A low-rank addition to a product: y = fma(scale, b * (a * x), y). Both matrices are of a plain
 * type. a without data: there is none. */
struct low_rank {
	struct matrix a, b; /* {rank, inputs}, {outputs, rank} */
	float scale;
};

/* True when products with the matrix take quantised inputs: all types but the plain ones. */
static inline bool matrix_quantised(const struct matrix *w)
{
	return w->type != TENSOR_F32 && w->type != TENSOR_F16 && w->type != TENSOR_BF16;
}

/* True when no weight of the row is infinite or NaN. For types in blocks: when no scale is. row <
 * w->rows. */
bool tensor_row_finite(const struct matrix *w, uint32_t row);

/* Columns of a segment, in which products of quantised weights are summed (kernels/numerics.md,
 * BLOCKS). */
#define PRODUCT_SEGMENT 1024

/* One row of activations in both forms. f32: [cols], may be NULL when only quantised types are
 * multiplied. q8: [cols / 32], may be NULL when only plain types are. */
struct activation {
	const float *f32;
	const struct q8_block *q8;
};
