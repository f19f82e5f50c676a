/*
 * Tensors as products read them: GGUF's types, matrices of weights, and rows of activations in their two forms.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GGUF's tensor type ids, those the engine computes with. */
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
	bool quantised; /* multiplied with 8-bit activations; else with float32 ones (LANES) */
};

/* NULL when the engine cannot compute with the type. */
const struct tensor_type_info *tensor_type_info(uint32_t type);

/* The names of all types, "F32, F16, ...", for messages. As snprintf: cut short to fit, the whole length returned. */
#define TENSOR_TYPE_NAMES 224
size_t tensor_type_names(char *text, size_t bytes);

#define Q8_BLOCK 32
/* 32 activations of one row. */
struct q8_block {
	float d;
	/* What products would otherwise work out again for every row, from d and the sum of q: */
	float d_sum; /* d * (float)sum, NaN where d is not finite */
	int32_t minus_128; /* -128 * sum: where a product took signed weights 128 higher */
	int16_t sums[2]; /* of the first and the last 16 of q */
	int8_t q[Q8_BLOCK];
};

/* Of all its q. */
static inline int32_t q8_sum(const struct q8_block *x)
{
	return x->sums[0] + x->sums[1];
}

/* How the blocks of a matrix lie: row after row as in the file, or sixteen rows interleaved (kernels/tiles.h). */
enum matrix_layout { LAYOUT_ROWS = 0, LAYOUT_TILES };

/* A weight matrix: rows = outputs, cols = inputs; a row takes row_bytes in either layout. data is borrowed and
 * read-only. */
struct matrix {
	enum tensor_type type;
	uint32_t rows, cols;
	size_t row_bytes;
	const void *data;
	enum matrix_layout layout;
	bool scaled; /* products and values are multiplied by scale last, one more rounding */
	float scale;
};

/* Whether products take their inputs quantised: all types but the plain ones. */
static inline bool matrix_quantised(const struct matrix *w)
{
	return w->type != TENSOR_F32 && w->type != TENSOR_F16 && w->type != TENSOR_BF16;
}

/* Whether no weight of the row is infinite or NaN, which for blocks means: no scale is. row < rows. */
bool tensor_row_finite(const struct matrix *w, uint32_t row);

/* Products of quantised weights are summed in segments of so many columns (kernels/numerics.md, BLOCKS). */
#define PRODUCT_SEGMENT 1024

/* One activation row in both forms; q8 may be NULL when only plain types will be multiplied, f32 when only
 * quantised ones will. cols and cols / 32 elements. */
struct activation {
	const float *f32;
	const struct q8_block *q8;
};
