/* Sixteen 32-bit lanes, one row of weights in each. lanes_avx2.h describes each function. */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/tensor.h"

#include <immintrin.h>

#define TILE_ROWS 16
#define TILE_TOKENS 16
#define TILES_UNROLLED 16
#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* VNNI multiplies unsigned by signed bytes, so IQ4's weights are stored 128 higher. */
#define IQ4_BIAS 128

typedef __m512i ilanes;
typedef __m512 flanes;

/* c_0 and c_1 of a run, or pair_of() both in c[0]. */
struct factors {
	ilanes c[2];
};

ALWAYS_INLINE ilanes i_set1(int32_t a)
{
	return _mm512_set1_epi32(a);
}

ALWAYS_INLINE ilanes i_set1_8(int a)
{
	return _mm512_set1_epi8((char)a);
}

ALWAYS_INLINE ilanes i_and(ilanes a, ilanes b)
{
	return _mm512_and_si512(a, b);
}

ALWAYS_INLINE ilanes i_or(ilanes a, ilanes b)
{
	return _mm512_or_si512(a, b);
}

ALWAYS_INLINE ilanes i_xor(ilanes a, ilanes b)
{
	return _mm512_xor_si512(a, b);
}

ALWAYS_INLINE ilanes i_add(ilanes a, ilanes b)
{
	return _mm512_add_epi32(a, b);
}

ALWAYS_INLINE ilanes i_add_8(ilanes a, ilanes b)
{
	return _mm512_add_epi8(a, b);
}

ALWAYS_INLINE ilanes i_sub(ilanes a, ilanes b)
{
	return _mm512_sub_epi32(a, b);
}

ALWAYS_INLINE ilanes i_mul(ilanes a, ilanes b)
{
	return _mm512_mullo_epi32(a, b);
}

ALWAYS_INLINE ilanes i_left(ilanes a, uint32_t n)
{
	return _mm512_slli_epi32(a, n);
}

ALWAYS_INLINE ilanes i_right(ilanes a, uint32_t n)
{
	return _mm512_srli_epi32(a, n);
}

ALWAYS_INLINE ilanes i_right_signed(ilanes a, uint32_t n)
{
	return _mm512_srai_epi32(a, n);
}

ALWAYS_INLINE ilanes bits_moved(ilanes a, uint32_t from, uint32_t to)
{
	return from == to ? a : _mm512_rorv_epi32(a, _mm512_set1_epi32((int32_t)(from - to)));
}

ALWAYS_INLINE ilanes i_madd(ilanes a, ilanes b)
{
	return _mm512_madd_epi16(a, b);
}

ALWAYS_INLINE ilanes i_look_up(const int8_t table[16], ilanes codes)
{
	__m128i once = _mm_loadu_si128((const __m128i *)(const void *)table);

	return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(once), codes);
}

ALWAYS_INLINE ilanes i_gather(const uint32_t *table, ilanes index)
{
	return _mm512_i32gather_epi32(index, table, 4);
}

ALWAYS_INLINE void add_one_bits(ilanes bits, int as, ilanes w[8])
{
	const ilanes even = i_set1(0x08040201), odd = i_set1((int32_t)0x80402010),
		     step = i_set1(0x01010101);
	ilanes from = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));

#pragma GCC unroll 4
	for (uint32_t k = 0; k < 8; k += 2, from = i_add(from, step)) {
		ilanes four = _mm512_shuffle_epi8(bits, from);

		w[k] = _mm512_mask_add_epi8(
			w[k], _mm512_test_epi8_mask(four, even), w[k], i_set1_8(as));
		w[k + 1] = _mm512_mask_add_epi8(
			w[k + 1], _mm512_test_epi8_mask(four, odd), w[k + 1], i_set1_8(as));
	}
}

ALWAYS_INLINE flanes f_set1(float a)
{
	return _mm512_set1_ps(a);
}

ALWAYS_INLINE flanes f_zero(void)
{
	return _mm512_setzero_ps();
}

ALWAYS_INLINE flanes f_add(flanes a, flanes b)
{
	return _mm512_add_ps(a, b);
}

ALWAYS_INLINE flanes f_mul(flanes a, flanes b)
{
	return _mm512_mul_ps(a, b);
}

ALWAYS_INLINE flanes f_fma(flanes a, flanes b, flanes c)
{
	return _mm512_fmadd_ps(a, b, c);
}

ALWAYS_INLINE flanes f_negate(flanes a)
{
	return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}

ALWAYS_INLINE flanes f_of_i(ilanes a)
{
	return _mm512_cvtepi32_ps(a);
}

ALWAYS_INLINE flanes f_of_bits(ilanes a)
{
	return _mm512_castsi512_ps(a);
}

ALWAYS_INLINE flanes f_of_half(ilanes a)
{
	return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
}

