/*
 * Brings the keys of a chunk into the form that scores need, a cell in each lane, and values in
 * blocks into the form that weights need. template_attention.h includes this.
 *
 * Keys that lie turned (kv_format.h) are used in place when the chunk's cells lie in the order of
 * its positions, as the keys of a prompt and of accepted chains do. Otherwise, and where many rows
 * share the work, they are first copied to float32 in the same form: picked from turned keys, or
 * turned from keys that lie cell after cell. Vectors in blocks are copied as blocks, and so are
 * their values.
 */
#pragma once

#include "kernels/cpu/template_kv.h"

/* Vectors of some cells: entry i's is at base + cells[i] * bytes. */
struct kv_view {
	const uint8_t *base;
	size_t bytes;
	const uint32_t *cells;
};

enum { CHUNK_TURNS = ATTENTION_CHUNK / KV_TURN };

/* A chunk's keys or values, KV_TURN positions together; unset where no query attends. Keys:
 * [dim][KV_TURN] of `type`, or turned whole blocks. Values: paired whole blocks. */
struct chunk_turns {
	const uint8_t *at[CHUNK_TURNS];
	enum kv_type type;
};

/* Bytes of 16 vectors of whole blocks. */
ATTENTION_INLINE size_t kv_turn_bytes(enum kv_type type, uint32_t n_blocks)
{
	return n_blocks * (KV_TURN_SCALES_BYTES + kv_turn_block_bytes(type));
}

static inline const uint8_t *kv_at(const struct kv_view *view, size_t i)
{
	return view->base + view->cells[i] * view->bytes;
}

/* Where the turn of a cell begins, which holds the cell and its neighbours. */
static inline const uint8_t *kv_turn_at(const struct kv_view *view, uint32_t cell)
{
	return view->base + cell / KV_TURN * KV_TURN * view->bytes;
}

/* Transposes values d.. of 16 cells, so that each cell has a lane: 32 values, as pairs of float16,
 * or 16. */
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

/* Turns keys that lie cell after cell: entries at[0..15] of the view. */
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

/* Widens all 16 turned keys in their order. */
ATTENTION_INLINE void widen_keys(enum kv_type type, const uint8_t *from, uint32_t k_dim, float *out)
{
	for (uint32_t d = 0; d < k_dim; d++, out += KV_TURN)
		v16_store(out, kv_turned_16(type, from, d));
}

/* Lane i of `out` becomes lane lanes[i] of the turned keys at `from`; it stays as it is where there
 * is no such lane. */
ATTENTION_INLINE void pick_lanes(
	enum kv_type type, const uint8_t *from, const uint32_t *lanes, uint32_t k_dim, float *out)
{
	for (uint32_t d = 0; d < k_dim; d++, out += KV_TURN)
		v16_store(out, v16_pick(kv_turned_16(type, from, d), lanes, v16_load(out)));
}

/* Collects the turned keys of any cells, entries at[0..15] of the view, from each turn that holds
 * some of them. */
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
		pick_lanes(type, kv_turn_at(keys, from), lanes, k_dim, out);
	}
}

/* True when the cells of positions first..last-1, within one turn of a chunk, lie in the order of
 * the positions. */
static bool in_order(const struct kv_view *keys, uint32_t first, uint32_t last)
{
	const uint32_t start = keys->cells[first] - first % KV_TURN;
	uint32_t other = start % KV_TURN;

	for (uint32_t i = first; i < last; i++)
		other |= keys->cells[i] ^ (start + i % KV_TURN);
	return other == 0;
}

/* Sets where the turns of entries first..last-1 lie, if the cells of each turn lie in the order of
 * their positions; otherwise false. */
static bool turns_there(const struct kv_view *view, uint32_t first, uint32_t last,
	enum kv_type type, struct chunk_turns *out)
{
	out->type = type;
	for (uint32_t i = first; i < last; i = (i / KV_TURN + 1) * KV_TURN) {
		uint32_t end = (i / KV_TURN + 1) * KV_TURN;

		if (!in_order(view, i, end < last ? end : last))
			return false;
		out->at[i / KV_TURN] = kv_turn_at(view, view->cells[i]);
	}
	return true;
}

