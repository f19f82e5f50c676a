/*
 * The keys of a chunk as scores take them, a cell in each lane: included by template_attention.h.
 *
 * Keys that lie turned (kernels.h) are used where they are when the chunk's cells lie in the order of its positions, as
 * those of a prompt and of accepted chains do. Otherwise, and where many rows share the work, they are first put into
 * float32 of the same form: picked from the turned ones, or turned from those that lie cell after cell.
 */
#pragma once

#include "kernels/cpu/template_kv.h"

/* Vectors of some cells: cell i's is at base + cells[i] * bytes. */
struct kv_view {
	const uint8_t *base;
	size_t bytes;
	const uint32_t *cells;
};

enum { CHUNK_TURNS = ATTENTION_CHUNK / KV_TURN };

/* A chunk's keys, KV_TURN positions together, each [k_dim][KV_TURN] of `type` or turned whole blocks of KV_Q8_0; none where
 * nobody attends. */
struct chunk_keys {
	const uint8_t *turned[CHUNK_TURNS];
	enum kv_type type;
};

static inline const uint8_t *kv_at(const struct kv_view *view, size_t i)
{
	return view->base + view->cells[i] * view->bytes;
}

/* Where a cell's vector lies turned, with those of its neighbours. */
static inline const uint8_t *kv_turned_at(const struct kv_view *view, uint32_t cell)
{
	return view->base + cell / KV_TURN * KV_TURN * view->bytes;
}

/* Values d.. of 16 cells, each in a lane: 32 of them by pairs of float16, else 16. */
ATTENTION_INLINE void turn_values(enum kv_type type, const struct kv_view *keys, const uint32_t *at,
	size_t d, size_t n, float *out)
{
	struct v16 a[16];

	if (type == KV_F16 && n == 32) {
		for (uint32_t c = 0; c < 16; c++)
			a[c] = v16_load((const float *)(const void *)(kv_at(keys, at[c]) + 2 * d));
		v16_transpose(a);
		for (uint32_t i = 0; i < 16; i++) {
			v16_store(out + (size_t)2 * i * KV_TURN, v16_first_half(a[i]));
			v16_store(out + (size_t)(2 * i + 1) * KV_TURN, v16_second_half(a[i]));
		}
		return;
	}
	for (uint32_t c = 0; c < 16; c++)
		a[c] = n == 16 ? kv_16(type, kv_at(keys, at[c]), d)
			       : kv_n(type, kv_at(keys, at[c]), d, (uint32_t)n);
	v16_transpose(a);
	for (uint32_t i = 0; i < n; i++)
		v16_store(out + (size_t)i * KV_TURN, a[i]);
}

/* Keys that lie cell after cell: those of the view's entries at[0..15]. */
ATTENTION_INLINE void turn_keys(enum kv_type type, const struct kv_view *keys, const uint32_t *at,
	uint32_t k_dim, float *out)
{
	size_t d = 0;

	for (; type == KV_F16 && d + 32 <= k_dim; d += 32)
		turn_values(type, keys, at, d, 32, out + d * KV_TURN);
	for (; d + 16 <= k_dim; d += 16)
		turn_values(type, keys, at, d, 16, out + d * KV_TURN);
	if (d < k_dim)
		turn_values(type, keys, at, d, k_dim - d, out + d * KV_TURN);
}

/* Turned keys, all 16 as they lie. */
ATTENTION_INLINE void widen_keys(enum kv_type type, const uint8_t *from, uint32_t k_dim, float *out)
{
	for (uint32_t d = 0; d < k_dim; d++, out += KV_TURN)
		v16_store(out, kv_turned_16(type, from, d));
}

/* Lanes of turned keys: lane i of `out` is lane lanes[i] of `from`, or what it was where there is no such lane. */
ATTENTION_INLINE void pick_lanes(
	enum kv_type type, const uint8_t *from, const uint32_t *lanes, uint32_t k_dim, float *out)
{
	for (uint32_t d = 0; d < k_dim; d++, out += KV_TURN)
		v16_store(out, v16_pick(kv_turned_16(type, from, d), lanes, v16_load(out)));
}

/* Turned keys of any cells: those of the view's entries at[0..15], from each place that has some of them. */
ATTENTION_INLINE void pick_keys(enum kv_type type, const struct kv_view *keys, const uint32_t *at,
	uint32_t k_dim, float *out)
{
	uint32_t left = 0xffff;

	while (left) {
		uint32_t from = keys->cells[at[__builtin_ctz(left)]], lanes[KV_TURN];

		for (uint32_t i = 0; i < KV_TURN; i++) {
			uint32_t cell = keys->cells[at[i]];
			bool here = cell / KV_TURN == from / KV_TURN;

			lanes[i] = here ? cell % KV_TURN : KV_TURN;
			left &= ~((uint32_t)here << i);
		}
		pick_lanes(type, kv_turned_at(keys, from), lanes, k_dim, out);
	}
}

