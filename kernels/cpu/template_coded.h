/*
 * Unpacking of NVFP4 and of the types with three bits a weight or fewer, from blocks to runs, for
 * both layouts. The runs lie in the first-level cache, where template_runs.h multiplies them:
 * finding eight weights by an index takes longer than reading them back. blocks_coded.c reads the
 * same layouts one weight at a time, and says where each bit lies. Include after lanes_*.h.
 */
#pragma once

#include "kernels/cpu/grids.h"
#include "kernels/cpu/template_scales.h"
#include "kernels/tiles.h"

/* A group of each lane's row. `tiles` is a constant where functions are inlined. */
struct coded {
	const uint8_t *p; /* the group in the first lane's row, or the group's planes */
	size_t row_bytes;
	uint32_t lane; /* in the planes: the first lane wanted */
	bool tiles;
};

/* Four bytes of each lane's group, from byte `at` on, which is a unit of a field with units of four
 * bytes. */
ALWAYS_INLINE ilanes coded_32(const struct coded *c, uint32_t at)
{
	if (c->tiles)
		return lanes_32(c->p + (size_t)at * TILE_LANES + (size_t)c->lane * 4);
	return load_dwords(c->p + at, c->row_bytes);
}

/* A float16 at the beginning of a block, or at its end after at least two bytes. */
ALWAYS_INLINE flanes coded_half(const struct coded *c, uint32_t at)
{
	if (c->tiles)
		return lanes_half(c->p + (size_t)at * TILE_LANES + (size_t)c->lane * 2);
	if (at == 0)
		return f_of_half(load_dwords(c->p, c->row_bytes));
	return f_of_half(i_right(load_dwords(c->p + at - 2, c->row_bytes), 16));
}

/* Looks up the codes of the eight weights of an entry. */
ALWAYS_INLINE void find_eight(const uint32_t *grid, ilanes index, ilanes w[2])
{
	ilanes entry = i_gather(grid, index);

	w[0] = low_nibbles(entry);
	w[1] = high_nibbles(entry);
}

ALWAYS_INLINE void sign_all(ilanes signs, const int8_t table[16], ilanes w[8])
{
	add_one_bits(signs, 8, w);
	look_up_all(table, w);
}

ALWAYS_INLINE flanes times_odd(flanes d, ilanes scale, int mask)
{
	return f_mul(d, f_of_i(odd_of(scale, mask)));
}

ALWAYS_INLINE void set_odd_scales(flanes d, ilanes scales, uint32_t bits, struct lanes_run *out)
{
	const int mask = (1 << bits) - 1;

	out->d = d;
	out->c.c[0] = odd_of(scales, mask);
	out->c.c[1] = odd_of(i_right(scales, bits), mask);
}

ALWAYS_INLINE void coded_iq2_xxs(const struct coded *c, uint32_t n, struct group *out)
{
	const flanes d = f_mul(coded_half(c, 0), f_set1(0.125f));

	for (uint32_t r = 0; r < n; r++) {
		ilanes index = coded_32(c, 2 + 8 * r), fields = coded_32(c, 6 + 8 * r);
		struct lanes_run *run = out->run + r;

		run->d = times_odd(d, i_right(fields, 28), 15);
#pragma GCC unroll 4
		for (uint32_t i = 0; i < 4; i++)
			find_eight(kernels_grid_iq2_xxs, byte_of(index, i), run->w + 2 * i);
		sign_all(sevens_signs(fields), iq2_biased, run->w);
	}
}

ALWAYS_INLINE void coded_iq2_xs(const struct coded *c, uint32_t n, struct group *out)
{
	const flanes d = f_mul(coded_half(c, 0), f_set1(0.125f));
	const ilanes nine = i_set1(511);

	for (uint32_t r = 0; r < n; r++) {
		ilanes first = coded_32(c, 2 + 8 * r), last = coded_32(c, 6 + 8 * r);
		ilanes scales = i_right(coded_32(c, 66 + r / 4 * 4), 8 * (r % 4)), fields;
		struct lanes_run *run = out->run + r;

		set_odd_scales(d, scales, 4, run);
		find_eight(kernels_grid_iq2_xs, i_and(first, nine), run->w);
		find_eight(kernels_grid_iq2_xs, i_and(i_right(first, 16), nine), run->w + 2);
		find_eight(kernels_grid_iq2_xs, i_and(last, nine), run->w + 4);
		find_eight(kernels_grid_iq2_xs, i_and(i_right(last, 16), nine), run->w + 6);
		fields = i_or(
			i_right(i_and(first, i_set1(0xfe00)), 9), i_left(i_right(first, 25), 7));
		fields = i_or(fields, i_left(i_and(last, i_set1(0xfe00)), 5));
		fields = i_or(fields, i_left(i_right(last, 25), 21));
		sign_all(sevens_signs(fields), iq2_biased, run->w);
	}
}

