/* Sixteen float32 lanes in one AVX-512 register. vec_scalar.h describes each function. */
#pragma once

#include "kernels/cpu/math.h"
#include "kernels/tensor.h"

#include <immintrin.h>

struct v16 {
	__m512 v;
};

static inline __mmask16 v16_first(uint32_t n)
{
	return (__mmask16)((1u << n) - 1);
}

static inline struct v16 v16_set1(float a)
{
	return (struct v16){_mm512_set1_ps(a)};
}

static inline struct v16 v16_load(const float *p)
{
	return (struct v16){_mm512_loadu_ps(p)};
}

static inline struct v16 v16_load_n(const float *p, uint32_t n)
{
	return (struct v16){_mm512_maskz_loadu_ps(v16_first(n), p)};
}

static inline struct v16 v16_load_f16(const uint16_t *p)
{
	return (struct v16){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p))};
}

static inline struct v16 v16_load_f16_n(const uint16_t *p, uint32_t n)
{
	return (struct v16){_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_first(n), p))};
}

static inline struct v16 v16_of_bf16(__m256i b)
{
	return (struct v16){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16))};
}

static inline struct v16 v16_load_bf16(const uint16_t *p)
{
	return v16_of_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline struct v16 v16_load_bf16_n(const uint16_t *p, uint32_t n)
{
	return v16_of_bf16(_mm256_maskz_loadu_epi16(v16_first(n), p));
}

static inline void v16_store(float *p, struct v16 a)
{
	_mm512_storeu_ps(p, a.v);
}

static inline void v16_store_n(float *p, struct v16 a, uint32_t n)
{
	_mm512_mask_storeu_ps(p, v16_first(n), a.v);
}

static inline __m256i v16_half(struct v16 a)
{
	return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline void v16_store_f16(uint16_t *p, struct v16 a)
{
	_mm256_storeu_si256((__m256i *)(void *)p, v16_half(a));
}

static inline void v16_store_f16_n(uint16_t *p, struct v16 a, uint32_t n)
{
	_mm256_mask_storeu_epi16(p, v16_first(n), v16_half(a));
}

static inline struct v16 v16_add(struct v16 a, struct v16 b)
{
	return (struct v16){_mm512_add_ps(a.v, b.v)};
}

static inline struct v16 v16_sub(struct v16 a, struct v16 b)
{
	return (struct v16){_mm512_sub_ps(a.v, b.v)};
}

static inline struct v16 v16_mul(struct v16 a, struct v16 b)
{
	return (struct v16){_mm512_mul_ps(a.v, b.v)};
}

static inline struct v16 v16_div(struct v16 a, struct v16 b)
{
	return (struct v16){_mm512_div_ps(a.v, b.v)};
}

static inline struct v16 v16_max(struct v16 a, struct v16 b)
{
	return (struct v16){_mm512_max_ps(a.v, b.v)};
}

static inline struct v16 v16_min(struct v16 a, struct v16 b)
{
	return (struct v16){_mm512_min_ps(a.v, b.v)};
}

static inline struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
	return (struct v16){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

static inline struct v16 v16_fma_n(struct v16 a, struct v16 b, struct v16 c, uint32_t n)
{
	return (struct v16){_mm512_mask3_fmadd_ps(a.v, b.v, c.v, v16_first(n))};
}

static inline struct v16 v16_blend_n(struct v16 a, struct v16 b, uint32_t n)
{
	return (struct v16){_mm512_mask_blend_ps(v16_first(n), b.v, a.v)};
}

static inline float v16_sum(struct v16 a)
{
	__m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
	__m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
	__m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#define V16_TILE 16

static inline void v16_transpose(struct v16 *a)
{
	__m512 two[16], four[16];

#pragma GCC unroll 8
	for (uint32_t i = 0; i < 16; i += 2) {
		two[i] = _mm512_unpacklo_ps(a[i].v, a[i + 1].v);
		two[i + 1] = _mm512_unpackhi_ps(a[i].v, a[i + 1].v);
	}
#pragma GCC unroll 4
	for (uint32_t i = 0; i < 16; i += 4)
#pragma GCC unroll 2
		for (uint32_t j = 0; j < 2; j++) {
			four[i + 2 * j] = _mm512_shuffle_ps(two[i + j], two[i + j + 2], 0x44);
			four[i + 2 * j + 1] = _mm512_shuffle_ps(two[i + j], two[i + j + 2], 0xee);
		}
		/* Quarter q of four[4 * i + j] is column 4 * q + j of rows 4 * i .. 4 * i + 3. */
#pragma GCC unroll 4
	for (uint32_t j = 0; j < 4; j++) {
		__m512 w = _mm512_shuffle_f32x4(four[j], four[j + 4], 0x88);
		__m512 x = _mm512_shuffle_f32x4(four[j], four[j + 4], 0xdd);
		__m512 y = _mm512_shuffle_f32x4(four[j + 8], four[j + 12], 0x88);
		__m512 z = _mm512_shuffle_f32x4(four[j + 8], four[j + 12], 0xdd);

		a[j].v = _mm512_shuffle_f32x4(w, y, 0x88);
		a[j + 4].v = _mm512_shuffle_f32x4(x, z, 0x88);
		a[j + 8].v = _mm512_shuffle_f32x4(w, y, 0xdd);
		a[j + 12].v = _mm512_shuffle_f32x4(x, z, 0xdd);
	}
}

static inline struct v16 v16_halves(
	struct v16 a, struct v16 b, const uint32_t half, struct v16 *with)
{
	__m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	__m512i low = _mm512_and_si512(lane, _mm512_set1_epi32((int)half - 1));
	/* The bits above `half` move up to make room for it. */
	__m512i from = _mm512_sub_epi32(_mm512_add_epi32(lane, lane), low);

	with->v = _mm512_permutex2var_ps(
		a.v, _mm512_add_epi32(from, _mm512_set1_epi32((int)half)), b.v);
	return (struct v16){_mm512_permutex2var_ps(a.v, from, b.v)};
}

static inline struct v16 v16_pick(struct v16 a, const uint32_t *lanes, struct v16 b)
{
	__m512i from = _mm512_loadu_si512(lanes);
	__mmask16 some = _mm512_cmplt_epu32_mask(from, _mm512_set1_epi32(16));

	return (struct v16){_mm512_mask_permutexvar_ps(b.v, some, from, a.v)};
}

static inline struct v16 v16_first_half(struct v16 a)
{
	return (struct v16){_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_castps_si512(a.v)))};
}

static inline struct v16 v16_second_half(struct v16 a)
{
	__m512i second = _mm512_srli_epi32(_mm512_castps_si512(a.v), 16);

	return (struct v16){_mm512_cvtph_ps(_mm512_cvtepi32_epi16(second))};
}

struct i16 {
	__m512i v;
};

struct i8x64 {
	__m512i v; /* stored 128 higher: the instruction needs one unsigned operand */
};

static inline struct i8x64 i8x64_load(const uint8_t *p)
{
	return (struct i8x64){_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))};
}