/* Whether the cells of positions first..last-1, of one 16 of a chunk, lie as the positions do. */
static bool in_order(const struct kv_view *keys, uint32_t first, uint32_t last)
{
	const uint32_t start = keys->cells[first] - first % KV_TURN;
	uint32_t other = start % KV_TURN;

	for (uint32_t i = first; i < last; i++)
		other |= keys->cells[i] ^ (start + i % KV_TURN);
	return other == 0;
}

/* Which of a view's entries the lanes of positions i..i+15 take: their own, or another's of first..last-1. */
static inline void lanes_at(uint32_t i, uint32_t first, uint32_t last, uint32_t *at)
{
	for (uint32_t c = 0; c < KV_TURN; c++) {
		at[c] = i + c < first ? first : i + c;
		at[c] = at[c] < last ? at[c] : last - 1;
	}
}

/* Positions first..last-1 of a chunk into `out`, [CHUNK_TURNS][k_dim][KV_TURN]. Lanes without a cell get another's key, and
 * their scores are not used. */
ATTENTION_INLINE void put_keys(enum kv_type type, bool turned, const struct kv_view *keys,
	uint32_t first, uint32_t last, uint32_t k_dim, float *out)
{
	for (uint32_t i = first / KV_TURN * KV_TURN; i < last; i += KV_TURN) {
		float *to = out + (size_t)i * k_dim;
		uint32_t from = i < first ? first : i, at[KV_TURN];
		uint32_t end = last < i + KV_TURN ? last : i + KV_TURN;

		lanes_at(i, first, last, at);
		if (!turned)
			turn_keys(type, keys, at, k_dim, to);
		else if (in_order(keys, from, end))
			widen_keys(type, kv_turned_at(keys, keys->cells[from]), k_dim, to);
		else
			pick_keys(type, keys, at, k_dim, to);
	}
}

/* Blocks of a key of KV_Q8_0, the last one filled up. */
static inline uint32_t key_blocks(uint32_t k_dim)
{
	return (k_dim + Q8_BLOCK - 1) / Q8_BLOCK;
}

/* One block of `some` values of one key, whose fours lie `step` bytes apart and are a lane's there, to that of a lane of
 * turned ones, filled up with zeros. */
static inline void copy_block(const uint8_t *scale, const uint8_t *fours, size_t lane_at,
	size_t step, uint32_t some, uint8_t *out, uint32_t lane)
{
	memcpy(out + lane * sizeof(uint16_t), scale, sizeof(uint16_t));
	out += KV_TURN * sizeof(uint16_t) + (size_t)4 * lane;
	for (uint32_t i = 0; i < Q8_BLOCK; i += 4, fours += step, out += (size_t)4 * KV_TURN) {
		uint32_t left = some > i ? some - i : 0;

		if (left >= 4) {
			memcpy(out, fours + 4 * lane_at, 4);
		} else {
			memset(out, 0, 4);
			if (left)
				memcpy(out, fours + left * lane_at, left);
		}
	}
}

/* As put_keys, but in their own form: [CHUNK_TURNS][key_blocks] of turned whole blocks. */
static void put_q8_keys(bool turned, const struct kv_view *keys, uint32_t first, uint32_t last,
	uint32_t k_dim, uint8_t *out)
{
	const size_t block = (size_t)KV_TURN * KV_BLOCK_BYTES;

	for (uint32_t i = first / KV_TURN * KV_TURN; i < last; i += KV_TURN) {
		uint8_t *to = out + i / KV_TURN * key_blocks(k_dim) * block;
		uint32_t at[KV_TURN];

		lanes_at(i, first, last, at);
		for (uint32_t c = 0; c < KV_TURN; c++) {
			uint32_t cell = keys->cells[at[c]], lane = cell % KV_TURN;
			const uint8_t *row = kv_at(keys, at[c]), *all = kv_turned_at(keys, cell);

			for (uint32_t d = 0; d < k_dim; d += Q8_BLOCK) {
				uint32_t some = k_dim - d < Q8_BLOCK ? k_dim - d : Q8_BLOCK;
				const uint8_t *p = turned ? all + d / Q8_BLOCK * block
							  : row + d / Q8_BLOCK * KV_BLOCK_BYTES;

				if (turned)
					copy_block(p + lane * sizeof(uint16_t),
						p + KV_TURN * sizeof(uint16_t), lane, 4 * KV_TURN,
						some, to + d / Q8_BLOCK * block, c);
				else
					copy_block(p, p + sizeof(uint16_t), 0, 4, some,
						to + d / Q8_BLOCK * block, c);
			}
		}
	}
}
