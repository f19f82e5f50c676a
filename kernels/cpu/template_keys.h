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

/* A chunk's keys, KV_TURN positions together, each [k_dim][KV_TURN] of `type`; none where nobody attends. */
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
ATTENTION_INLINE void turn_values(enum kv_type type, const struct kv_view *keys,
	const uint32_t *at, size_t d, size_t n, float *out)
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
	for (uint32_t d = 0; d < k_dim;) {
		const uint32_t end = k_dim - d < Q8_BLOCK ? k_dim : d + Q8_BLOCK;
		struct v16 scales = v16_set1(0);

		if (type == KV_Q8_0)
			scales = kv_turned_scales(from, d);
		for (; d < end; d++)
			v16_store(out + (size_t)d * KV_TURN, kv_turned_16(type, from, d, scales));
	}
}

/* Lanes of turned keys: lane i of `out` is lane lanes[i] of `from`, or what it was where there is no such lane. */
ATTENTION_INLINE void pick_lanes(enum kv_type type, const uint8_t *from, const uint32_t *lanes,
	uint32_t k_dim, float *out)
{
	for (uint32_t d = 0; d < k_dim;) {
		const uint32_t end = k_dim - d < Q8_BLOCK ? k_dim : d + Q8_BLOCK;
		struct v16 scales = v16_set1(0);

		if (type == KV_Q8_0)
			scales = kv_turned_scales(from, d);
		for (; d < end; d++) {
			float *to = out + (size_t)d * KV_TURN;

			v16_store(to, v16_pick(kv_turned_16(type, from, d, scales), lanes,
					      v16_load(to)));
		}
	}
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

/* Positions first..last-1 of a chunk into `out`, [CHUNK_TURNS][k_dim][KV_TURN]. Lanes without a cell get another's key, and
 * their scores are not used. */
ATTENTION_INLINE void put_keys(enum kv_type type, bool turned, const struct kv_view *keys,
	uint32_t first, uint32_t last, uint32_t k_dim, float *out)
{
	for (uint32_t i = first / KV_TURN * KV_TURN; i < last; i += KV_TURN) {
		float *to = out + (size_t)i * k_dim;
		uint32_t from = i < first ? first : i, at[KV_TURN];
		uint32_t end = last < i + KV_TURN ? last : i + KV_TURN;

		for (uint32_t c = 0; c < KV_TURN; c++) {
			at[c] = i + c < first ? first : i + c;
			at[c] = at[c] < last ? at[c] : last - 1;
		}
		if (!turned)
			turn_keys(type, keys, at, k_dim, to);
		else if (in_order(keys, from, end))
			widen_keys(type, kv_turned_at(keys, keys->cells[from]), k_dim, to);
		else
			pick_keys(type, keys, at, k_dim, to);
	}
}
