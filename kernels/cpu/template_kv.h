/* Stored keys and values of attention, read as float32 and written: included after vec_*.h. */
#pragma once

#include "kernels/kernels.h"

#include <assert.h>

/* The types are constants where these are inlined, so that a chunk's loops hold one type's code. */
#define ATTENTION_INLINE static inline __attribute__((always_inline))

enum { KV_BLOCK_BYTES = 2 + Q8_BLOCK };

/* Bytes before value d of a stored vector, d % 16 == 0. */
ATTENTION_INLINE size_t kv_offset(enum kv_type type, size_t d)
{
	if (type == KV_Q8_0)
		return (d / Q8_BLOCK) * KV_BLOCK_BYTES + 2 + d % Q8_BLOCK;
	return d * (type == KV_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* Values d..d+15, or d..d+n-1 with zeros behind, of a stored vector; d % 16 == 0, so they are of one block. */
ATTENTION_INLINE struct v16 kv_16(enum kv_type type, const uint8_t *p, size_t d)
{
	if (type == KV_F32)
		return v16_load((const float *)(const void *)p + d);
	if (type == KV_F16)
		return v16_load_f16((const uint16_t *)(const void *)p + d);
	p += (d / Q8_BLOCK) * KV_BLOCK_BYTES;
	return v16_mul(v16_set1(v1_load_f16(p)), v16_load_i8(p + 2 + d % Q8_BLOCK));
}

ATTENTION_INLINE struct v16 kv_n(enum kv_type type, const uint8_t *p, size_t d, uint32_t n)
{
	if (type == KV_F32)
		return v16_load_n((const float *)(const void *)p + d, n);
	if (type == KV_F16)
		return v16_load_f16_n((const uint16_t *)(const void *)p + d, n);
	p += (d / Q8_BLOCK) * KV_BLOCK_BYTES;
	return v16_mul(v16_set1(v1_load_f16(p)), v16_load_i8_n(p + 2 + d % Q8_BLOCK, n));
}

/* Value d of 16 turned vectors of plain values at p. */
ATTENTION_INLINE struct v16 kv_turned_16(enum kv_type type, const uint8_t *p, size_t d)
{
	if (type == KV_F32)
		return v16_load((const float *)(const void *)p + d * KV_TURN);
	return v16_load_f16((const uint16_t *)(const void *)p + d * KV_TURN);
}

static void kv_store_q8(const float *x, uint32_t n, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += Q8_BLOCK) {
		uint32_t some = n - i < Q8_BLOCK ? n - i : Q8_BLOCK;
		float padded[Q8_BLOCK] = {0};
		struct q8_block block;
		uint16_t d;

		memcpy(padded, x + i, some * sizeof(float));
		op_quantise_q8(padded, Q8_BLOCK, &block);
		d = half_of_float(block.d);
		memcpy(out, &d, sizeof(d));
		memcpy(out + 2, block.q, some);
		out += 2 + some;
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
	if (type == KV_Q8_0) {
		kv_store_q8(x, n, out);
		return;
	}
	assert(type == KV_F16);
	for (; i + 16 <= n; i += 16)
		v16_store_f16(half + i, v16_load(x + i));
	if (i < n)
		v16_store_f16_n(half + i, v16_load_n(x + i, n - i), n - i);
}

/* Values d..d+some-1, of one block, as `type` stores them at `row`, to the vector of cell `lane` < KV_TURN. */
ATTENTION_INLINE void scatter(enum kv_type type, const uint8_t *row, size_t d, uint32_t some,
	uint8_t *cells, uint32_t lane)
{
	const size_t bytes = type == KV_F32 ? sizeof(float) : sizeof(uint16_t);

	cells += (d * KV_TURN + lane) * bytes;
	for (uint32_t i = 0; i < some; i++)
		memcpy(cells + i * KV_TURN * bytes, row + i * bytes, bytes);
}

/* The same of a block with its scale, fours of values together. */
static void scatter_q8(const uint8_t *row, size_t d, uint32_t some, uint8_t *cells, uint32_t lane)
{
	cells += d / Q8_BLOCK * KV_TURN * KV_BLOCK_BYTES;
	memcpy(cells + lane * sizeof(uint16_t), row, sizeof(uint16_t));
	cells += KV_TURN * sizeof(uint16_t);
	row += sizeof(uint16_t);
	for (uint32_t i = 0; i < some; i += 4, row += 4, cells += (size_t)4 * KV_TURN) {
		uint32_t left = some - i;

		if (left >= 4)
			memcpy(cells + (size_t)4 * lane, row, 4);
		else
			memcpy(cells + left * lane, row, left);
	}
}

static void op_kv_store_turned(
	const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell)
{
	uint8_t *to = (uint8_t *)cells + cell / KV_TURN * KV_TURN * kv_vector_bytes(type, n);
	uint8_t row[Q8_BLOCK * sizeof(float)];

	for (uint32_t d = 0; d < n; d += Q8_BLOCK) {
		uint32_t some = n - d < Q8_BLOCK ? n - d : Q8_BLOCK;

		op_kv_store(x + d, some, type, row);
		if (type == KV_F32)
			scatter(KV_F32, row, d, some, to, cell % KV_TURN);
		else if (type == KV_F16)
			scatter(KV_F16, row, d, some, to, cell % KV_TURN);
		else
			scatter_q8(row, d, some, to, cell % KV_TURN);
	}
}
