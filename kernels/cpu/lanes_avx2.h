/* Eight 32-bit lanes, one row of weights in each, for template_unpack.h and template_runs.h.
 * lanes_avx512.h has the same functions for sixteen lanes. */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/tensor.h"

#include <immintrin.h>

#define TILE_ROWS 8
#define TILE_TOKENS 8
/* Up to this many tokens, the runs of a block of 256 are unrolled. With more tokens, AVX2's
 * registers do not hold what unrolled runs would share (Zen 4, in cache: Q4_K with 4 tokens falls
 * from 11.1 to 10.1 GB/s, with 16 from 3.1 to 2.9). */
#define TILES_UNROLLED 2
#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* IQ4's weights stay signed, because maddubs would saturate with larger unsigned ones. */
#define IQ4_BIAS 0

typedef __m256i ilanes;
typedef __m256 flanes;

/* c_0 and c_1 of a run, each in both halves of the lane, and the factor that removes the weights'
 * offset. */
struct factors {
	ilanes c[2], more;
};

ALWAYS_INLINE ilanes i_set1(int32_t a)
{
	return _mm256_set1_epi32(a);
}

ALWAYS_INLINE ilanes i_set1_8(int a)
{
	return _mm256_set1_epi8((char)a);
}

ALWAYS_INLINE ilanes i_and(ilanes a, ilanes b)
{
	return _mm256_and_si256(a, b);
}

ALWAYS_INLINE ilanes i_or(ilanes a, ilanes b)
{
	return _mm256_or_si256(a, b);
}

ALWAYS_INLINE ilanes i_xor(ilanes a, ilanes b)
{
	return _mm256_xor_si256(a, b);
}

ALWAYS_INLINE ilanes i_add(ilanes a, ilanes b)
{
	return _mm256_add_epi32(a, b);
}

ALWAYS_INLINE ilanes i_add_8(ilanes a, ilanes b)
{
	return _mm256_add_epi8(a, b);
}

ALWAYS_INLINE ilanes i_sub(ilanes a, ilanes b)
{
	return _mm256_sub_epi32(a, b);
}

ALWAYS_INLINE ilanes i_mul(ilanes a, ilanes b)
{
	return _mm256_mullo_epi32(a, b);
}

ALWAYS_INLINE ilanes i_left(ilanes a, uint32_t n)
{
	return _mm256_slli_epi32(a, (int)n);
}

ALWAYS_INLINE ilanes i_right(ilanes a, uint32_t n)
{
	return _mm256_srli_epi32(a, (int)n);
}

/* Fills the upper bits with copies of the sign. */
ALWAYS_INLINE ilanes i_right_signed(ilanes a, uint32_t n)
{
	return _mm256_srai_epi32(a, (int)n);
}

/* Moves bits `from` and on of every byte to bits `to` and on; the other bits are undefined. from <
 * 8, to <= 4. */
ALWAYS_INLINE ilanes bits_moved(ilanes a, uint32_t from, uint32_t to)
{
	return i_left(i_right(a, from), to);
}

/* The sum of the products of both 16-bit halves of a and b. */
ALWAYS_INLINE ilanes i_madd(ilanes a, ilanes b)
{
	return _mm256_madd_epi16(a, b);
}

/* table[code] for each byte, codes 0..15. */
ALWAYS_INLINE ilanes i_look_up(const int8_t table[16], ilanes codes)
{
	__m128i once = _mm_loadu_si128((const __m128i *)(const void *)table);

	return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(once), codes);
}

/* table[index] for each lane, by plain loads. vpgatherdd would be a fifth faster (Rocket Lake, in
 * cache, IQ2_XXS with one token: 14.8 against 12.3 G weights/s), but qemu 7.2, which the tests use
 * as a CPU that has AVX2 alone, computes it wrongly. */
ALWAYS_INLINE ilanes i_gather(const uint32_t *table, ilanes index)
{
	uint32_t i[8];

	_mm256_storeu_si256((__m256i *)(void *)i, index);
	return _mm256_setr_epi32((int)table[i[0]], (int)table[i[1]], (int)table[i[2]],
		(int)table[i[3]], (int)table[i[4]], (int)table[i[5]], (int)table[i[6]],
		(int)table[i[7]]);
}

/* Adds bit i of a lane to weight i as the bit `as` of it, 8 or 16. Every four bits are put, as the
 * upper half of a byte, into four bytes, each of which keeps one. */
ALWAYS_INLINE void add_one_bits(ilanes bits, int as, ilanes w[8])
{
	const ilanes low = i_left(bits, 4), one = i_set1((int32_t)0x80402010),
		     step = i_set1(0x01010101);
	ilanes from =
		_mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));