/* Points to copied turns of `bytes` bytes each, one after the other. */
static void turns_from(const float *copy, size_t bytes, enum kv_type type, struct chunk_turns *out)
{
	out->type = type;
	for (uint32_t i = 0; i < CHUNK_TURNS; i++)
		out->at[i] = (const uint8_t *)copy + i * bytes;
}

/* Chooses the view's entries for the lanes of positions i..i+15: their own, or for lanes outside
 * first..last-1 some entry inside. */
static inline void lanes_at(uint32_t i, uint32_t first, uint32_t last, uint32_t *at)
{
	for (uint32_t c = 0; c < KV_TURN; c++) {
		at[c] = i + c < first ? first : i + c;
		at[c] = at[c] < last ? at[c] : last - 1;
	}
}

/* Copies positions first..last-1 of a chunk to `out`, [CHUNK_TURNS][k_dim][KV_TURN]. Lanes without
 * a cell get another cell's key; their scores are not used. */
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
			widen_keys(type, kv_turn_at(keys, keys->cells[from]), k_dim, to);
		else
			pick_keys(type, keys, at, k_dim, to);
	}
}

/* One cell's block: its scale, and its first integer, or that of the 16 cells with which it lies
 * together. */
struct cell_block {
	const uint8_t *scale, *units;
};

/* Block b of the view's entry i, for vectors that lie separately. */
static inline struct cell_block block_alone(
	enum kv_type type, const struct kv_view *view, size_t i, uint32_t b)
{
	const uint8_t *p = kv_at(view, i) + b * (KV_SCALE_BYTES + kv_block_bytes(type));

	return (struct cell_block){p, p + KV_SCALE_BYTES};
}

/* The same for vectors of n values that lie together. */
static inline struct cell_block block_together(
	enum kv_type type, const struct kv_view *view, uint32_t n, size_t i, uint32_t b)
{
	const uint8_t *p = kv_turn_at(view, view->cells[i]);

	return (struct cell_block){
		p + b * KV_TURN_SCALES_BYTES + view->cells[i] % KV_TURN * KV_SCALE_BYTES,
		p + kv_blocks(n) * KV_TURN_SCALES_BYTES + b * kv_turn_block_bytes(type)};
}

/* Copies `bytes` bytes of one key's block to a lane of turned ones, by fours, and fills up with
 * zeros. The fours lie `step` bytes apart, in lane `from`. */
static inline void copy_fours(const uint8_t *units, size_t step, uint32_t from, size_t bytes,
	size_t all, uint8_t *out, uint32_t lane)
{
	out += (size_t)4 * lane;
	for (size_t i = 0; i < all; i += 4, units += step, out += (size_t)4 * KV_TURN) {
		const size_t left = bytes > i ? bytes - i : 0;

		if (left >= 4) {
			memcpy(out, units + (size_t)4 * from, 4);
		} else {
			memset(out, 0, 4);
			if (left)
				memcpy(out, units + left * from, left);
		}
	}
}

/* Turns a whole block of 16 keys that lie separately: its units are moved as if they were float32.
 */
ATTENTION_INLINE void turn_block(
	enum kv_type type, const struct kv_view *keys, const uint32_t *at, uint32_t b, uint8_t *out)
{
	const uint32_t units = (uint32_t)kv_block_bytes(type) / 4;
	struct v16 a[KV_TURN];

	for (uint32_t c = 0; c < KV_TURN; c++) {
		const float *p =
			(const float *)(const void *)block_alone(type, keys, at[c], b).units;

		a[c] = units == 16 ? v16_load(p) : v16_load_n(p, units);
	}
	v16_transpose(a);
	for (uint32_t i = 0; i < units; i++)
		v16_store((float *)(void *)out + (size_t)i * KV_TURN, a[i]);
}

