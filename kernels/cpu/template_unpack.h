/*
 * From a file's blocks to runs: TILE_ROWS rows at once, a row per lane, for the types that have no tile of their own.
 * Included after lanes_*.h, and written once for all of them. blocks.c reads the same layouts, one weight at a time,
 * and says where each bit lies.
 */
#pragma once

#include "kernels/cpu/blocks.h"

/* A group: up to eight runs of 32 weights of every row, by the names of BLOCKS in kernels.h. */
#define GROUP_RUNS 8
struct group {
	ilanes w[GROUP_RUNS][8]; /* dword k: weights 4k..4k+3, bytes */
	flanes d[GROUP_RUNS], m[GROUP_RUNS];
	ilanes c[GROUP_RUNS][2]; /* factor_lanes() of c_0, c_1 */
	ilanes pair
		[GROUP_RUNS]; /* two 16-bit halves: e_0 and e_1, or c_0 and c_1 times the weights' offset */
};

/* Runs 0..n-1 from p on; types in blocks of 256 have n = 8. Sets what their kind of product reads. */
typedef void unpack_function(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out);

struct unpacker {
	unpack_function *unpack;
	uint32_t group_bytes; /* of eight runs */
	int16_t offset; /* what w is higher than q, where the product takes it off */
};

ALWAYS_INLINE ilanes low_nibbles(ilanes a)
{
	return i_and(a, i_set1_8(15));
}

ALWAYS_INLINE ilanes high_nibbles(ilanes a)
{
	return i_and(i_right(a, 4), i_set1_8(15));
}

/* a's bit `from` of every byte, as bit `to`. */
ALWAYS_INLINE ilanes move_bits(ilanes a, uint32_t mask, uint32_t from, uint32_t to)
{
	ilanes moved = from < to ? i_left(a, to - from) : i_right(a, from - to);

	return i_and(moved, i_set1_8((int)(mask << to)));
}

/* Byte i of every lane. */
ALWAYS_INLINE ilanes byte_of(ilanes a, uint32_t i)
{
	return i_and(i_right(a, 8 * i), i_set1(255));
}

ALWAYS_INLINE ilanes pair_of(ilanes first, ilanes last)
{
	return i_or(i_and(first, i_set1(0xffff)), i_left(last, 16));
}

/* 16 bytes a row: low nibbles weights 0..15, high nibbles 16..31. */
ALWAYS_INLINE void load_nibbles(const uint8_t *p, size_t row_bytes, ilanes w[8])
{
	ilanes t[4];

	load_16(p, row_bytes, t);
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		w[k] = low_nibbles(t[k]);
		w[4 + k] = high_nibbles(t[k]);
	}
}

/* Adds bit i of a lane as bit 4 of weight i: the product puts four bits, 7 apart, into four bytes. */
ALWAYS_INLINE void add_fifth_bits(ilanes bits, ilanes w[8])
{
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++) {
		ilanes four = i_and(i_right(bits, 4 * k), i_set1(15));

		four = i_and(i_mul(four, i_set1(0x02040810)), i_set1_8(16));
		w[k] = i_or(w[k], four);
	}
}

static void unpack_q5_0(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 22) {
		out->d[r] = f_of_half(load_dwords(p, row_bytes));
		load_nibbles(p + 6, row_bytes, out->w[r]);
		add_fifth_bits(load_dwords(p + 2, row_bytes), out->w[r]);
	}
}

static void unpack_q5_1(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 24) {
		ilanes scales = load_dwords(p, row_bytes);

		out->d[r] = f_of_half(scales);
		out->m[r] = f_of_half(i_right(scales, 16));
		load_nibbles(p + 8, row_bytes, out->w[r]);
		add_fifth_bits(load_dwords(p + 4, row_bytes), out->w[r]);
	}
}

ALWAYS_INLINE void look_up_all(const int8_t table[16], ilanes w[8])
{
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++)
		w[k] = i_look_up(table, w[k]);
}

#define MXFP4_OFFSET 12
static void unpack_mxfp4(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	static const int8_t table[16] = {MXFP4_TABLE(MXFP4_OFFSET)};

	for (uint32_t r = 0; r < n; r++, p += 17) {
		ilanes e = byte_of(load_dwords(p, row_bytes), 0), half = i_right(e, 1);
		ilanes other = i_sub(e, half), bias = i_set1(63);

		/* mxfp4_scale() */
		out->d[r] = f_mul(f_of_bits(i_left(i_add(half, bias), 23)),
			f_of_bits(i_left(i_add(other, bias), 23)));
		load_nibbles(p + 1, row_bytes, out->w[r]);
		look_up_all(table, out->w[r]);
	}
}

