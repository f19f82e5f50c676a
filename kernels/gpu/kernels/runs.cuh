/*
 * Runs of 32 quantised weights, unpacked for products of bytes (MMA): BLOCKS of numerics.md. A lane
 * takes eight weights of a row: 4t to 4t + 3, and 16 + 4t to 16 + 4t + 3. The blocks lie in tiles
 * (kernels/tiles.h), where neighbouring lanes read neighbouring words, or row after row as in the
 * file. kernels/cpu/blocks.c and blocks_coded.c say what the fields mean.
 */
#pragma once

#include "kernels/gpu/kernels/grids.cuh"
#include "kernels/gpu/kernels/rows.cuh"

#include "kernels/cpu/blocks.h"
extern "C" {
#include "kernels/tiles.h"
}

/* What is the same for all runs of a type. */
template <int TYPE> struct type_of;

/* weights, bytes: of a block. less: is subtracted from every byte. is_signed: of the bytes.
 * factors: the two halves have integer factors c (and e). has_m: there is an offset m.
 * two_d: the last 16 weights have a scale of their own. */
#define RUN_TYPE(TYPE, WEIGHTS, BYTES, LESS, SIGNED, FACTORS, M, TWO_D)                 \
	template <> struct type_of<TYPE> {                                              \
		static constexpr uint32_t weights = WEIGHTS, bytes = BYTES,             \
					  per_group = 256 / WEIGHTS;                    \
		static constexpr int32_t less = LESS;                                   \
		static constexpr bool is_signed = SIGNED, factors = FACTORS, has_m = M, \
				      two_d = TWO_D;                                    \
	}
RUN_TYPE(TENSOR_Q4_0, 32, 18, 8, false, false, false, false);
RUN_TYPE(TENSOR_Q4_1, 32, 20, 0, false, false, true, false);
RUN_TYPE(TENSOR_Q5_0, 32, 22, 16, false, false, false, false);
RUN_TYPE(TENSOR_Q5_1, 32, 24, 0, false, false, true, false);
RUN_TYPE(TENSOR_Q8_0, 32, 34, 0, true, false, false, false);
RUN_TYPE(TENSOR_Q2_K, 256, 84, 0, false, true, true, false);
RUN_TYPE(TENSOR_Q3_K, 256, 110, 4, false, true, false, false);
RUN_TYPE(TENSOR_Q4_K, 256, 144, 0, false, false, true, false);
RUN_TYPE(TENSOR_Q5_K, 256, 176, 0, false, false, true, false);
RUN_TYPE(TENSOR_Q6_K, 256, 210, 32, false, true, false, false);
RUN_TYPE(TENSOR_IQ2_XXS, 256, 66, 0, true, false, false, false);
RUN_TYPE(TENSOR_IQ2_XS, 256, 74, 0, true, true, false, false);
RUN_TYPE(TENSOR_IQ2_S, 256, 82, 0, true, true, false, false);
RUN_TYPE(TENSOR_IQ3_XXS, 256, 98, 0, true, false, false, false);
RUN_TYPE(TENSOR_IQ3_S, 256, 110, 0, true, false, false, false);
RUN_TYPE(TENSOR_IQ1_S, 256, 50, 0, true, false, false, false);
RUN_TYPE(TENSOR_IQ1_M, 256, 56, 0, true, true, false, false);
RUN_TYPE(TENSOR_IQ4_NL, 32, 18, 0, true, false, false, false);
RUN_TYPE(TENSOR_IQ4_XS, 256, 136, 0, true, false, false, false);
RUN_TYPE(TENSOR_MXFP4, 32, 17, 0, true, false, false, false);
RUN_TYPE(TENSOR_NVFP4, 64, 36, 0, true, false, false, true);
RUN_TYPE(TENSOR_TQ1_0, 256, 54, 1, false, false, false, false);
RUN_TYPE(TENSOR_TQ2_0, 256, 66, 1, false, false, false, false);

