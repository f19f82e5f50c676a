/*
 * Runs of 32 weights (kernels/numerics.md, BLOCKS) as a thread of an MMA wants them: of one row, the
 * four weights from 4 t on and the four from 16 + 4 t on, t = lane % 4, with the run's scales. The
 * weights of a type are read from either layout through a source, which says where a row's fields
 * lie. kernels/cpu/blocks.c and blocks_coded.c read the same blocks one weight at a time, and say
 * where each bit lies.
 */
#pragma once

#include "simt.h"

#include "kernels/cpu/blocks.h"
#include "kernels/gpu/kernels/expert_grids.cuh"
#include "kernels/tensor.h"

/* A group of 256 weights, or fewer at the end of a row, of one row. A field begins `begin` bytes
 * into its block and has `bytes` bytes; its units are read for block b of the group. */
struct tile_source {
	const unsigned char *group; /* of sixteen rows, interleaved (kernels/tiles.h) */
	unsigned n, row; /* blocks in the group */
};

struct row_source {
	const unsigned char *group;
	unsigned block_bytes;
};

DEV uint32_t take_word(
	const tile_source &s, unsigned begin, unsigned bytes, unsigned b, unsigned unit)
{
	return ((const uint32_t *)(s.group + (s.n * begin + b * bytes + 4 * unit) * 16))[s.row];
}

DEV uint32_t take_half(const tile_source &s, unsigned begin, unsigned bytes, unsigned b)
{
	return ((const uint16_t *)(s.group + (s.n * begin + b * bytes) * 16))[s.row];
}

DEV uint32_t take_byte(const tile_source &s, unsigned begin, unsigned bytes, unsigned b)
{
	return s.group[(s.n * begin + b * bytes) * 16 + s.row];
}

/* Rows may lie at any address. */
DEV uint32_t take_byte(const row_source &s, unsigned begin, unsigned, unsigned b)
{
	return s.group[b * s.block_bytes + begin];
}

DEV uint32_t take_half(const row_source &s, unsigned begin, unsigned, unsigned b)
{
	const unsigned char *at = s.group + b * s.block_bytes + begin;

	return at[0] | (uint32_t)at[1] << 8;
}

DEV uint32_t take_word(const row_source &s, unsigned begin, unsigned, unsigned b, unsigned unit)
{
	return take_half(s, begin + 4 * unit, 0, b) | take_half(s, begin + 4 * unit + 2, 0, b)
							      << 16;
}

/* One row's part of a run, for one thread. */
struct row_run {
	uint32_t w[2]; /* bytes; RUN_LESS is subtracted from each */
	float d, m; /* m: also the scale of the last 16 weights, where they have their own */
	int32_t c[2], e[2];
};

/* What a type's runs have. */
enum run_traits {
	RUN_SIGNED = 1, /* the bytes are signed */
	RUN_M = 2, /* an offset m */
	RUN_C = 4, /* factors c */
	RUN_E = 8, /* factors e of the offset */
	RUN_TWO = 16, /* d for the first 16 weights, m for the last */
};

template <int TYPE> struct run_type;
#define RUN_TYPE(type, block, weights, with, minus)                                         \
	template <> struct run_type<type> {                                                 \
		enum { bytes = block, runs = (weights) / 32, traits = with, less = minus }; \
	}