static const int8_t iq4_biased[16] = {IQ4_TABLE(IQ4_BIAS)};

static void unpack_iq4_nl(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++, p += 18) {
		out->d[r] = f_of_half(load_dwords(p, row_bytes));
		load_nibbles(p + 2, row_bytes, out->w[r]);
		look_up_all(iq4_biased, out->w[r]);
	}
}

static void unpack_iq4_xs(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	ilanes head = load_dwords(p, row_bytes), low = load_dwords(p + 4, row_bytes);
	flanes d = f_of_half(head);

	for (uint32_t r = 0; r < n; r++) {
		ilanes scale = i_and(i_right(low, 4 * r), i_set1(15));

		scale = i_or(scale, i_left(i_and(i_right(head, 16 + 2 * r), i_set1(3)), 4));
		out->d[r] = f_mul(d, f_of_i(i_sub(scale, i_set1(32))));
		load_nibbles(p + 8 + (size_t)16 * r, row_bytes, out->w[r]);
		look_up_all(iq4_biased, out->w[r]);
	}
}

/* d and m of the eight runs of Q4_K and Q5_K: the 16 bytes they begin with. */
ALWAYS_INLINE void unpack_scales_k(const uint8_t *p, size_t row_bytes, struct group *out)
{
	const ilanes six = i_set1_8(63), four = i_set1_8(15), top = i_set1_8(0x30);
	ilanes head[4], scales[2], minima[2];
	flanes d, less;

	load_16(p, row_bytes, head);
	d = f_of_half(head[0]);
	less = f_negate(f_of_half(i_right(head[0], 16)));
	scales[0] = i_and(head[1], six);
	minima[0] = i_and(head[2], six);
	scales[1] = i_or(i_and(head[3], four), i_and(i_right(head[1], 2), top));
	minima[1] = i_or(i_and(i_right(head[3], 4), four), i_and(i_right(head[2], 2), top));
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		out->d[r] = f_mul(d, f_of_i(byte_of(scales[r / 4], r % 4)));
		out->m[r] = f_mul(less, f_of_i(byte_of(minima[r / 4], r % 4)));
	}
}

static void unpack_q4_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	(void)n;
	unpack_scales_k(p, row_bytes, out);
	for (uint32_t r = 0; r < GROUP_RUNS; r += 2) {
		ilanes t[8];

		load_32(p + 16 + (size_t)16 * r, row_bytes, t);
#pragma GCC unroll 8
		for (uint32_t k = 0; k < 8; k++) {
			out->w[r][k] = low_nibbles(t[k]);
			out->w[r + 1][k] = high_nibbles(t[k]);
		}
	}
}

static void unpack_q5_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	ilanes high[8];

	(void)n;
	unpack_scales_k(p, row_bytes, out);
	load_32(p + 16, row_bytes, high);
#pragma GCC unroll 4
	for (uint32_t r = 0; r < GROUP_RUNS; r += 2) {
		ilanes t[8];

		load_32(p + 48 + (size_t)16 * r, row_bytes, t);
#pragma GCC unroll 8
		for (uint32_t k = 0; k < 8; k++) {
			out->w[r][k] = i_or(low_nibbles(t[k]), move_bits(high[k], 1, r, 4));
			out->w[r + 1][k] =
				i_or(high_nibbles(t[k]), move_bits(high[k], 1, r + 1, 4));
		}
	}
}

/* The factors c of a run, and the pair that takes the weights' offset, a power of two, off. */
ALWAYS_INLINE void set_factors(
	struct group *out, uint32_t r, ilanes first, ilanes last, uint32_t offset_bits)
{
	out->c[r][0] = factor_lanes(first);
	out->c[r][1] = factor_lanes(last);
	out->pair[r] = pair_of(i_left(first, offset_bits), i_left(last, offset_bits));
}