ALWAYS_INLINE ilanes load_dwords(const uint8_t *p, size_t s)
{
	const uint8_t *q = p + 8 * s;

	return _mm512_setr_epi32(load_i32(p), load_i32(p + s), load_i32(p + 2 * s),
		load_i32(p + 3 * s), load_i32(p + 4 * s), load_i32(p + 5 * s), load_i32(p + 6 * s),
		load_i32(p + 7 * s), load_i32(q), load_i32(q + s), load_i32(q + 2 * s),
		load_i32(q + 3 * s), load_i32(q + 4 * s), load_i32(q + 5 * s), load_i32(q + 6 * s),
		load_i32(q + 7 * s));
}

ALWAYS_INLINE ilanes lanes_32(const uint8_t *p)
{
	return _mm512_loadu_si512((const void *)p);
}

ALWAYS_INLINE ilanes lanes_16(const uint8_t *p)
{
	return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

ALWAYS_INLINE ilanes lanes_8(const uint8_t *p)
{
	return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

ALWAYS_INLINE flanes lanes_half(const uint8_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* in[i] holds 16 bytes each of rows i, 4 + i, 8 + i and 12 + i. Lane r of out[k] becomes dword k of
 * row r. */
ALWAYS_INLINE void transpose_16x4(const ilanes in[4], ilanes out[4])
{
	__m512i a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpacklo_epi32(in[2], in[3]);
	__m512i c = _mm512_unpackhi_epi32(in[0], in[1]), d = _mm512_unpackhi_epi32(in[2], in[3]);

	out[0] = _mm512_unpacklo_epi64(a, b);
	out[1] = _mm512_unpackhi_epi64(a, b);
	out[2] = _mm512_unpacklo_epi64(c, d);
	out[3] = _mm512_unpackhi_epi64(c, d);
}

ALWAYS_INLINE __m128i sixteen_at(const uint8_t *p)
{
	return _mm_loadu_si128((const __m128i *)(const void *)p);
}

ALWAYS_INLINE void load_16(const uint8_t *p, size_t row_bytes, ilanes out[4])
{
	__m512i in[4];

#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		in[i] = _mm512_castsi128_si512(sixteen_at(p + i * row_bytes));
		in[i] = _mm512_inserti32x4(in[i], sixteen_at(p + (4 + i) * row_bytes), 1);
		in[i] = _mm512_inserti32x4(in[i], sixteen_at(p + (8 + i) * row_bytes), 2);
		in[i] = _mm512_inserti32x4(in[i], sixteen_at(p + (12 + i) * row_bytes), 3);
	}
	transpose_16x4(in, out);
}

ALWAYS_INLINE __m512i two_rows(const uint8_t *low, const uint8_t *high)
{
	__m256i first = _mm256_loadu_si256((const __m256i *)(const void *)low);
	__m256i second = _mm256_loadu_si256((const __m256i *)(const void *)high);

	return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

ALWAYS_INLINE void load_32(const uint8_t *p, size_t row_bytes, ilanes out[8])
{
	__m512i in[8], t[8];

#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		in[i] = two_rows(p + i * row_bytes, p + (4 + i) * row_bytes);
		in[4 + i] = two_rows(p + (8 + i) * row_bytes, p + (12 + i) * row_bytes);
	}
	/* 128-bit lanes of t[k]: dword k of rows 0-3, dword 4 + k of the same rows, then both for
	 * rows 4-7. */
	transpose_16x4(in, t);
	transpose_16x4(in + 4, t + 4);
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		out[k] = _mm512_shuffle_i32x4(t[k], t[4 + k], 0x88);
		out[4 + k] = _mm512_shuffle_i32x4(t[k], t[4 + k], 0xdd);
	}
}

/* Adds to `sum` the products of four weights of each row, unsigned bytes, with q[4k..4k+3]. */
ALWAYS_INLINE ilanes add_four(ilanes sum, ilanes w, const int8_t *q, uint32_t k)
{
	/* Assembler, because GCC 12 does not make the broadcast an operand of the product. With it,
	 * a run's weights and the sums of 16 tokens stay in registers. Q4_0 with 16 tokens: from 65
	 * to 71 % of the VNNI peak of a Zen 5. */
	__asm__("vpdpbusd %2%{1to16%}, %1, %0"
		: "+v"(sum)
		: "v"(w), "m"(*(const int8_t(*)[4])(q + (size_t)4 * k)));
	return sum;
}

/* For weights 0..255. Two chains hide half the latency. */
ALWAYS_INLINE ilanes dot_32(const ilanes w[8], const int8_t *q)
{
	ilanes even = _mm512_setzero_si512(), odd = even;

#pragma GCC unroll 4
	for (uint32_t k = 0; k < 8; k += 2) {
		even = add_four(even, w[k], q, k);
		odd = add_four(odd, w[k + 1], q, k + 1);
	}
	return i_add(even, odd);
}

/* The weights are unsigned, thanks to IQ4_BIAS. */
ALWAYS_INLINE ilanes dot_signed(const ilanes w[8], const int8_t *q)
{
	return dot_32(w, q);
}

ALWAYS_INLINE ilanes pair_of(ilanes first, ilanes last)
{
	return _mm512_mask_blend_epi16(0xaaaaaaaa, first, i_left(last, 16));
}

/* The sums of the products of the first and of the last 16 weights. */
ALWAYS_INLINE void dot_halves(const ilanes w[8], const int8_t *q, ilanes sum[2])
{
	sum[0] = sum[1] = _mm512_setzero_si512();
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		sum[0] = add_four(sum[0], w[k], q, k);
		sum[1] = add_four(sum[1], w[4 + k], q, 4 + k);
	}
}