static inline struct i16 i16_dot_begin(const struct q8_block *q)
{
	return (struct i16){_mm512_set1_epi32(q->minus_128)};
}

/* Four bytes of any type, at any address. */
typedef int32_t any_32 __attribute__((may_alias, aligned(1)));

/* Assembler, because GCC moves the sum between registers from one of these instructions to the
 * next, and loads what could be a memory operand. */
static inline struct i16 i16_dot(struct i16 a, struct i8x64 k, const int8_t *q)
{
	__asm__("vpdpbusd %2%{1to16%}, %1, %0"
		: "+v"(a.v)
		: "v"(k.v), "m"(*(const any_32 *)(const void *)q));
	return a;
}

static inline struct v16 v16_of_i16(struct i16 a)
{
	return (struct v16){_mm512_cvtepi32_ps(a.v)};
}

static inline struct i16 i16_zero(void)
{
	return (struct i16){_mm512_setzero_si512()};
}

struct i16x32 {
	__m512i v;
};

static inline struct i16x32 i16x32_load(const uint8_t *p)
{
	return (struct i16x32){_mm512_loadu_si512(p)};
}

static inline struct i16x32 i16x32_load_i8(const uint8_t *p)
{
	return (struct i16x32){
		_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p))};
}

static inline struct i16 i16_dot_pairs(struct i16 a, struct i16x32 k, const int16_t *q)
{
	__asm__("vpdpwssd %2%{1to16%}, %1, %0"
		: "+v"(a.v)
		: "v"(k.v), "m"(*(const any_32 *)(const void *)q));
	return a;
}

static inline void v16_store_i16(int16_t *p, struct v16 a)
{
	_mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a.v)));
}

static inline float v16_greatest(struct v16 a)
{
	__m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
	__m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
	__m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline struct v16 v16_exp(struct v16 x)
{
	const __m512 shift = _mm512_set1_ps(EXP_SHIFT);
	__m512 t = _mm512_fmadd_ps(x.v, _mm512_set1_ps(EXP_LOG2E), shift);
	__m512 n = _mm512_sub_ps(t, shift);
	__m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_HIGH), x.v);
	__m512 p = _mm512_set1_ps(EXP_C7);

	r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_LOW), r);
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C6));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C5));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C4));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C3));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C2));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
	/* Scaling keeps a NaN. The mask turns everything too small into 0, even the NaN that -inf
	 * has become. */
	p = _mm512_maskz_scalef_ps(
		_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(EXP_LEAST), _CMP_NLT_UQ), p, n);
	p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(EXP_MOST), _CMP_GT_OQ),
		_mm512_set1_ps(__builtin_inff()));
	return (struct v16){p};
}

struct w8 {
	__m512i v;
};

static inline struct w8 w8_set1(uint64_t a)
{
	return (struct w8){_mm512_set1_epi64((long long)a)};
}

static inline struct w8 w8_count(uint32_t first)
{
	return (struct w8){_mm512_add_epi64(
		_mm512_set1_epi64(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7))};
}

static inline struct w8 w8_mul(struct w8 a, struct w8 b)
{
	return (struct w8){_mm512_mul_epu32(a.v, b.v)};
}

static inline struct w8 w8_high(struct w8 a)
{
	return (struct w8){_mm512_srli_epi64(a.v, 32)};
}

static inline struct w8 w8_xor3(struct w8 a, struct w8 b, struct w8 c)
{
	return (struct w8){_mm512_ternarylogic_epi64(a.v, b.v, c.v, 0x96)};
}

static inline void w8_store_top24(uint32_t *out, struct w8 a)
{
	_mm256_storeu_si256(
		(__m256i *)(void *)out, _mm256_srli_epi32(_mm512_cvtepi64_epi32(a.v), 8));
}