static void unpack_q6_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	flanes d = f_of_half(i_right(load_dwords(p + 206, row_bytes), 16));
	ilanes scales[4];

	(void)n;
	load_16(p + 192, row_bytes, scales);
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		ilanes both = i_right(scales[r / 2], 16 * (r % 2));

		out->d[r] = d;
		set_factors(out, r, i_right_signed(i_left(both, 24), 24),
			i_right_signed(i_left(both, 16), 24), 5);
	}
	for (uint32_t half = 0; half < 2; half++) {
		ilanes a[8], b[8], high[8], (*w)[8] = out->w + 4 * half;

		load_32(p + (size_t)64 * half, row_bytes, a);
		load_32(p + (size_t)64 * half + 32, row_bytes, b);
		load_32(p + 128 + (size_t)32 * half, row_bytes, high);
#pragma GCC unroll 8
		for (uint32_t k = 0; k < 8; k++) {
			w[0][k] = i_or(low_nibbles(a[k]), move_bits(high[k], 3, 0, 4));
			w[1][k] = i_or(low_nibbles(b[k]), move_bits(high[k], 3, 2, 4));
			w[2][k] = i_or(high_nibbles(a[k]), move_bits(high[k], 3, 4, 4));
			w[3][k] = i_or(high_nibbles(b[k]), move_bits(high[k], 3, 6, 4));
		}
	}
}

static void unpack_q2_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	ilanes ds = load_dwords(p + 80, row_bytes), scales[4];
	flanes d = f_of_half(ds), less = f_negate(f_of_half(i_right(ds, 16)));

	(void)n;
	load_16(p, row_bytes, scales);
#pragma GCC unroll 8
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		ilanes first = byte_of(scales[r / 2], 2 * (r % 2));
		ilanes last = byte_of(scales[r / 2], 2 * (r % 2) + 1);

		out->d[r] = d;
		out->m[r] = less;
		out->c[r][0] = factor_lanes(low_nibbles(first));
		out->c[r][1] = factor_lanes(low_nibbles(last));
		out->pair[r] = pair_of(i_right(first, 4), i_right(last, 4));
	}
	for (uint32_t half = 0; half < 2; half++) {
		ilanes t[8];

		load_32(p + 16 + (size_t)32 * half, row_bytes, t);
#pragma GCC unroll 4
		for (uint32_t part = 0; part < 4; part++)
#pragma GCC unroll 8
			for (uint32_t k = 0; k < 8; k++)
				out->w[4 * half + part][k] = move_bits(t[k], 3, 2 * part, 0);
	}
}

/* d and the factors of Q3_K. */
ALWAYS_INLINE void unpack_scales_q3_k(const uint8_t *p, size_t row_bytes, struct group *out)
{
	ilanes t[4], low[2], high;
	flanes d;

	/* The block ends 14 bytes after the scales begin: the load begins 2 before them. */
	load_16(p + 94, row_bytes, t);
	d = f_of_half(i_right(t[3], 16));
	low[0] = i_or(i_right(t[0], 16), i_left(t[1], 16));
	low[1] = i_or(i_right(t[1], 16), i_left(t[2], 16));
	high = i_or(i_right(t[2], 16), i_left(t[3], 16));
#pragma GCC unroll 4
	for (uint32_t four = 0; four < 4; four++) {
		ilanes bits = four < 2 ? low_nibbles(low[four % 2]) : high_nibbles(low[four % 2]);

		bits = i_or(bits, move_bits(high, 3, 2 * four, 4));
#pragma GCC unroll 2
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t r = 2 * four + i;

			out->d[r] = d;
			set_factors(out, r, i_sub(byte_of(bits, 2 * i), i_set1(32)),
				i_sub(byte_of(bits, 2 * i + 1), i_set1(32)), 2);
		}
	}
}

static void unpack_q3_k(const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out)
{
	ilanes high[8];

	(void)n;
	unpack_scales_q3_k(p, row_bytes, out);
	load_32(p, row_bytes, high);
#pragma GCC unroll 2
	for (uint32_t half = 0; half < 2; half++) {
		ilanes t[8];

		load_32(p + 32 + (size_t)32 * half, row_bytes, t);
#pragma GCC unroll 4
		for (uint32_t part = 0; part < 4; part++)
#pragma GCC unroll 8
			for (uint32_t k = 0; k < 8; k++)
				out->w[4 * half + part][k] = i_or(move_bits(t[k], 3, 2 * part, 0),
					move_bits(high[k], 1, 4 * half + part, 2));
	}
}