/* Like put_keys, in the stored form: [CHUNK_TURNS] of turned whole blocks. */
ATTENTION_INLINE void put_block_keys(enum kv_type type, bool turned, const struct kv_view *keys,
	uint32_t first, uint32_t last, uint32_t k_dim, uint8_t *out)
{
	const uint32_t n_blocks = kv_blocks(k_dim);
	const size_t value = kv_value_bytes(type);

	for (uint32_t i = first / KV_TURN * KV_TURN; i < last; i += KV_TURN) {
		uint8_t *to = out + i / KV_TURN * kv_turn_bytes(type, n_blocks);
		uint8_t *units = to + n_blocks * KV_TURN_SCALES_BYTES;
		uint32_t at[KV_TURN];

		lanes_at(i, first, last, at);
		for (uint32_t b = 0; b < n_blocks; b++, units += kv_turn_block_bytes(type)) {
			const uint32_t some = kv_block_values(k_dim, b);
			const bool whole = !turned && some == Q8_BLOCK;

			if (whole)
				turn_block(type, keys, at, b, units);
			for (uint32_t c = 0; c < KV_TURN; c++) {
				struct cell_block from =
					turned ? block_together(type, keys, k_dim, at[c], b)
					       : block_alone(type, keys, at[c], b);

				memcpy(to + b * KV_TURN_SCALES_BYTES + c * KV_SCALE_BYTES,
					from.scale, KV_SCALE_BYTES);
				if (!whole)
					copy_fours(from.units, turned ? (size_t)4 * KV_TURN : 4,
						turned ? keys->cells[at[c]] % KV_TURN : 0,
						some * value, kv_block_bytes(type), units, c);
			}
		}
	}
}

/* Interleaves two cells' blocks of `some` values, which lie `step` bytes apart, and fills up with
 * zeros. */
ATTENTION_INLINE void pair_up(const uint8_t *a, const uint8_t *b, size_t step, uint32_t some,
	const size_t value, uint8_t *out)
{
	for (uint32_t i = 0; i < some; i++) {
		memcpy(out + 2 * i * value, a + i * step, value);
		memcpy(out + (2 * i + 1) * value, b + i * step, value);
	}
	memset(out + 2 * some * value, 0, 2 * (Q8_BLOCK - some) * value);
}

/* A cell's block of `some` values, from paired values. */
static inline struct cell_block block_paired(enum kv_type type, const struct kv_view *values,
	uint32_t v_dim, size_t i, uint32_t b, uint32_t some)
{
	const size_t value = kv_value_bytes(type), lane = values->cells[i] % KV_TURN;
	struct cell_block block = block_together(type, values, v_dim, i, b);

	block.units += (lane / 2 * 2 * some + lane % 2) * value;
	return block;
}

/* Copies block b of entries at[0] and at[1]: their values as a pair, and their scales. */
ATTENTION_INLINE void put_pair(enum kv_type type, bool paired, const struct kv_view *values,
	uint32_t v_dim, const uint32_t *at, uint32_t b, uint8_t *pair, uint8_t *scales)
{
	const uint32_t some = kv_block_values(v_dim, b);
	const size_t value = kv_value_bytes(type);
	const uint8_t *units[2];

	for (uint32_t i = 0; i < 2; i++) {
		struct cell_block cell = paired ? block_paired(type, values, v_dim, at[i], b, some)
						: block_alone(type, values, at[i], b);

		units[i] = cell.units;
		memcpy(scales + i * KV_SCALE_BYTES, cell.scale, KV_SCALE_BYTES);
	}
	/* With constants the compiler unrolls its loop. */
	if (!paired && some == Q8_BLOCK)
		pair_up(units[0], units[1], value, Q8_BLOCK, value, pair);
	else
		pair_up(units[0], units[1], paired ? 2 * value : value, some, value, pair);
}

/* Copies the values of positions first..last-1 of a chunk: [CHUNK_TURNS] of paired whole blocks. */
ATTENTION_INLINE void put_block_values(enum kv_type type, bool paired, const struct kv_view *values,
	uint32_t first, uint32_t last, uint32_t v_dim, uint8_t *out)
{
	const uint32_t n_blocks = kv_blocks(v_dim);
	const size_t pair_bytes = 2 * kv_block_bytes(type);

	for (uint32_t i = first / KV_TURN * KV_TURN; i < last; i += KV_TURN) {
		uint8_t *scales = out + i / KV_TURN * kv_turn_bytes(type, n_blocks);
		uint8_t *pair = scales + n_blocks * KV_TURN_SCALES_BYTES;
		uint32_t at[KV_TURN];

		lanes_at(i, first, last, at);
		/* Pairs and scales each follow without gaps. */
		for (uint32_t b = 0; b < n_blocks; b++)
			for (uint32_t c = 0; c < KV_TURN; c += 2) {
				put_pair(type, paired, values, v_dim, at + c, b, pair, scales);
				pair += pair_bytes;
				scales += 2 * KV_SCALE_BYTES;
			}
	}
}