#pragma GCC unroll 4
	for (uint32_t k = 0; k < 8; k += 2, from = i_add(from, step)) {
		ilanes even = i_and(_mm256_shuffle_epi8(low, from), one);
		ilanes odd = i_and(_mm256_shuffle_epi8(bits, from), one);

		w[k] = i_or(w[k], _mm256_min_epu8(even, i_set1_8(as)));
		w[k + 1] = i_or(w[k + 1], _mm256_min_epu8(odd, i_set1_8(as)));
	}
}

ALWAYS_INLINE flanes f_set1(float a)
{
	return _mm256_set1_ps(a);
}

ALWAYS_INLINE flanes f_zero(void)
{
	return _mm256_setzero_ps();
}

ALWAYS_INLINE flanes f_add(flanes a, flanes b)
{
	return _mm256_add_ps(a, b);
}

ALWAYS_INLINE flanes f_mul(flanes a, flanes b)
{
	return _mm256_mul_ps(a, b);
}

ALWAYS_INLINE flanes f_fma(flanes a, flanes b, flanes c)
{
	return _mm256_fmadd_ps(a, b, c);
}

ALWAYS_INLINE flanes f_negate(flanes a)
{
	return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}

ALWAYS_INLINE flanes f_of_i(ilanes a)
{
	return _mm256_cvtepi32_ps(a);
}

ALWAYS_INLINE flanes f_of_bits(ilanes a)
{
	return _mm256_castsi256_ps(a);
}

/* The float16 in the low half of each lane, as float32. */
ALWAYS_INLINE flanes f_of_half(ilanes a)
{
	ilanes low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
	ilanes packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);

	return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

/* The dword at p of each row. */
ALWAYS_INLINE ilanes load_dwords(const uint8_t *p, size_t s)
{
	return _mm256_setr_epi32(load_i32(p), load_i32(p + s), load_i32(p + 2 * s),
		load_i32(p + 3 * s), load_i32(p + 4 * s), load_i32(p + 5 * s), load_i32(p + 6 * s),
		load_i32(p + 7 * s));
}

