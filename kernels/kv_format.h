/*
 * How keys and values are stored in cells: their types, their sizes, and how the cells of a turn
 * (16 neighbouring cells) lie in memory.
 */
#pragma once

#include "kernels/tensor.h"

enum kv_type { KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2, KV_Q16_0 = 3 };

/* True for types that are stored as blocks of integers with a scale each, and multiplied as
 * integers. */
static inline bool kv_in_blocks(enum kv_type type)
{
	return type == KV_Q8_0 || type == KV_Q16_0;
}

/* Bytes of a stored value, without its share of a block's scale. */
static inline size_t kv_value_bytes(enum kv_type type)
{
	return type == KV_F32 ? 4 : type == KV_Q8_0 ? 1 : 2;
}

/* Bytes of a stored vector of n values. In blocks: for each Q8_BLOCK values a scale of two bytes
 * (KV_Q8_0: float16, KV_Q16_0: bfloat16) and the integers. The last block may be shorter, so that
 * any n can be stored. */
static inline size_t kv_vector_bytes(enum kv_type type, uint32_t n)
{
	size_t scales = kv_in_blocks(type) ? (n + Q8_BLOCK - 1) / Q8_BLOCK : 0;

	return n * kv_value_bytes(type) + 2 * scales;
}

/* Bounds of the integers of KV_Q16_0, and of the integers that they are multiplied with. They are
 * as large as possible while the sum over a block (scores) or over a chunk (weighted values) fits
 * 32 bits. */
#define KV_Q16_MOST 8191 /* of a stored value */
#define KV_Q16_QUERY_MOST 8190 /* of a query: 8190 * 8191 * Q8_BLOCK < 2^31 */
#define KV_WEIGHT_MOST 32767 /* of one weight */
/* of a chunk's weights together, with half a unit each for rounding: 262032 * 8191 < 2^31 */
#define KV_Q16_WEIGHTS_MOST 262000

/*
 * The vectors of a turn, cells 16 i to 16 i + 15, may lie together, at 16 i times the bytes of one
 * vector. Attention then reads them in place. There are two such forms. With types in blocks,
 * either form begins with the scales: for each block, the scales of its 16 cells.
 *
 * Turned, for keys: a lane of scores is a cell. For each value, the 16 cells' values follow one
 * another; in blocks, for each four bytes of a block (or what is left of it), the 16 cells' bytes.
 *
 * Paired, for values in blocks: for each block and each two cells, value after value, the first
 * cell's and then the second's.
 */
#define KV_TURN 16
