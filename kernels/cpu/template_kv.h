/* Reading stored keys and values as float32, and storing them. Include after vec_*.h. */
#pragma once

#include "kernels/cpu/quantise.h"
#include "kernels/cpu/simd.h"
#include "shared/base/limits.h"

#include <assert.h>

/* The types are constants where these functions are inlined, so that a chunk's loops contain the
 * code of one type. */
#define ATTENTION_INLINE static inline __attribute__((always_inline))

/* Blocks of a vector of n values; the last may be filled up. */
static inline uint32_t kv_blocks(uint32_t n)
{
	return (n + Q8_BLOCK - 1) / Q8_BLOCK;
}

/* Values in block b of a vector of n; the last block may have fewer. */
static inline uint32_t kv_block_values(uint32_t n, uint32_t b)
{
	const uint32_t left = n - b * Q8_BLOCK;

	return left < Q8_BLOCK ? left : Q8_BLOCK;
}

/* Copies block b of n values and fills it up with zeros; returns how many values it has. */
static inline uint32_t pad_block(const float *x, uint32_t n, uint32_t b, float *block)
{
	const uint32_t some = kv_block_values(n, b);

	memset(block, 0, Q8_BLOCK * sizeof(*block));
	memcpy(block, x + (size_t)b * Q8_BLOCK, some * sizeof(*block));
	return some;
}

/* Bytes of one block's scale, and of those of a turn. */
enum { KV_SCALE_BYTES = 2, KV_TURN_SCALES_BYTES = KV_TURN * KV_SCALE_BYTES };

ATTENTION_INLINE size_t kv_block_bytes(enum kv_type type)
{
	return Q8_BLOCK * kv_value_bytes(type);
}

ATTENTION_INLINE size_t kv_turn_block_bytes(enum kv_type type)
{
	return KV_TURN * kv_block_bytes(type);
}

/* Values d..d+15, or d..d+n-1 followed by zeros, of a stored vector of plain values; d % 16 == 0.
 */
ATTENTION_INLINE struct v16 kv_16(enum kv_type type, const uint8_t *p, size_t d)
{
	if (type == KV_F32)
		return v16_load((const float *)(const void *)p + d);
	return v16_load_f16((const uint16_t *)(const void *)p + d);
}

ATTENTION_INLINE struct v16 kv_n(enum kv_type type, const uint8_t *p, size_t d, uint32_t n)
{
	if (type == KV_F32)
		return v16_load_n((const float *)(const void *)p + d, n);
	return v16_load_f16_n((const uint16_t *)(const void *)p + d, n);
}

/* The scales of one block of the 16 vectors of a turn. */
ATTENTION_INLINE struct v16 kv_scales_16(enum kv_type type, const uint8_t *p)
{
	const uint16_t *scales = (const uint16_t *)(const void *)p;

	return type == KV_Q8_0 ? v16_load_f16(scales) : v16_load_bf16(scales);
}

/* Value d of 16 turned vectors of plain values at p. */
ATTENTION_INLINE struct v16 kv_turned_16(enum kv_type type, const uint8_t *p, size_t d)
{
	if (type == KV_F32)
		return v16_load((const float *)(const void *)p + d * KV_TURN);
	return v16_load_f16((const uint16_t *)(const void *)p + d * KV_TURN);
}

/* Stores a filled-up block as one of `some` values. */
static void store_block_q8(const float *x, uint32_t some, uint8_t *out)
{
	struct q8_block block;
	uint16_t d;

	op_quantise_q8(x, Q8_BLOCK, &block);
	d = half_of_float(block.d);
	memcpy(out, &d, KV_SCALE_BYTES);
	memcpy(out + KV_SCALE_BYTES, block.q, some);
}

/* The bits of the greatest |x| of a block. An infinity's bits are above any number's, a NaN's above
 * both. */
static inline uint32_t block_amax(const float *x)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < Q8_BLOCK; i++) {
		uint32_t bits = bits_of_float(x[i]) & 0x7fffffffu;

		most = bits > most ? bits : most;
	}
	return most;
}

/* q = x * by, as integers. */
static inline void block_integers(const float *x, float by, int16_t *q)
{
	for (uint32_t i = 0; i < Q8_BLOCK; i += 16)
		v16_store_i16(q + i, v16_mul(v16_load(x + i), v16_set1(by)));
}