/* DO(type) for each quantised type. */
#define EACH_QUANTISED(DO)                                                                         \
	DO(TENSOR_Q4_0)                                                                            \
	DO(TENSOR_Q4_1) DO(TENSOR_Q5_0) DO(TENSOR_Q5_1) DO(TENSOR_Q8_0) DO(TENSOR_Q2_K)            \
		DO(TENSOR_Q3_K) DO(TENSOR_Q4_K) DO(TENSOR_Q5_K) DO(TENSOR_Q6_K) DO(TENSOR_IQ2_XXS) \
			DO(TENSOR_IQ2_XS) DO(TENSOR_IQ2_S) DO(TENSOR_IQ3_XXS) DO(TENSOR_IQ3_S)     \
				DO(TENSOR_IQ1_S) DO(TENSOR_IQ1_M) DO(TENSOR_IQ4_NL)                \
					DO(TENSOR_IQ4_XS) DO(TENSOR_MXFP4) DO(TENSOR_NVFP4)        \
						DO(TENSOR_TQ1_0) DO(TENSOR_TQ2_0)

/* A lane's part of a run. The integers q are its bytes minus type_of::less. Only what the type has
 * is set. */
struct run_part {
	uint32_t w[2]; /* weights 4t.., and 16 + 4t.. */
	float d, d_last, m;
	int32_t c[2], e[2];
};

/* ---- Where fields are. ---- */

/* A group (256 weights, or what is left) of one row of a tile; n: its blocks. */
struct tile_group {
	const unsigned char *at;
	uint32_t n, row;
};

/* A group of a row in the file's order, at any address. */
struct row_group {
	const unsigned char *at;
};

/* Unit k of a field, which begins at byte F of a block, has S bytes and units of U bytes. */
template <unsigned F, unsigned S, unsigned U>
DEV uint32_t field(const struct tile_group &g, uint32_t block, uint32_t k)
{
	const unsigned char *at = g.at + (F * g.n + S * block) * 16 + (k * 16 + g.row) * U;

	if (U == 4)
		return *(const uint32_t *)at;
	if (U == 2)
		return *(const uint16_t *)at;
	return *at;
}