RUN_TYPE(TENSOR_Q4_0, 18, 32, 0, 8);
RUN_TYPE(TENSOR_Q4_1, 20, 32, RUN_M, 0);
RUN_TYPE(TENSOR_Q5_0, 22, 32, 0, 16);
RUN_TYPE(TENSOR_Q5_1, 24, 32, RUN_M, 0);
RUN_TYPE(TENSOR_Q8_0, 34, 32, RUN_SIGNED, 0);
RUN_TYPE(TENSOR_IQ4_NL, 18, 32, RUN_SIGNED, 0);
RUN_TYPE(TENSOR_MXFP4, 17, 32, RUN_SIGNED, 0);
RUN_TYPE(TENSOR_NVFP4, 36, 64, RUN_SIGNED | RUN_TWO, 0);
RUN_TYPE(TENSOR_Q2_K, 84, 256, RUN_M | RUN_C | RUN_E, 0);
RUN_TYPE(TENSOR_Q3_K, 110, 256, RUN_C, 4);
RUN_TYPE(TENSOR_Q4_K, 144, 256, RUN_M, 0);
RUN_TYPE(TENSOR_Q5_K, 176, 256, RUN_M, 0);
RUN_TYPE(TENSOR_Q6_K, 210, 256, RUN_C, 32);
RUN_TYPE(TENSOR_IQ4_XS, 136, 256, RUN_SIGNED, 0);
RUN_TYPE(TENSOR_IQ1_S, 50, 256, RUN_SIGNED, 0);
RUN_TYPE(TENSOR_IQ1_M, 56, 256, RUN_SIGNED | RUN_C, 0);
RUN_TYPE(TENSOR_IQ2_XXS, 66, 256, RUN_SIGNED, 0);
RUN_TYPE(TENSOR_IQ2_XS, 74, 256, RUN_SIGNED | RUN_C, 0);
RUN_TYPE(TENSOR_IQ2_S, 82, 256, RUN_SIGNED | RUN_C, 0);
RUN_TYPE(TENSOR_IQ3_XXS, 98, 256, RUN_SIGNED, 0);
RUN_TYPE(TENSOR_IQ3_S, 110, 256, RUN_SIGNED, 0);
RUN_TYPE(TENSOR_TQ1_0, 54, 256, 0, 1);
RUN_TYPE(TENSOR_TQ2_0, 66, 256, 0, 1);
#undef RUN_TYPE

/* ---- Bits to bytes. ---- */

#define EACH_BYTE(x) ((x)*0x01010101u)

/* The four nibbles of a thread in words of low and high nibbles. */
DEV void nibbles(uint32_t word, row_run *r)
{
	r->w[0] = word & EACH_BYTE(15u);
	r->w[1] = word >> 4 & EACH_BYTE(15u);
}

