/*
 * How keys and values are stored in cells: their types, their sizes, and the orders in which the cells of a turn may lie.
 */
#pragma once

#include "kernels/tensor.h"

enum kv_type { KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2, KV_Q16_0 = 3 };

/* Stored in blocks of integers with a scale each, and multiplied as integers. */
static inline bool kv_in_blocks(enum kv_type type)
{
	return type == KV_Q8_0 || type == KV_Q16_0;
}

/* Bytes of a stored value, its share of a block's scale not counted. */
static inline size_t kv_value_bytes(enum kv_type type)
{
	return type == KV_F32 ? 4 : type == KV_Q8_0 ? 1 : 2;
}

/* Bytes of a stored vector of n values. Of blocks: Q8_BLOCK values each, a scale of two bytes (KV_Q8_0: float16, KV_Q16_0:
 * bfloat16) and its integers; the last block is as short as what is left, so that any n can be stored. */
static inline size_t kv_vector_bytes(enum kv_type type, uint32_t n)
{
	size_t scales = kv_in_blocks(type) ? (n + Q8_BLOCK - 1) / Q8_BLOCK : 0;

	return n * kv_value_bytes(type) + 2 * scales;
}

/* The integers of KV_Q16_0, and those that stored ones are multiplied with: as large as the sum over a block of a score, or
 * over a chunk of weighted values, allows in 32 bits. */
#define KV_Q16_MOST 8191 /* of a stored value */
#define KV_Q16_QUERY_MOST 8190 /* of a query: 8190 * 8191 * Q8_BLOCK < 2^31 */
#define KV_WEIGHT_MOST 32767 /* of a weight */
#define KV_Q16_WEIGHTS_MOST \
	262000 /* of a chunk's together, half a one each for rounding: 262032 * 8191 < 2^31 */

/*
 * Vectors of KV_TURN cells may lie together, those of cells 16 * i and on at 16 * i times the bytes of one, so that attention
 * reads them as they lie. Of blocks, in either form first come the scales: for each block its 16 cells'.
 * Turned, for keys, so that a lane of scores is a cell: for each value its 16 cells' one after the other; of blocks, for each
 * four bytes of a block (or what is left of them), its 16 cells'.
 * Paired, for values of blocks: for each block and each two cells, value after value, the first cell's and the second's.
 */
#define KV_TURN 16