template <unsigned F, unsigned S, unsigned U, unsigned BYTES>
DEV uint32_t row_field(const struct row_group &g, uint32_t block, uint32_t k)
{
	const unsigned char *at = g.at + block * BYTES + F + k * U;
	uint32_t value = at[0];

	if (U > 1)
		value |= (uint32_t)at[1] << 8;
	if (U > 2)
		value |= (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
	return value;
}

/* One name for both. */
template <int TYPE> struct fields_of {
	template <unsigned F, unsigned S, unsigned U>
	static __device__ __forceinline__ uint32_t get(
		const struct tile_group &g, uint32_t block, uint32_t k)
	{
		return field<F, S, U>(g, block, k);
	}
	template <unsigned F, unsigned S, unsigned U>
	static __device__ __forceinline__ uint32_t get(
		const struct row_group &g, uint32_t block, uint32_t k)
	{
		return row_field<F, S, U, type_of<TYPE>::bytes>(g, block, k);
	}
};

/* Byte i of a word. */
DEV uint32_t byte_of(uint32_t word, uint32_t i)
{
	return word >> 8 * i & 255;
}

DEV float half_at(uint32_t half)
{
	return float_of_half((uint16_t)half);
}

/* ---- Tables. ---- */

constexpr uint32_t table_word(const int8_t (&table)[16], unsigned i)
{
	return (uint32_t)(uint8_t)table[4 * i] | (uint32_t)(uint8_t)table[4 * i + 1] << 8 |
	       (uint32_t)(uint8_t)table[4 * i + 2] << 16 |
	       (uint32_t)(uint8_t)table[4 * i + 3] << 24;
}

/* A table from a code of four bits to a byte; TABLE is one of blocks.h. */
#define RUN_TABLE(NAME, TABLE)                                                                  \
	struct NAME {                                                                           \
		static constexpr int8_t bytes[16] = {TABLE(0)};                                 \
		static constexpr uint32_t w0 = table_word(bytes, 0), w1 = table_word(bytes, 1), \
					  w2 = table_word(bytes, 2), w3 = table_word(bytes, 3); \
	}
RUN_TABLE(table_iq4, IQ4_TABLE);
RUN_TABLE(table_fp4, MXFP4_TABLE);
RUN_TABLE(table_iq1, IQ1_TABLE);
RUN_TABLE(table_iq2, IQ2_TABLE);
RUN_TABLE(table_iq3_xxs, IQ3_XXS_TABLE);
RUN_TABLE(table_iq3_s, IQ3_S_TABLE);

/* The bytes for the codes in the low nibbles of four bytes. */
template <class TABLE> DEV uint32_t look_up(uint32_t codes)
{
	uint32_t low = codes & 0x07070707u, nibbles = (low | low >> 4) & 0x00ff00ffu;
	uint32_t upper = (codes >> 3 & 0x01010101u) * 0xffu;

	nibbles = (nibbles | nibbles >> 8) & 0xffffu;
	return (byte_perm(TABLE::w0, TABLE::w1, nibbles) & ~upper) |
	       (byte_perm(TABLE::w2, TABLE::w3, nibbles) & upper);
}

/* Bit i of the lowest four becomes bit 3 of byte i: the upper half of a table. */
DEV uint32_t spread_signs(uint32_t bits)
{
	return ((bits & 15) * 0x00204081u & 0x01010101u) << 3;
}

/* Four weights of a grid's entry for eight: the half that t names. */
template <class TABLE> DEV uint32_t of_eight(uint32_t entry, uint32_t t, uint32_t signs)
{
	return look_up<TABLE>((entry >> 4 * (t % 2) & 0x07070707u) | spread_signs(signs));
}

template <class TABLE> DEV uint32_t of_four(uint32_t entry, uint32_t signs)
{
	return look_up<TABLE>((entry & 0x07070707u) | spread_signs(signs));
}

/* ---- Types with blocks of 32 or 64. ---- */

#define GET(F, S, U) fields_of<TYPE>::template get<F, S, U>

/* Low nibbles: the first 16 weights; high ones: the last. */
DEV void set_nibbles(struct run_part &p, uint32_t word)
{
	p.w[0] = word & 0x0f0f0f0fu;
	p.w[1] = word >> 4 & 0x0f0f0f0fu;
}

/* Bit 4 of each weight, from a word with a bit for each. */
DEV void add_fifth_bits(struct run_part &p, uint32_t bits, uint32_t t)
{
	p.w[0] |= spread_signs(bits >> 4 * t) << 1;
	p.w[1] |= spread_signs(bits >> (16 + 4 * t)) << 1;
}

template <int TYPE, class GROUP>
DEV void small_block(struct run_part &p, const GROUP &g, uint32_t r, uint32_t t)
{
	if (TYPE == TENSOR_Q8_0) {
		p.d = half_at(GET(0, 2, 2)(g, r, 0));
		p.w[0] = GET(2, 32, 4)(g, r, t);
		p.w[1] = GET(2, 32, 4)(g, r, 4 + t);
	} else if (TYPE == TENSOR_Q4_0 || TYPE == TENSOR_IQ4_NL) {
		p.d = half_at(GET(0, 2, 2)(g, r, 0));
		set_nibbles(p, GET(2, 16, 4)(g, r, t));
	} else if (TYPE == TENSOR_Q4_1) {
		p.d = half_at(GET(0, 2, 2)(g, r, 0));
		p.m = half_at(GET(2, 2, 2)(g, r, 0));
		set_nibbles(p, GET(4, 16, 4)(g, r, t));
	} else if (TYPE == TENSOR_Q5_0) {
		p.d = half_at(GET(0, 2, 2)(g, r, 0));
		set_nibbles(p, GET(6, 16, 4)(g, r, t));
		add_fifth_bits(p, GET(2, 4, 4)(g, r, 0), t);
	} else if (TYPE == TENSOR_Q5_1) {
		p.d = half_at(GET(0, 2, 2)(g, r, 0));
		p.m = half_at(GET(2, 2, 2)(g, r, 0));
		set_nibbles(p, GET(8, 16, 4)(g, r, t));
		add_fifth_bits(p, GET(4, 4, 4)(g, r, 0), t);
	} else if (TYPE == TENSOR_MXFP4) {
		p.d = mxfp4_scale((uint8_t)GET(0, 1, 1)(g, r, 0));
		set_nibbles(p, GET(1, 16, 4)(g, r, t));
	} else { /* TENSOR_NVFP4: its blocks are two runs */
		uint32_t scales = GET(0, 36, 4)(g, r / 2, 0) >> 16 * (r % 2);
		uint32_t at = 1 + 4 * (r % 2) + t % 2, shift = 4 * (t / 2);

		p.d = nvfp4_scale((uint8_t)scales);
		p.d_last = nvfp4_scale((uint8_t)(scales >> 8));
		p.w[0] = GET(0, 36, 4)(g, r / 2, at) >> shift & 0x0f0f0f0fu;
		p.w[1] = GET(0, 36, 4)(g, r / 2, at + 2) >> shift & 0x0f0f0f0fu;
	}
	for (unsigned i = 0; i < 2; i++) {
		if (TYPE == TENSOR_IQ4_NL)
			p.w[i] = look_up<table_iq4>(p.w[i]);
		if (TYPE == TENSOR_MXFP4 || TYPE == TENSOR_NVFP4)
			p.w[i] = look_up<table_fp4>(p.w[i]);
	}
}

/* ---- K-quants, IQ4_XS, and ternary types: blocks of 256, run s of a block. ---- */

/* d, dmin and the 6-bit scales and minima of Q4_K and Q5_K. */
template <int TYPE, class GROUP>
DEV void scale_and_min(struct run_part &p, const GROUP &g, uint32_t s)
{
	uint32_t ds = GET(0, 16, 4)(g, 0, 0), shift = 8 * (s % 4), scale, min;
	uint32_t s0 = GET(0, 16, 4)(g, 0, 1) >> shift, s1 = GET(0, 16, 4)(g, 0, 2) >> shift;
	uint32_t s2 = GET(0, 16, 4)(g, 0, 3) >> shift;

	if (s < 4) {
		scale = s0 & 63;
		min = s1 & 63;
	} else {
		scale = (s2 & 15) | (s0 & 0xc0) >> 2;
		min = (s2 >> 4 & 15) | (s1 & 0xc0) >> 2;
	}
	p.d = f_mul(half_at(ds & 0xffff), (float)scale);
	p.m = -f_mul(half_at(ds >> 16), (float)min);
}

/* The 6-bit scale of 16 weights of Q3_K. */
template <int TYPE, class GROUP> DEV int32_t q3_k_scale(const GROUP &g, uint32_t i)
{
	uint32_t low = byte_of(GET(96, 12, 4)(g, 0, i % 8 / 4), i % 4) >> 4 * (i / 8) & 15;
	uint32_t high = byte_of(GET(96, 12, 4)(g, 0, 2), i % 4) >> 2 * (i / 4) & 3;

	return (int32_t)(low | high << 4) - 32;
}

/* Digit `place` of four bytes that are fractions in base three. */
DEV uint32_t thirds(uint32_t word, uint32_t place)
{
	uint32_t power = place == 0 ? 1 : place == 1 ? 3 : place == 2 ? 9 : place == 3 ? 27 : 81;
	uint32_t out = 0;

	for (unsigned i = 0; i < 4; i++)
		out |= ((byte_of(word, i) * power & 255) * 3 >> 8) << 8 * i;
	return out;
}

template <int TYPE, class GROUP>
DEV void tq1_0(struct run_part &p, const GROUP &g, uint32_t s, uint32_t t)
{
	p.d = half_at(GET(52, 2, 2)(g, 0, 0));
	for (unsigned i = 0; i < 2; i++) {
		uint32_t half = 2 * (s % 5) + i;

		if (s < 5)
			p.w[i] = thirds(GET(0, 52, 4)(g, 0, 4 * i + t), s);
		else if (half < 5)
			p.w[i] = thirds(GET(0, 52, 4)(g, 0, 8 + t), half);
		else
			p.w[i] = thirds(GET(0, 52, 4)(g, 0, 12), t);
	}
}

template <int TYPE, class GROUP>
DEV void large_block(struct run_part &p, const GROUP &g, uint32_t s, uint32_t t)
{
	if (TYPE == TENSOR_Q4_K || TYPE == TENSOR_Q5_K) {
		constexpr unsigned at = TYPE == TENSOR_Q4_K ? 16 : 48;

		scale_and_min<TYPE>(p, g, s);
		for (unsigned i = 0; i < 2; i++) {
			p.w[i] = GET(at, 128, 4)(g, 0, s / 2 * 8 + 4 * i + t) >> 4 * (s % 2) &
				 0x0f0f0f0fu;
			if (TYPE == TENSOR_Q5_K)
				p.w[i] |= (GET(16, 32, 4)(g, 0, 4 * i + t) >> s & 0x01010101u) << 4;
		}
	} else if (TYPE == TENSOR_Q6_K) {
		uint32_t scales = GET(192, 16, 4)(g, 0, s / 2) >> 16 * (s % 2);

		p.d = half_at(GET(208, 2, 2)(g, 0, 0));
		for (unsigned i = 0; i < 2; i++) {
			uint32_t low = GET(0, 128, 4)(g, 0, s / 4 * 16 + s % 2 * 8 + 4 * i + t);
			uint32_t high = GET(128, 64, 4)(g, 0, s / 4 * 8 + 4 * i + t);

			p.w[i] = (low >> s % 4 / 2 * 4 & 0x0f0f0f0fu) |
				 (high >> 2 * (s % 4) & 0x03030303u) << 4;
			p.c[i] = (int8_t)(scales >> 8 * i);
		}
	} else if (TYPE == TENSOR_Q2_K) {
		uint32_t scales = GET(0, 16, 4)(g, 0, s / 2) >> 16 * (s % 2);

		p.d = half_at(GET(80, 2, 2)(g, 0, 0));
		p.m = -half_at(GET(82, 2, 2)(g, 0, 0));
		for (unsigned i = 0; i < 2; i++) {
			p.w[i] = GET(16, 64, 4)(g, 0, s / 4 * 8 + 4 * i + t) >> 2 * (s % 4) &
				 0x03030303u;
			p.c[i] = (int32_t)(scales >> 8 * i & 15);
			p.e[i] = (int32_t)(scales >> (8 * i + 4) & 15);
		}
	} else if (TYPE == TENSOR_Q3_K) {
		p.d = half_at(GET(108, 2, 2)(g, 0, 0));
		for (unsigned i = 0; i < 2; i++) {
			uint32_t pairs = GET(32, 64, 4)(g, 0, s / 4 * 8 + 4 * i + t);
			uint32_t high = GET(0, 32, 4)(g, 0, 4 * i + t);

			p.w[i] = (pairs >> 2 * (s % 4) & 0x03030303u) | (high >> s & 0x01010101u)
										<< 2;
			p.c[i] = q3_k_scale<TYPE>(g, 2 * s + i);
		}
	} else if (TYPE == TENSOR_IQ4_XS) {
		uint32_t low = byte_of(GET(4, 4, 4)(g, 0, 0), s / 2) >> 4 * (s % 2) & 15;
		uint32_t high = GET(2, 2, 2)(g, 0, 0) >> 2 * s & 3;

		p.d = f_mul(
			half_at(GET(0, 2, 2)(g, 0, 0)), (float)((int32_t)(low | high << 4) - 32));
		set_nibbles(p, GET(8, 128, 4)(g, 0, 4 * s + t));
		p.w[0] = look_up<table_iq4>(p.w[0]);
		p.w[1] = look_up<table_iq4>(p.w[1]);
	} else if (TYPE == TENSOR_TQ1_0) {
		tq1_0<TYPE>(p, g, s, t);
	} else { /* TENSOR_TQ2_0 */
		p.d = half_at(GET(64, 2, 2)(g, 0, 0));
		for (unsigned i = 0; i < 2; i++)
			p.w[i] = GET(0, 64, 4)(g, 0, s / 4 * 8 + 4 * i + t) >> 2 * (s % 4) &
				 0x03030303u;
	}
}

/* ---- Types whose codes choose from a grid. ---- */

DEV float odd_scale(float d, uint32_t scale)
{
	return f_mul(d, (float)(2 * scale + 1));
}

DEV void set_odd_factors(struct run_part &p, uint32_t first, uint32_t last)
{
	p.c[0] = (int32_t)(2 * first + 1);
	p.c[1] = (int32_t)(2 * last + 1);
}

template <int TYPE, class GROUP>
DEV void iq2_block(struct run_part &p, const GROUP &g, uint32_t s, uint32_t t)
{
	float d = f_div(half_at(GET(0, 2, 2)(g, 0, 0)), 8.0f);

	p.d = d;
	if (TYPE == TENSOR_IQ2_XXS) {
		uint32_t index = GET(2, 64, 4)(g, 0, 2 * s);
		uint32_t more = GET(2, 64, 4)(g, 0, 2 * s + 1), signs = signs_of_sevens(more);

		p.d = odd_scale(d, more >> 28);
		for (unsigned i = 0; i < 2; i++)
			p.w[i] = of_eight<table_iq2>(grid_iq2_xxs(byte_of(index, 2 * i + t / 2)), t,
				signs >> (16 * i + 4 * t));
	} else if (TYPE == TENSOR_IQ2_XS) {
		uint32_t scale = byte_of(GET(2, 72, 4)(g, 0, 16 + s / 4), s % 4);

		set_odd_factors(p, scale & 15, scale >> 4);
		for (unsigned i = 0; i < 2; i++) {
			uint32_t word = GET(2, 72, 4)(g, 0, 2 * s + i) >> 16 * (t / 2) & 0xffff;

			p.w[i] = of_eight<table_iq2>(grid_iq2_xs(word & 511), t,
				signs_of_sevens(word >> 9) >> 4 * (t % 2));
		}
	} else { /* TENSOR_IQ2_S */
		uint32_t index = GET(2, 80, 4)(g, 0, s), signs = GET(2, 80, 4)(g, 0, 8 + s);
		uint32_t high = byte_of(GET(2, 80, 4)(g, 0, 16 + s / 4), s % 4);
		uint32_t scale = byte_of(GET(2, 80, 4)(g, 0, 18 + s / 4), s % 4);

		set_odd_factors(p, scale & 15, scale >> 4);
		for (unsigned i = 0; i < 2; i++) {
			uint32_t e = 2 * i + t / 2;

			p.w[i] = of_eight<table_iq2>(
				grid_iq2_s(byte_of(index, e) | (high >> 2 * e & 3) << 8), t,
				signs >> (16 * i + 4 * t));
		}
	}
}

template <int TYPE, class GROUP>
DEV void iq3_block(struct run_part &p, const GROUP &g, uint32_t s, uint32_t t)
{
	float d = half_at(GET(0, 2, 2)(g, 0, 0));

	if (TYPE == TENSOR_IQ3_XXS) {
		uint32_t more = GET(2, 96, 4)(g, 0, 16 + s), signs = signs_of_sevens(more);

		p.d = odd_scale(f_div(d, 4.0f), more >> 28);
		for (unsigned i = 0; i < 2; i++)
			p.w[i] = of_four<table_iq3_xxs>(
				grid_iq3_xxs(byte_of(GET(2, 96, 4)(g, 0, 2 * s + i), t)),
				signs >> (16 * i + 4 * t));
	} else { /* TENSOR_IQ3_S */
		uint32_t high = byte_of(GET(2, 108, 4)(g, 0, 16 + s / 4), s % 4);
		uint32_t signs = GET(2, 108, 4)(g, 0, 18 + s);
		uint32_t scale = byte_of(GET(2, 108, 4)(g, 0, 26), s / 2) >> 4 * (s % 2) & 15;

		p.d = odd_scale(d, scale);
		for (unsigned i = 0; i < 2; i++) {
			uint32_t index = byte_of(GET(2, 108, 4)(g, 0, 2 * s + i), t);

			p.w[i] = of_four<table_iq3_s>(
				grid_iq3_s(index | (high >> (4 * i + t) & 1) << 8),
				signs >> (16 * i + 4 * t));
		}
	}
}

template <int TYPE, class GROUP>
DEV void iq1_block(struct run_part &p, const GROUP &g, uint32_t s, uint32_t t)
{
	if (TYPE == TENSOR_IQ1_S) {
		uint32_t index = GET(2, 48, 4)(g, 0, s);
		uint32_t word = GET(2, 48, 4)(g, 0, 8 + s / 2) >> 16 * (s % 2) & 0xffff;

		p.d = odd_scale(f_div(half_at(GET(0, 2, 2)(g, 0, 0)), 8.0f), word >> 12 & 7);
		for (unsigned i = 0; i < 2; i++) {
			uint32_t e = 2 * i + t / 2;

			p.w[i] = of_eight<table_iq1>(
				grid_iq1_s(byte_of(index, e) | (word >> 3 * e & 7) << 8), t,
				word >> 15 ? 15 : 0);
		}
	} else { /* TENSOR_IQ1_M */
		uint32_t index = GET(0, 56, 4)(g, 0, s);
		uint32_t nibbles = GET(0, 56, 4)(g, 0, 8 + s / 2) >> 16 * (s % 2);
		uint32_t scales = GET(0, 56, 4)(g, 0, 12 + s / 4) >> 16 * (s / 2 % 2) & 0xffff;

		scales >>= 6 * (s % 2);
		p.d = f_div(half_at(iq1_m_scale(GET(0, 56, 4)(g, 0, 12), GET(0, 56, 4)(g, 0, 13))),
			8.0f);
		set_odd_factors(p, scales & 7, scales >> 3 & 7);
		for (unsigned i = 0; i < 2; i++) {
			uint32_t e = 2 * i + t / 2, nibble = nibbles >> 4 * e & 15;

			p.w[i] = of_eight<table_iq1>(
				grid_iq1_s(byte_of(index, e) | (nibble & 7) << 8), t,
				nibble >> 3 ? 15 : 0);
		}
	}
}

/* Run r of a group, for the lane that has weights 4t.. and 16 + 4t... */
template <int TYPE, class GROUP>
DEV struct run_part take_run(const GROUP &g, uint32_t r, uint32_t t)
{
	struct run_part p = {};

	if (type_of<TYPE>::weights < 256)
		small_block<TYPE>(p, g, r, t);
	else if (TYPE == TENSOR_IQ2_XXS || TYPE == TENSOR_IQ2_XS || TYPE == TENSOR_IQ2_S)
		iq2_block<TYPE>(p, g, r, t);
	else if (TYPE == TENSOR_IQ3_XXS || TYPE == TENSOR_IQ3_S)
		iq3_block<TYPE>(p, g, r, t);
	else if (TYPE == TENSOR_IQ1_S || TYPE == TENSOR_IQ1_M)
		iq1_block<TYPE>(p, g, r, t);
	else
		large_block<TYPE>(p, g, r, t);
	return p;
}
#undef GET

/* ---- Rows of a matrix. ---- */

/* Group `group` of row `row` of a tile, which begins at `tile`; cols: of the matrix. */
template <int TYPE>
DEV struct tile_group tile_group_at(
	const unsigned char *tile, uint32_t cols, uint32_t group, uint32_t row)
{
	typedef type_of<TYPE> T;
	uint32_t left = cols / T::weights - group * T::per_group;
	struct tile_group g = {tile + (size_t)group * (T::per_group * T::bytes * 16),
		left < T::per_group ? left : T::per_group, row};

	return g;
}

template <int TYPE> DEV struct row_group row_group_at(const unsigned char *row, uint32_t group)
{
	typedef type_of<TYPE> T;
	struct row_group g = {row + (size_t)group * (T::per_group * T::bytes)};

	return g;
}

/* True when row `row` of the matrix is in a tile. */
DEV bool row_in_tile(const struct matrix &w, uint32_t row)
{
	return w.layout == LAYOUT_TILES && row / 16 * 16 + 16 <= w.rows;
}

/* Run `run` of any row of a matrix, in either layout. */
template <int TYPE>
DEV struct run_part take_row_run(const struct matrix &w, uint32_t row, uint32_t run, uint32_t t)
{
	const unsigned char *data = (const unsigned char *)w.data;

	if (row_in_tile(w, row))
		return take_run<TYPE>(tile_group_at<TYPE>(data + row / 16 * (16 * w.row_bytes),
					      w.cols, run / 8, row % 16),
			run % 8, t);
	return take_run<TYPE>(row_group_at<TYPE>(data + row * w.row_bytes, run / 8), run % 8, t);
}

/* Weight i (0..3) of word `half` as a number: (d * c) * q + m * e (numerics.md, "Values"). */
template <int TYPE> DEV float run_value(const struct run_part &p, unsigned half, unsigned i)
{
	typedef type_of<TYPE> T;
	uint32_t byte = byte_of(p.w[half], i);
	int32_t q = T::is_signed ? (int32_t)(int8_t)byte : (int32_t)byte - T::less;
	float d = T::two_d && half ? p.d_last : p.d;
	float value = f_mul(f_mul(d, T::factors ? (float)p.c[half] : 1.0f), (float)q);

	return T::has_m ? f_add(value, f_mul(p.m, T::factors ? (float)p.e[half] : 1.0f)) : value;
}