/* Loads a dword, 16 bits or a byte at p for each lane, and widens it with zeros. */
ALWAYS_INLINE ilanes lanes_32(const uint8_t *p)
{
	return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

ALWAYS_INLINE ilanes lanes_16(const uint8_t *p)
{
	return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

ALWAYS_INLINE ilanes lanes_8(const uint8_t *p)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

ALWAYS_INLINE flanes lanes_half(const uint8_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Loads 16 bytes of each row; lane r of out[k] is dword k of row r. */
ALWAYS_INLINE void load_16(const uint8_t *p, size_t row_bytes, ilanes out[4])
{
	__m256i in[4], a, b, c, d;

#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		const void *low = p + i * row_bytes, *high = p + (4 + i) * row_bytes;

		in[i] = _mm256_inserti128_si256(
			_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
			_mm_loadu_si128((const __m128i *)high), 1);
	}
	a = _mm256_unpacklo_epi32(in[0], in[1]);
	b = _mm256_unpacklo_epi32(in[2], in[3]);
	c = _mm256_unpackhi_epi32(in[0], in[1]);
	d = _mm256_unpackhi_epi32(in[2], in[3]);
	out[0] = _mm256_unpacklo_epi64(a, b);
	out[1] = _mm256_unpackhi_epi64(a, b);
	out[2] = _mm256_unpacklo_epi64(c, d);
	out[3] = _mm256_unpackhi_epi64(c, d);
}

/* The same with 32 bytes of each row. */
ALWAYS_INLINE void load_32(const uint8_t *p, size_t row_bytes, ilanes out[8])
{
	load_16(p, row_bytes, out);
	load_16(p + 16, row_bytes, out + 4);
}

/* Joins two 16-bit numbers in each lane; the second goes to the upper half. */
ALWAYS_INLINE ilanes pair_of(ilanes first, ilanes last)
{
	return _mm256_blend_epi16(first, i_left(last, 16), 0xaa);
}

ALWAYS_INLINE ilanes four_of(const int8_t *q, uint32_t k)
{
	return _mm256_set1_epi32(load_i32(q + (size_t)4 * k));
}

/* Lane r: the sum of w * q over the 32 weights (0..31) of row r. A pair is at most 2 * 31 * 127 =
 * 7874 in magnitude, so 16 bits hold the sum of four pairs. */
ALWAYS_INLINE ilanes dot_32(const ilanes w[8], const int8_t *q)
{
	ilanes low = _mm256_maddubs_epi16(w[0], four_of(q, 0));
	ilanes high = _mm256_maddubs_epi16(w[4], four_of(q, 4));

#pragma GCC unroll 3
	for (uint32_t k = 1; k < 4; k++) {
		low = _mm256_add_epi16(low, _mm256_maddubs_epi16(w[k], four_of(q, k)));
		high = _mm256_add_epi16(high, _mm256_maddubs_epi16(w[4 + k], four_of(q, 4 + k)));
	}
	return i_add(i_madd(low, _mm256_set1_epi16(1)), i_madd(high, _mm256_set1_epi16(1)));
}

/* The same for weights -128..127: q takes over the sign of w, and a pair is at most 2 * 128 * 127 =
 * 32512. */
ALWAYS_INLINE ilanes dot_signed(const ilanes w[8], const int8_t *q)
{
	ilanes dot = _mm256_setzero_si256();

#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++) {
		ilanes pairs = _mm256_maddubs_epi16(
			_mm256_abs_epi8(w[k]), _mm256_sign_epi8(four_of(q, k), w[k]));

		dot = i_add(dot, i_madd(pairs, _mm256_set1_epi16(1)));
	}
	return dot;
}

/* The sums over the first and over the last 16 products, for weights less IQ4_BIAS, -64..63: two
 * pairs are at most 4 * 64 * 127 = 32512. */
ALWAYS_INLINE void dot_halves_signed(const ilanes w[8], const struct q8_block *x, ilanes sum[2])
{
#pragma GCC unroll 2
	for (uint32_t half = 0; half < 2; half++) {
		ilanes pairs[4];

#pragma GCC unroll 4
		for (uint32_t i = 0; i < 4; i++) {
			const uint32_t k = 4 * half + i;

			pairs[i] = _mm256_maddubs_epi16(
				_mm256_abs_epi8(w[k]), _mm256_sign_epi8(four_of(x->q, k), w[k]));
		}
		sum[half] =
			i_add(i_madd(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_set1_epi16(1)),
				i_madd(_mm256_add_epi16(pairs[2], pairs[3]), _mm256_set1_epi16(1)));
	}
}

/* With larger weights, a sum of eight 16-bit pairs could saturate, so the weights keep the offset
 * of their type. */
#define TILES_OFFSET(offset) (offset)
ALWAYS_INLINE void raise_all(int8_t offset, ilanes w[8])
{
	(void)offset;
	(void)w;
}

/* dot_32 of weights that are `offset` too high, with the surplus subtracted. */
ALWAYS_INLINE ilanes dot_less(const ilanes w[8], const struct q8_block *x, int16_t offset)
{
	return i_sub(dot_32(w, x->q), i_set1(offset * q8_sum(x)));
}

/* dot_signed of weights less IQ4_BIAS, which is 0 here. */
ALWAYS_INLINE ilanes dot_signed_less(const ilanes w[8], const struct q8_block *x)
{
	return dot_signed(w, x->q);
}

/* Lane r: c_0 * (sum over weights 0..15) + c_1 * (sum over 16..31), for weights 0..63. A pair is at
 * most 2 * 63 * 127 = 16002, so 16 bits hold two pairs. */
ALWAYS_INLINE ilanes dot_factors_0(
	const ilanes w[8], const struct factors *factors, const struct q8_block *x)
{
	ilanes dot = _mm256_setzero_si256();

#pragma GCC unroll 4
	for (uint32_t k = 0; k < 8; k += 2) {
		ilanes pairs = _mm256_add_epi16(_mm256_maddubs_epi16(w[k], four_of(x->q, k)),
			_mm256_maddubs_epi16(w[k + 1], four_of(x->q, k + 1)));

		dot = i_add(dot, i_madd(pairs, factors->c[k / 4]));
	}
	return dot;
}

/* Prepare the factors of dot_factors_*(), -128..127 in each lane: for exact weights, and for
 * weights 4 or 32 too high. */
ALWAYS_INLINE void factors_0(ilanes first, ilanes last, struct factors *out)
{
	out->c[0] = pair_of(first, first);
	out->c[1] = pair_of(last, last);
}

ALWAYS_INLINE void factors_4(ilanes first, ilanes last, struct factors *out)
{
	factors_0(first, last, out);
	out->more = pair_of(i_left(first, 2), i_left(last, 2));
}

ALWAYS_INLINE void factors_32(ilanes first, ilanes last, struct factors *out)
{
	factors_0(first, last, out);
	out->more = pair_of(i_left(first, 5), i_left(last, 5));
}

/* dot_factors_0 of weights that are too high (stored as 0..7 and 0..63), with the surplus
 * subtracted. */
ALWAYS_INLINE ilanes dot_factors_4(
	const ilanes w[8], const struct factors *factors, const struct q8_block *x)
{
	ilanes sums = i_set1(load_i32(x->sums));

	return i_sub(dot_factors_0(w, factors, x), i_madd(factors->more, sums));
}

ALWAYS_INLINE ilanes dot_factors_32(
	const ilanes w[8], const struct factors *factors, const struct q8_block *x)
{
	return dot_factors_4(w, factors, x);
}

/* Stores lanes from..to-1 to y[from..to-1]. */
ALWAYS_INLINE void f_store_some(float *y, flanes a, uint32_t from, uint32_t to)
{
	float whole[TILE_ROWS];

	if (to - from == TILE_ROWS) {
		_mm256_storeu_ps(y, a);
		return;
	}
	_mm256_storeu_ps(whole, a);
	for (uint32_t r = from; r < to; r++)
		y[r] = whole[r];
}