ALWAYS_INLINE void factors_32(ilanes first, ilanes last, struct factors *out)
{
	out->c[0] = first;
	out->c[1] = last;
}

/* dot_halves of weights that are 2^bits too high. The surplus is subtracted by shifts, which use
 * other execution pipes than products do. */
ALWAYS_INLINE void dot_halves_less(
	const ilanes w[8], const struct q8_block *x, uint32_t bits, ilanes sum[2])
{
	ilanes more = i_set1(load_i32(x->sums));

	dot_halves(w, x->q, sum);
	sum[0] = i_sub(sum[0], i_right_signed(i_left(more, 16), 16 - bits));
	sum[1] = i_sub(sum[1], i_left(i_right_signed(more, 16), bits));
}

ALWAYS_INLINE void dot_halves_signed(const ilanes w[8], const struct q8_block *x, ilanes sum[2])
{
	dot_halves_less(w, x, 7, sum);
}

ALWAYS_INLINE ilanes dot_factors_32(
	const ilanes w[8], const struct factors *factors, const struct q8_block *x)
{
	ilanes sum[2];

	dot_halves_less(w, x, 5, sum);
	return i_add(i_mul(sum[0], factors->c[0]), i_mul(sum[1], factors->c[1]));
}

ALWAYS_INLINE void factors_4(ilanes first, ilanes last, struct factors *out)
{
	out->c[0] = pair_of(first, last);
}

/* Both sums are at most 16 * 7 * 127 = 14224 in magnitude, and fit one lane. */
ALWAYS_INLINE ilanes pair_dot(const ilanes w[8], const struct q8_block *x)
{
	const __m128i low_words = _mm_setr_epi32(0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c);
	ilanes sum[2];

	dot_halves(w, x->q, sum);
	return _mm512_mask_shuffle_epi8(
		sum[0], 0xcccccccccccccccc, sum[1], _mm512_broadcast_i32x4(low_words));
}

ALWAYS_INLINE ilanes dot_factors_4(
	const ilanes w[8], const struct factors *factors, const struct q8_block *x)
{
	ilanes more = _mm512_slli_epi16(i_set1(load_i32(x->sums)), 2);

	return i_madd(_mm512_sub_epi16(pair_dot(w, x), more), factors->c[0]);
}

ALWAYS_INLINE void factors_0(ilanes first, ilanes last, struct factors *out)
{
	factors_4(first, last, out);
}

ALWAYS_INLINE ilanes dot_factors_0(
	const ilanes w[8], const struct factors *factors, const struct q8_block *x)
{
	return i_madd(pair_dot(w, x), factors->c[0]);
}

/* Makes weights that are `offset` too high 128 too high, for dot_less(); signed weights too. */
#define TILES_OFFSET(offset) 128
ALWAYS_INLINE void raise_all(int8_t offset, ilanes w[8])
{
#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++)
		w[k] = i_add_8(w[k], i_set1_8(TILES_OFFSET(offset) - offset));
}

/* dot_32 of weights that are 128 too high, with the surplus subtracted. */
ALWAYS_INLINE ilanes dot_less(const ilanes w[8], const struct q8_block *x, int16_t offset)
{
	ilanes even = i_set1(x->minus_128), odd = _mm512_setzero_si512();

	(void)offset;
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 8; k += 2) {
		even = add_four(even, w[k], x->q, k);
		odd = add_four(odd, w[k + 1], x->q, k + 1);
	}
	return i_add(even, odd);
}

ALWAYS_INLINE ilanes dot_signed_less(const ilanes w[8], const struct q8_block *x)
{
	return dot_less(w, x, 128);
}

ALWAYS_INLINE void f_store_some(float *y, flanes a, uint32_t from, uint32_t to)
{
	_mm512_mask_storeu_ps(y, (__mmask16)((1u << to) - (1u << from)), a);
}