/* Joins an index from its low byte and its upper bits, which begin at bit `from` of each lane of
 * `high`. */
ALWAYS_INLINE ilanes index_of(ilanes low, uint32_t i, ilanes high, uint32_t from, int mask)
{
	return i_or(byte_of(low, i), i_left(i_and(i_right(high, from), i_set1(mask)), 8));
}

ALWAYS_INLINE void coded_iq2_s(const struct coded *c, uint32_t n, struct group *out)
{
	const flanes d = f_mul(coded_half(c, 0), f_set1(0.125f));

	for (uint32_t r = 0; r < n; r++) {
		ilanes index = coded_32(c, 2 + 4 * r);
		ilanes high = i_right(coded_32(c, 66 + r / 4 * 4), 8 * (r % 4));
		ilanes scales = i_right(coded_32(c, 74 + r / 4 * 4), 8 * (r % 4));
		struct lanes_run *run = out->run + r;

		set_odd_scales(d, scales, 4, run);
#pragma GCC unroll 4
		for (uint32_t i = 0; i < 4; i++)
			find_eight(kernels_grid_iq2_s, index_of(index, i, high, 2 * i, 3),
				run->w + 2 * i);
		sign_all(coded_32(c, 34 + 4 * r), iq2_biased, run->w);
	}
}

ALWAYS_INLINE void coded_iq3_xxs(const struct coded *c, uint32_t n, struct group *out)
{
	const flanes d = f_mul(coded_half(c, 0), f_set1(0.25f));

	for (uint32_t r = 0; r < n; r++) {
		ilanes index[2] = {coded_32(c, 2 + 8 * r), coded_32(c, 6 + 8 * r)};
		ilanes fields = coded_32(c, 66 + 4 * r);
		struct lanes_run *run = out->run + r;

		run->d = times_odd(d, i_right(fields, 28), 15);
#pragma GCC unroll 8
		for (uint32_t i = 0; i < 8; i++)
			run->w[i] = i_gather(kernels_grid_iq3_xxs, byte_of(index[i / 4], i % 4));
		sign_all(sevens_signs(fields), iq3_xxs_biased, run->w);
	}
}

ALWAYS_INLINE void coded_iq3_s(const struct coded *c, uint32_t n, struct group *out)
{
	const flanes d = coded_half(c, 0);
	const ilanes scales = coded_32(c, 106);

	for (uint32_t r = 0; r < n; r++) {
		ilanes index[2] = {coded_32(c, 2 + 8 * r), coded_32(c, 6 + 8 * r)};
		ilanes high = i_right(coded_32(c, 66 + r / 4 * 4), 8 * (r % 4));
		struct lanes_run *run = out->run + r;

		run->d = times_odd(d, i_right(scales, 4 * r), 15);
#pragma GCC unroll 8
		for (uint32_t i = 0; i < 8; i++)
			run->w[i] = i_gather(
				kernels_grid_iq3_s, index_of(index[i / 4], i % 4, high, i, 1));
		sign_all(coded_32(c, 74 + 4 * r), iq3_s_biased, run->w);
	}
}

/* Sets bit 3 of all codes of an entry to the top bit of each lane. */
ALWAYS_INLINE void shift_eight(ilanes bit, ilanes w[2])
{
	const ilanes shift = i_and(i_right_signed(bit, 31), i_set1_8(8));

	w[0] = i_or(w[0], shift);
	w[1] = i_or(w[1], shift);
}

ALWAYS_INLINE void coded_iq1_s(const struct coded *c, uint32_t n, struct group *out)
{
	const flanes d = f_mul(coded_half(c, 0), f_set1(0.125f));

	for (uint32_t r = 0; r < n; r++) {
		ilanes index = coded_32(c, 2 + 4 * r);
		ilanes word = i_right(coded_32(c, 34 + r / 2 * 4), 16 * (r % 2));
		struct lanes_run *run = out->run + r;

		run->d = times_odd(d, i_right(word, 12), 7);
#pragma GCC unroll 4
		for (uint32_t i = 0; i < 4; i++) {
			find_eight(kernels_grid_iq1_s, index_of(index, i, word, 3 * i, 7),
				run->w + 2 * i);
			shift_eight(i_left(word, 16), run->w + 2 * i);
		}
		look_up_all(iq1_biased, run->w);
	}
}