/* Bit i of the low four bits becomes bit `to` of byte i. */
DEV uint32_t spread_bits(uint32_t bits, unsigned to)
{
	return ((bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21) << to;
}

/* Adds the fifth bits of a block, bit i for weight i. */
DEV void add_fifth(uint32_t bits, unsigned t, row_run *r)
{
	r->w[0] |= spread_bits(bits >> 4 * t, 4);
	r->w[1] |= spread_bits(bits >> (16 + 4 * t), 4);
}

struct run_table {
	uint32_t w[4];
};

/* The table's entries for four codes of four bits. */
DEV uint32_t look_up(const run_table &table, uint32_t codes)
{
	uint32_t select = codes & EACH_BYTE(7u), upper = (codes >> 3 & EACH_BYTE(1u)) * 255;

	select = (select | select >> 4) & 0x00ff00ffu;
	select = (select | select >> 8) & 0xffffu;
	return (byte_perm(table.w[0], table.w[1], select) & ~upper) |
	       (byte_perm(table.w[2], table.w[3], select) & upper);
}

constexpr uint32_t four_bytes(int a, int b, int c, int d)
{
	return (uint32_t)(uint8_t)a | (uint32_t)(uint8_t)b << 8 | (uint32_t)(uint8_t)c << 16 |
	       (uint32_t)(uint8_t)d << 24;
}

template <class... I> constexpr run_table make_table(I... of)
{
	const int v[16] = {of...};

	return {{four_bytes(v[0], v[1], v[2], v[3]), four_bytes(v[4], v[5], v[6], v[7]),
		four_bytes(v[8], v[9], v[10], v[11]), four_bytes(v[12], v[13], v[14], v[15])}};
}

/* A function for each table, because device code reads no variables of the host. */
#define RUN_TABLE(name, ...)                                         \
	DEV run_table name(void)                                     \
	{                                                            \
		constexpr run_table table = make_table(__VA_ARGS__); \
		return table;                                        \
	}
RUN_TABLE(iq4_codes, IQ4_TABLE(0))
RUN_TABLE(fp4_codes, MXFP4_TABLE(0))
RUN_TABLE(iq1_codes, IQ1_TABLE(0))
RUN_TABLE(iq2_codes, IQ2_TABLE(0))
RUN_TABLE(iq3_xxs_codes, IQ3_XXS_TABLE(0))
RUN_TABLE(iq3_s_codes, IQ3_S_TABLE(0))
#undef RUN_TABLE

DEV void look_up_both(const run_table &table, row_run *r)
{
	r->w[0] = look_up(table, r->w[0]);
	r->w[1] = look_up(table, r->w[1]);
}

DEV float half_value(uint32_t half)
{
	return float_of_half((uint16_t)half);
}

DEV int32_t signed_byte(uint32_t x)
{
	return (int8_t)(uint8_t)x;
}

/* Codes of the four weights from 4 * t on of a grid's entries of eight weights each: entry `index`
 * is for weights 8 (t / 2) to 8 (t / 2) + 7. */
DEV uint32_t codes_of_eight(const uint32_t *grid, uint32_t index, unsigned t)
{
	return grid[index] >> 4 * (t % 2) & EACH_BYTE(15u);
}

DEV float odd_times(float d, uint32_t scale)
{
	return f_mul(d, (float)(2 * scale + 1));
}

DEV void odd_factors(uint32_t first, uint32_t last, row_run *r)
{
	r->c[0] = (int32_t)(2 * first + 1);
	r->c[1] = (int32_t)(2 * last + 1);
}

/* Gives the codes their signs, bit i for weight i of the run, and looks them up. */
DEV void sign_codes(const run_table &table, uint32_t signs, unsigned t, row_run *r)
{
	r->w[0] |= spread_bits(signs >> 4 * t, 3);
	r->w[1] |= spread_bits(signs >> (16 + 4 * t), 3);
	look_up_both(table, r);
}

/* ---- Types in blocks of 32, and NVFP4 (64). b: block of the group; t as above. ---- */

template <int TYPE> struct run_of {
};
#define RUN_OF(type)       \
	template <class S> \
	DEV void take_run(run_of<type>, const S &s, unsigned b, unsigned t, row_run *r)

RUN_OF(TENSOR_Q8_0)
{
	r->d = half_value(take_half(s, 0, 2, b));
	r->w[0] = take_word(s, 2, 32, b, t);
	r->w[1] = take_word(s, 2, 32, b, 4 + t);
}

RUN_OF(TENSOR_Q4_0)
{
	r->d = half_value(take_half(s, 0, 2, b));
	nibbles(take_word(s, 2, 16, b, t), r);
}

RUN_OF(TENSOR_Q4_1)
{
	r->d = half_value(take_half(s, 0, 2, b));
	r->m = half_value(take_half(s, 2, 2, b));
	nibbles(take_word(s, 4, 16, b, t), r);
}

RUN_OF(TENSOR_Q5_0)
{
	r->d = half_value(take_half(s, 0, 2, b));
	nibbles(take_word(s, 6, 16, b, t), r);
	add_fifth(take_word(s, 2, 4, b, 0), t, r);
}

RUN_OF(TENSOR_Q5_1)
{
	r->d = half_value(take_half(s, 0, 2, b));
	r->m = half_value(take_half(s, 2, 2, b));
	nibbles(take_word(s, 8, 16, b, t), r);
	add_fifth(take_word(s, 4, 4, b, 0), t, r);
}

RUN_OF(TENSOR_IQ4_NL)
{
	r->d = half_value(take_half(s, 0, 2, b));
	nibbles(take_word(s, 2, 16, b, t), r);
	look_up_both(iq4_codes(), r);
}

RUN_OF(TENSOR_MXFP4)
{
	r->d = mxfp4_scale((uint8_t)take_byte(s, 0, 1, b));
	nibbles(take_word(s, 1, 16, b, t), r);
	look_up_both(fp4_codes(), r);
}

/* b: the run; two in a block of 36 bytes, which is one field. */
RUN_OF(TENSOR_NVFP4)
{
	uint32_t scales = take_word(s, 0, 36, b / 2, 0) >> 16 * (b % 2);
	unsigned unit = 1 + b % 2 * 4 + t % 2;

	r->d = nvfp4_scale((uint8_t)scales);
	r->m = nvfp4_scale((uint8_t)(scales >> 8));
	/* Weights 0..7 in low nibbles of eight bytes, 8..15 in their high ones. */
	r->w[0] = take_word(s, 0, 36, b / 2, unit) >> 4 * (t / 2) & EACH_BYTE(15u);
	r->w[1] = take_word(s, 0, 36, b / 2, unit + 2) >> 4 * (t / 2) & EACH_BYTE(15u);
	look_up_both(fp4_codes(), r);
}

/* ---- Types in blocks of 256: one block a group. b: the run. ---- */

/* d and m of Q4_K and Q5_K. */
template <class S> DEV void scales_k(const S &s, unsigned b, row_run *r)
{
	uint32_t ds = take_word(s, 0, 16, 0, 0), shift = 8 * (b % 4);
	uint32_t s0 = take_word(s, 0, 16, 0, 1) >> shift, s1 = take_word(s, 0, 16, 0, 2) >> shift;
	uint32_t s2 = take_word(s, 0, 16, 0, 3) >> shift, scale = s0 & 63, min = s1 & 63;

	if (b >= 4) {
		scale = (s2 & 15) | (s0 & 0xc0) >> 2;
		min = (s2 >> 4 & 15) | (s1 & 0xc0) >> 2;
	}
	r->d = f_mul(half_value(ds & 0xffff), (float)scale);
	r->m = f_mul(-half_value(ds >> 16), (float)min);
}

RUN_OF(TENSOR_Q4_K)
{
	scales_k(s, b, r);
	for (unsigned k = 0; k < 2; k++)
		r->w[k] = take_word(s, 16, 128, 0, 8 * (b / 2) + 4 * k + t) >> 4 * (b % 2) &
			  EACH_BYTE(15u);
}

RUN_OF(TENSOR_Q5_K)
{
	scales_k(s, b, r);
	for (unsigned k = 0; k < 2; k++)
		r->w[k] = (take_word(s, 48, 128, 0, 8 * (b / 2) + 4 * k + t) >> 4 * (b % 2) &
				  EACH_BYTE(15u)) |
			  (take_word(s, 16, 32, 0, 4 * k + t) >> b & EACH_BYTE(1u)) << 4;
}

RUN_OF(TENSOR_Q6_K)
{
	uint32_t scales = take_word(s, 192, 16, 0, b / 2) >> 16 * (b % 2);
	unsigned half = b / 4, part = b % 4;

	r->d = half_value(take_half(s, 208, 2, 0));
	r->c[0] = signed_byte(scales);
	r->c[1] = signed_byte(scales >> 8);
	for (unsigned k = 0; k < 2; k++)
		r->w[k] =
			(take_word(s, 0, 128, 0, 16 * half + 8 * (part % 2) + 4 * k + t) >>
					4 * (part / 2) &
				EACH_BYTE(15u)) |
			(take_word(s, 128, 64, 0, 8 * half + 4 * k + t) >> 2 * part & EACH_BYTE(3u))
				<< 4;
}

RUN_OF(TENSOR_Q2_K)
{
	uint32_t scales = take_word(s, 0, 16, 0, b / 2) >> 16 * (b % 2);

	r->d = half_value(take_half(s, 80, 2, 0));
	r->m = -half_value(take_half(s, 82, 2, 0));
	r->c[0] = (int32_t)(scales & 15);
	r->e[0] = (int32_t)(scales >> 4 & 15);
	r->c[1] = (int32_t)(scales >> 8 & 15);
	r->e[1] = (int32_t)(scales >> 12 & 15);
	for (unsigned k = 0; k < 2; k++)
		r->w[k] = take_word(s, 16, 64, 0, 8 * (b / 4) + 4 * k + t) >> 2 * (b % 4) &
			  EACH_BYTE(3u);
}

RUN_OF(TENSOR_Q3_K)
{
	r->d = half_value(take_half(s, 108, 2, 0));
	/* Twelve bytes: of scale i the low four bits in byte i % 8, the high two in byte 8 + i % 4. */
	for (unsigned k = 0; k < 2; k++) {
		unsigned i = 2 * b + k;
		uint32_t low = take_word(s, 96, 12, 0, i % 8 / 4) >> (8 * (i % 4) + 4 * (i / 8));
		uint32_t high = take_word(s, 96, 12, 0, 2) >> (8 * (i % 4) + 2 * (i / 4));

		r->c[k] = (int32_t)((low & 15) | (high & 3) << 4) - 32;
		r->w[k] = (take_word(s, 32, 64, 0, 8 * (b / 4) + 4 * k + t) >> 2 * (b % 4) &
				  EACH_BYTE(3u)) |
			  (take_word(s, 0, 32, 0, 4 * k + t) >> b & EACH_BYTE(1u)) << 2;
	}
}

RUN_OF(TENSOR_IQ4_XS)
{
	uint32_t low = take_word(s, 4, 4, 0, 0) >> 4 * b & 15;
	uint32_t high = take_half(s, 2, 2, 0) >> 2 * b & 3;

	r->d = f_mul(half_value(take_half(s, 0, 2, 0)), (float)((int32_t)(low | high << 4) - 32));
	nibbles(take_word(s, 8, 128, 0, 4 * b + t), r);
	look_up_both(iq4_codes(), r);
}

RUN_OF(TENSOR_TQ2_0)
{
	r->d = half_value(take_half(s, 64, 2, 0));
	for (unsigned k = 0; k < 2; k++)
		r->w[k] = take_word(s, 0, 64, 0, 8 * (b / 4) + 4 * k + t) >> 2 * (b % 4) &
			  EACH_BYTE(3u);
}

/* Digit `place` of four bytes that are fractions in base three. */
DEV uint32_t third_digits(uint32_t bytes, unsigned place)
{
	uint32_t even = bytes & 0x00ff00ffu, odd = bytes >> 8 & 0x00ff00ffu;

	for (unsigned i = 0; i < place; i++) {
		even = even * 3 & 0x00ff00ffu;
		odd = odd * 3 & 0x00ff00ffu;
	}
	return (even * 3 >> 8 & 0x00ff00ffu) | (odd * 3 & 0xff00ff00u);
}

RUN_OF(TENSOR_TQ1_0)
{
	r->d = half_value(take_half(s, 52, 2, 0));
	for (unsigned k = 0; k < 2; k++) {
		unsigned half = 2 * (b % 5) + k;

		r->w[k] = b < 5	     ? third_digits(take_word(s, 0, 52, 0, 4 * k + t), b)
			  : half < 5 ? third_digits(take_word(s, 0, 52, 0, 8 + t), half)
				     : third_digits(take_word(s, 0, 52, 0, 12), t);
	}
}

/* ---- Types whose weights are entries of grids. ---- */

RUN_OF(TENSOR_IQ2_XXS)
{
	uint32_t index = take_word(s, 2, 64, 0, 2 * b), fields = take_word(s, 2, 64, 0, 2 * b + 1);

	r->d = odd_times(f_mul(half_value(take_half(s, 0, 2, 0)), 0.125f), fields >> 28);
	for (unsigned k = 0; k < 2; k++)
		r->w[k] = codes_of_eight(GRID(iq2_xxs), index >> 8 * (2 * k + t / 2) & 255, t);
	sign_codes(iq2_codes(), signs_of_sevens(fields), t, r);
}

RUN_OF(TENSOR_IQ2_XS)
{
	uint32_t scale = take_word(s, 66, 8, 0, b / 4) >> 8 * (b % 4), fields = 0;

	r->d = f_mul(half_value(take_half(s, 0, 2, 0)), 0.125f);
	odd_factors(scale & 15, scale >> 4 & 15, r);
	for (unsigned k = 0; k < 2; k++) {
		uint32_t two = take_word(s, 2, 64, 0, 2 * b + k);

		fields |= ((two >> 9 & 127) | (two >> 25) << 7) << 14 * k;
		r->w[k] = codes_of_eight(GRID(iq2_xs), two >> 16 * (t / 2) & 511, t);
	}
	sign_codes(iq2_codes(), signs_of_sevens(fields), t, r);
}

RUN_OF(TENSOR_IQ2_S)
{
	uint32_t low = take_word(s, 2, 80, 0, b), signs = take_word(s, 2, 80, 0, 8 + b);
	uint32_t high = take_word(s, 2, 80, 0, 16 + b / 4) >> 8 * (b % 4);
	uint32_t scale = take_word(s, 2, 80, 0, 18 + b / 4) >> 8 * (b % 4);

	r->d = f_mul(half_value(take_half(s, 0, 2, 0)), 0.125f);
	odd_factors(scale & 15, scale >> 4 & 15, r);
	for (unsigned k = 0; k < 2; k++) {
		unsigned i = 2 * k + t / 2;

		r->w[k] = codes_of_eight(
			GRID(iq2_s), (low >> 8 * i & 255) | (high >> 2 * i & 3) << 8, t);
	}
	sign_codes(iq2_codes(), signs, t, r);
}

RUN_OF(TENSOR_IQ3_XXS)
{
	uint32_t fields = take_word(s, 2, 96, 0, 16 + b);

	r->d = odd_times(f_mul(half_value(take_half(s, 0, 2, 0)), 0.25f), fields >> 28);
	for (unsigned k = 0; k < 2; k++)
		r->w[k] = GRID(iq3_xxs)[take_word(s, 2, 96, 0, 2 * b + k) >> 8 * t & 255];
	sign_codes(iq3_xxs_codes(), signs_of_sevens(fields), t, r);
}

RUN_OF(TENSOR_IQ3_S)
{
	uint32_t high = take_word(s, 2, 108, 0, 16 + b / 4) >> 8 * (b % 4);

	r->d = odd_times(
		half_value(take_half(s, 0, 2, 0)), take_word(s, 2, 108, 0, 26) >> 4 * b & 15);
	for (unsigned k = 0; k < 2; k++) {
		uint32_t low = take_word(s, 2, 108, 0, 2 * b + k) >> 8 * t & 255;

		r->w[k] = GRID(iq3_s)[low | (high >> (4 * k + t) & 1) << 8];
	}
	sign_codes(iq3_s_codes(), take_word(s, 2, 108, 0, 18 + b), t, r);
}

RUN_OF(TENSOR_IQ1_S)
{
	uint32_t low = take_word(s, 2, 48, 0, b);
	uint32_t word = take_word(s, 2, 48, 0, 8 + b / 2) >> 16 * (b % 2) & 0xffff;

	r->d = odd_times(f_mul(half_value(take_half(s, 0, 2, 0)), 0.125f), word >> 12 & 7);
	for (unsigned k = 0; k < 2; k++) {
		unsigned i = 2 * k + t / 2;

		r->w[k] = codes_of_eight(
			GRID(iq1_s), (low >> 8 * i & 255) | (word >> 3 * i & 7) << 8, t);
	}
	sign_codes(iq1_codes(), word >> 15 ? 0xffffffffu : 0, t, r);
}

RUN_OF(TENSOR_IQ1_M)
{
	uint32_t first = take_word(s, 0, 56, 0, 12), last = take_word(s, 0, 56, 0, 13);
	uint32_t low = take_word(s, 0, 56, 0, b);
	uint32_t four = take_word(s, 0, 56, 0, 8 + b / 2) >> 16 * (b % 2);
	uint32_t scale = (b < 4 ? first : last) >> (16 * (b / 2 % 2) + 6 * (b % 2));

	r->d = f_mul(half_value(iq1_m_scale(first, last)), 0.125f);
	odd_factors(scale & 7, scale >> 3 & 7, r);
	for (unsigned k = 0; k < 2; k++) {
		unsigned i = 2 * k + t / 2;
		uint32_t nibble = four >> 4 * i;

		r->w[k] = codes_of_eight(GRID(iq1_s), (low >> 8 * i & 255) | (nibble & 7) << 8, t) |
			  (nibble >> 3 & 1) * EACH_BYTE(8u);
	}
	look_up_both(iq1_codes(), r);
}
#undef RUN_OF