static void store_block_q16(const float *x, uint32_t some, uint8_t *out)
{
	const float amax = float_of_bits(block_amax(x));
	uint32_t d = bits_of_float(amax / KV_Q16_MOST);
	int16_t q[Q8_BLOCK] = {0};

	if (!(amax < __builtin_inff())) {
		d = 0x7f800000u;
	} else if (amax < QUANTISE_LEAST) {
		d = 0;
	} else {
		d += d & 0xffffu ? 0x10000u - (d & 0xffffu) : 0;
		block_integers(x, 1.0f / float_of_bits(d), q);
	}
	d >>= 16;
	memcpy(out, &(uint16_t){(uint16_t)d}, KV_SCALE_BYTES);
	memcpy(out + KV_SCALE_BYTES, q, some * sizeof(*q));
}

static void store_blocks(const float *x, uint32_t n, enum kv_type type, uint8_t *out)
{
	for (uint32_t b = 0; b < kv_blocks(n); b++) {
		float block[Q8_BLOCK];
		const uint32_t some = pad_block(x, n, b, block);

		if (type == KV_Q8_0)
			store_block_q8(block, some, out);
		else
			store_block_q16(block, some, out);
		out += KV_SCALE_BYTES + some * kv_value_bytes(type);
	}
}

static void op_kv_store(const float *x, uint32_t n, enum kv_type type, void *out)
{
	uint16_t *half = out;
	uint32_t i = 0;

	if (type == KV_F32) {
		memcpy(out, x, n * sizeof(float));
		return;
	}
	if (kv_in_blocks(type)) {
		store_blocks(x, n, type, out);
		return;
	}
	assert(type == KV_F16);
	for (; i + 16 <= n; i += 16)
		v16_store_f16(half + i, v16_load(x + i));
	if (i < n)
		v16_store_f16_n(half + i, v16_load_n(x + i, n - i), n - i);
}

/* Copies n values of `bytes` bytes from `row`, to places `step` bytes apart. */
ATTENTION_INLINE void spread(const uint8_t *row, uint32_t n, size_t bytes, uint8_t *to, size_t step)
{
	for (uint32_t i = 0; i < n; i++)
		memcpy(to + i * step, row + i * bytes, bytes);
}

/* Copies one cell's block of `bytes` bytes to a lane of turned ones, by fours. */
static inline void spread_fours(const uint8_t *row, size_t bytes, uint8_t *to, uint32_t lane)
{
	for (size_t i = 0; i < bytes; i += 4) {
		const size_t left = bytes - i;

		if (left >= 4)
			memcpy(to + i * KV_TURN + (size_t)4 * lane, row + i, 4);
		else
			memcpy(to + i * KV_TURN + left * lane, row + i, left);
	}
}

/* Copies a stored vector of n values in blocks to its place among 16 cells, paired or turned. */
static void place_blocks(const uint8_t *row, uint32_t n, enum kv_type type, bool pairs,
	uint8_t *cells, uint32_t lane)
{
	const size_t value = kv_value_bytes(type);
	uint8_t *to = cells + (size_t)kv_blocks(n) * KV_TURN_SCALES_BYTES;

	for (uint32_t b = 0; b < kv_blocks(n); b++) {
		const uint32_t some = kv_block_values(n, b);

		memcpy(cells + b * KV_TURN_SCALES_BYTES + (size_t)lane * KV_SCALE_BYTES, row,
			KV_SCALE_BYTES);
		row += KV_SCALE_BYTES;
		if (pairs)
			spread(row, some, value,
				to + (lane / 2 * 2 * (size_t)some + lane % 2) * value, 2 * value);
		else
			spread_fours(row, some * value, to, lane);
		row += some * value;
		to += KV_TURN * some * value;
	}
}

static uint8_t *kv_turn_of(enum kv_type type, uint32_t n, void *cells, uint32_t cell)
{
	return (uint8_t *)cells + cell / KV_TURN * KV_TURN * kv_vector_bytes(type, n);
}

static void op_kv_store_turned(
	const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell)
{
	uint8_t *to = kv_turn_of(type, n, cells, cell);
	uint8_t row[LIMIT_HEAD_DIM * sizeof(float)];
	const size_t bytes = kv_value_bytes(type);

	op_kv_store(x, n, type, row);
	/* Each call has the size of a value as a constant, so that the copy needs no function call.
	 */
	if (kv_in_blocks(type))
		place_blocks(row, n, type, false, to, cell % KV_TURN);
	else if (type == KV_F32)
		spread(row, n, sizeof(float), to + cell % KV_TURN * bytes, KV_TURN * bytes);
	else
		spread(row, n, sizeof(uint16_t), to + cell % KV_TURN * bytes, KV_TURN * bytes);
}

static void op_kv_store_paired(
	const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell)
{
	uint8_t row[LIMIT_HEAD_DIM * sizeof(float)];

	assert(kv_in_blocks(type));
	op_kv_store(x, n, type, row);
	place_blocks(row, n, type, true, kv_turn_of(type, n, cells, cell), cell % KV_TURN);
}