ALWAYS_INLINE void coded_iq1_m(const struct coded *c, uint32_t n, struct group *out)
{
	const ilanes four = i_set1(15), scales[2] = {coded_32(c, 48), coded_32(c, 52)};
	ilanes bits = i_and(i_right(scales[0], 12), four);
	flanes d;

	bits = i_or(bits, i_left(i_right(scales[0], 28), 4));
	bits = i_or(bits, i_left(i_and(i_right(scales[1], 12), four), 8));
	bits = i_or(bits, i_left(i_right(scales[1], 28), 12));
	d = f_mul(f_of_half(bits), f_set1(0.125f));
	for (uint32_t r = 0; r < n; r++) {
		ilanes index = coded_32(c, 4 * r);
		ilanes nibbles = i_right(coded_32(c, 32 + r / 2 * 4), 16 * (r % 2));
		struct lanes_run *run = out->run + r;

		set_odd_scales(d, i_right(scales[r / 4], 16 * (r / 2 % 2) + 6 * (r % 2)), 3, run);
#pragma GCC unroll 4
		for (uint32_t i = 0; i < 4; i++) {
			find_eight(kernels_grid_iq1_s, index_of(index, i, nibbles, 4 * i, 7),
				run->w + 2 * i);
			shift_eight(i_left(nibbles, 28 - 4 * i), run->w + 2 * i);
		}
		look_up_all(iq1_biased, run->w);
	}
}

/* Removes the first base-three digit of each byte and returns it. */
ALWAYS_INLINE ilanes take_digits(ilanes *bytes)
{
	const ilanes digits = first_digits(*bytes);

	/* Three times each byte, modulo 256. */
	*bytes = i_add_8(*bytes, i_add_8(*bytes, *bytes));
	return digits;
}

ALWAYS_INLINE void coded_tq1_0(const struct coded *c, uint32_t n, struct group *out)
{
	const flanes d = coded_half(c, 52);

	(void)n;
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++) {
		ilanes bytes = coded_32(c, 4 * k);

#pragma GCC unroll 5
		for (uint32_t r = 0; r < 5; r++)
			out->run[r].w[k] = take_digits(&bytes);
	}
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		ilanes bytes = coded_32(c, 32 + 4 * k);

#pragma GCC unroll 5
		for (uint32_t half = 0; half < 5; half++)
			out->run[5 + half / 2].w[half % 2 * 4 + k] = take_digits(&bytes);
	}
	{
		ilanes bytes = coded_32(c, 48);

#pragma GCC unroll 4
		for (uint32_t k = 4; k < 8; k++)
			out->run[7].w[k] = take_digits(&bytes);
	}
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		out->run[r].d = d;
		raise_all(1, out->run[r].w);
	}
}

ALWAYS_INLINE void coded_tq2_0(const struct coded *c, uint32_t n, struct group *out)
{
	const flanes d = coded_half(c, 64);

	(void)n;
	for (uint32_t half = 0; half < 2; half++)
#pragma GCC unroll 8
		for (uint32_t k = 0; k < 8; k++) {
			ilanes pairs = coded_32(c, 32 * half + 4 * k);

#pragma GCC unroll 4
			for (uint32_t part = 0; part < 4; part++)
				out->run[4 * half + part].w[k] = move_bits(pairs, 3, 2 * part, 0);
		}
	for (uint32_t r = 0; r < GROUP_RUNS; r++) {
		out->run[r].d = d;
		raise_all(1, out->run[r].w);
	}
}

ALWAYS_INLINE void coded_nvfp4(const struct coded *c, uint32_t n, struct group *out)
{
	for (uint32_t r = 0; r < n; r++) {
		const uint32_t block = r / 2 * 36, codes = block + 4 + r % 2 * 16;
		ilanes scales = i_right(coded_32(c, block), 16 * (r % 2));
		struct lanes_run *run = out->run + r;

		run->d = nvfp4_scales(byte_of(scales, 0));
		run->m = nvfp4_scales(byte_of(scales, 1));
#pragma GCC unroll 4
		for (uint32_t i = 0; i < 4; i++) {
			ilanes both = coded_32(c, codes + 4 * i);

			run->w[i / 2 * 4 + i % 2] = low_nibbles(both);
			run->w[i / 2 * 4 + 2 + i % 2] = high_nibbles(both);
		}
		look_up_all(fp4_biased, run->w);
	}
}

/* Defines the two unpacking functions of a type. */
#define CODED(type)                                                                \
	static void unpack_##type(                                                 \
		const uint8_t *p, size_t row_bytes, uint32_t n, struct group *out) \
	{                                                                          \
		const struct coded c = {.p = p, .row_bytes = row_bytes};           \
                                                                                   \
		coded_##type(&c, n, out);                                          \
	}                                                                          \
	static void unpack_tiles_##type(                                           \
		const uint8_t *p, uint32_t lane, uint32_t n, struct group *out)    \
	{                                                                          \
		const struct coded c = {.p = p, .lane = lane, .tiles = true};      \
                                                                                   \
		coded_##type(&c, n, out);                                          \
	}
CODED(iq1_s)
CODED(iq1_m)
CODED(iq2_xxs)
CODED(iq2_xs)
CODED(iq2_s)
CODED(iq3_xxs)
CODED(iq3_s)
CODED(tq1_0)
CODED(tq2_0)
CODED(nvfp4)
