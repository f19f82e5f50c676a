/* Sixteen float32 lanes in two AVX registers. vec_scalar.h describes each function. */
#pragma once

#include "kernels/cpu/math.h"
#include "kernels/tensor.h"

#include <immintrin.h>

/* Rounding to nearest, ties to even, whatever MXCSR says. */
#define V16_EVEN (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

struct v16 {
	__m256 low, high; /* lanes 0..7, 8..15 */
};

static inline __m256i v16_first_low(uint32_t n)
{
	const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

	return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index);
}

static inline __m256i v16_first_high(uint32_t n)
{
	const __m256i index = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);

	return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index);
}

static inline struct v16 v16_set1(float a)
{
	return (struct v16){_mm256_set1_ps(a), _mm256_set1_ps(a)};
}

static inline struct v16 v16_load(const float *p)
{
	return (struct v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline struct v16 v16_load_n(const float *p, uint32_t n)
{
	return (struct v16){_mm256_maskload_ps(p, v16_first_low(n)),
		_mm256_maskload_ps(p + 8, v16_first_high(n))};
}

static inline struct v16 v16_load_f16(const uint16_t *p)
{
	return (struct v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
		_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}

static inline struct v16 v16_load_f16_n(const uint16_t *p, uint32_t n)
{
	uint16_t whole[16] = {0};

	memcpy(whole, p, n * sizeof(*p));
	return v16_load_f16(whole);
}

static inline __m256 v8_of_bf16(const uint16_t *p)
{
	__m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);

	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
}

static inline struct v16 v16_load_bf16(const uint16_t *p)
{
	return (struct v16){v8_of_bf16(p), v8_of_bf16(p + 8)};
}

static inline struct v16 v16_load_bf16_n(const uint16_t *p, uint32_t n)
{
	uint16_t whole[16] = {0};

	memcpy(whole, p, n * sizeof(*p));
	return v16_load_bf16(whole);
}

static inline void v16_store(float *p, struct v16 a)
{
	_mm256_storeu_ps(p, a.low);
	_mm256_storeu_ps(p + 8, a.high);
}

static inline void v16_store_n(float *p, struct v16 a, uint32_t n)
{
	_mm256_maskstore_ps(p, v16_first_low(n), a.low);
	_mm256_maskstore_ps(p + 8, v16_first_high(n), a.high);
}

static inline void v16_store_f16(uint16_t *p, struct v16 a)
{
	_mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a.low, V16_EVEN));
	_mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(a.high, V16_EVEN));
}

static inline void v16_store_f16_n(uint16_t *p, struct v16 a, uint32_t n)
{
	uint16_t whole[16];

	v16_store_f16(whole, a);
	memcpy(p, whole, n * sizeof(*p));
}

static inline struct v16 v16_add(struct v16 a, struct v16 b)
{
	return (struct v16){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

static inline struct v16 v16_sub(struct v16 a, struct v16 b)
{
	return (struct v16){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

static inline struct v16 v16_mul(struct v16 a, struct v16 b)
{
	return (struct v16){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

static inline struct v16 v16_div(struct v16 a, struct v16 b)
{
	return (struct v16){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

static inline struct v16 v16_max(struct v16 a, struct v16 b)
{
	return (struct v16){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

static inline struct v16 v16_min(struct v16 a, struct v16 b)
{
	return (struct v16){_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

static inline struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
	return (struct v16){
		_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

static inline struct v16 v16_blend_n(struct v16 a, struct v16 b, uint32_t n)
{
	__m256 low = _mm256_castsi256_ps(v16_first_low(n));
	__m256 high = _mm256_castsi256_ps(v16_first_high(n));

	return (struct v16){
		_mm256_blendv_ps(b.low, a.low, low), _mm256_blendv_ps(b.high, a.high, high)};
}

static inline struct v16 v16_fma_n(struct v16 a, struct v16 b, struct v16 c, uint32_t n)
{
	return v16_blend_n(v16_fma(a, b, c), c, n);
}

static inline float v16_sum(struct v16 a)
{
	__m256 eight = _mm256_add_ps(a.low, a.high);
	__m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
	__m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#define V16_TILE 4

static inline void v8_transpose(__m256 *a)
{
	__m256 two[8], four[8];

#pragma GCC unroll 4
	for (uint32_t i = 0; i < 8; i += 2) {
		two[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
		two[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
	}
#pragma GCC unroll 2
	for (uint32_t i = 0; i < 8; i += 4)
#pragma GCC unroll 2
		for (uint32_t j = 0; j < 2; j++) {
			four[i + 2 * j] = _mm256_shuffle_ps(two[i + j], two[i + j + 2], 0x44);
			four[i + 2 * j + 1] = _mm256_shuffle_ps(two[i + j], two[i + j + 2], 0xee);
		}
#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		a[i] = _mm256_permute2f128_ps(four[i], four[i + 4], 0x20);
		a[i + 4] = _mm256_permute2f128_ps(four[i], four[i + 4], 0x31);
	}
}

static inline void v16_transpose(struct v16 *a)
{
	__m256 part[8];

#pragma GCC unroll 8
	for (uint32_t i = 0; i < 8; i++)
		part[i] = a[i].low;
	v8_transpose(part);
#pragma GCC unroll 8
	for (uint32_t i = 0; i < 8; i++) {
		__m256 from = a[i + 8].low;

		a[i].low = part[i];
		part[i] = from;
	}
	v8_transpose(part);
#pragma GCC unroll 8
	for (uint32_t i = 0; i < 8; i++) {
		__m256 from = a[i].high;

		a[i].high = part[i];
		part[i] = from;
	}
	v8_transpose(part);
#pragma GCC unroll 8
	for (uint32_t i = 0; i < 8; i++) {
		__m256 from = a[i + 8].high;

		a[i + 8].low = part[i];
		part[i] = from;
	}
	v8_transpose(part);
#pragma GCC unroll 8
	for (uint32_t i = 0; i < 8; i++)
		a[i + 8].high = part[i];
}

/* Two of every four lanes, selected by `parts`: a's, then b's. */
#define V8_HALVES(a, b, parts) \
	_mm256_castpd_ps(      \
		_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, parts)), 0xd8))

static inline struct v16 v16_halves(
	struct v16 a, struct v16 b, const uint32_t half, struct v16 *with)
{
	switch (half) {
	case 8:
		*with = (struct v16){a.high, b.high};
		return (struct v16){a.low, b.low};
	case 4:
		*with = (struct v16){_mm256_permute2f128_ps(a.low, a.high, 0x31),
			_mm256_permute2f128_ps(b.low, b.high, 0x31)};
		return (struct v16){_mm256_permute2f128_ps(a.low, a.high, 0x20),
			_mm256_permute2f128_ps(b.low, b.high, 0x20)};
	case 2:
		*with = (struct v16){
			V8_HALVES(a.low, a.high, 0xee), V8_HALVES(b.low, b.high, 0xee)};
		return (struct v16){V8_HALVES(a.low, a.high, 0x44), V8_HALVES(b.low, b.high, 0x44)};
	default:
		*with = (struct v16){
			V8_HALVES(a.low, a.high, 0xdd), V8_HALVES(b.low, b.high, 0xdd)};
		return (struct v16){V8_HALVES(a.low, a.high, 0x88), V8_HALVES(b.low, b.high, 0x88)};
	}
}

/* Half of v16_pick. */
static inline __m256 v8_pick(struct v16 a, const uint32_t *lanes, __m256 b)
{
	__m256i from = _mm256_loadu_si256((const __m256i *)(const void *)lanes);
	__m256i high = _mm256_slli_epi32(from, 28), none = _mm256_slli_epi32(from, 27);
	__m256 picked = _mm256_blendv_ps(_mm256_permutevar8x32_ps(a.low, from),
		_mm256_permutevar8x32_ps(a.high, from), _mm256_castsi256_ps(high));

	return _mm256_blendv_ps(picked, b, _mm256_castsi256_ps(none));
}

static inline struct v16 v16_pick(struct v16 a, const uint32_t *lanes, struct v16 b)
{
	return (struct v16){v8_pick(a, lanes, b.low), v8_pick(a, lanes + 8, b.high)};
}

static inline __m256 v8_of_halves(__m256i a)
{
	__m256i packed = _mm256_packus_epi32(a, a);

	packed = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
	return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

static inline struct v16 v16_first_half(struct v16 a)
{
	const __m256i half = _mm256_set1_epi32(0xffff);

	return (struct v16){v8_of_halves(_mm256_and_si256(_mm256_castps_si256(a.low), half)),
		v8_of_halves(_mm256_and_si256(_mm256_castps_si256(a.high), half))};
}

static inline struct v16 v16_second_half(struct v16 a)
{
	return (struct v16){v8_of_halves(_mm256_srli_epi32(_mm256_castps_si256(a.low), 16)),
		v8_of_halves(_mm256_srli_epi32(_mm256_castps_si256(a.high), 16))};
}

struct i16 {
	__m256i low, high;
};

struct i8x64 {
	__m256i low, high;
};

static inline struct i8x64 i8x64_load(const uint8_t *p)
{
	return (struct i8x64){_mm256_loadu_si256((const __m256i *)(const void *)p),
		_mm256_loadu_si256((const __m256i *)(const void *)(p + 32))};
}

static inline struct i16 i16_dot_begin(const struct q8_block *q)
{
	(void)q;
	return (struct i16){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

/* |q| <= 127 and |k| <= 128, so 16 bits hold two products. */
static inline __m256i i8_dot(__m256i a, __m256i k, __m256i q)
{
	__m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(k), _mm256_sign_epi8(q, k));

	return _mm256_add_epi32(a, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static inline struct i16 i16_dot(struct i16 a, struct i8x64 k, const int8_t *q)
{
	int32_t four;

	memcpy(&four, q, sizeof(four));
	__m256i all = _mm256_set1_epi32(four);
	return (struct i16){i8_dot(a.low, k.low, all), i8_dot(a.high, k.high, all)};
}

static inline struct v16 v16_of_i16(struct i16 a)
{
	return (struct v16){_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}

static inline struct i16 i16_zero(void)
{
	return (struct i16){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

struct i16x32 {
	__m256i low, high;
};

static inline struct i16x32 i16x32_load(const uint8_t *p)
{
	return (struct i16x32){_mm256_loadu_si256((const __m256i *)(const void *)p),
		_mm256_loadu_si256((const __m256i *)(const void *)(p + 32))};
}

static inline struct i16x32 i16x32_load_i8(const uint8_t *p)
{
	return (struct i16x32){
		_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)),
		_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)))};
}

static inline struct i16 i16_dot_pairs(struct i16 a, struct i16x32 k, const int16_t *q)
{
	int32_t pair;

	memcpy(&pair, q, sizeof(pair));
	__m256i all = _mm256_set1_epi32(pair);
	return (struct i16){_mm256_add_epi32(a.low, _mm256_madd_epi16(k.low, all)),
		_mm256_add_epi32(a.high, _mm256_madd_epi16(k.high, all))};
}

static inline void v16_store_i16(int16_t *p, struct v16 a)
{
	__m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high));

	_mm256_storeu_si256(
		(__m256i *)(void *)p, _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}

static inline float v16_greatest(struct v16 a)
{
	__m256 eight = _mm256_max_ps(a.low, a.high);
	__m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
	__m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline __m256 v8_exp(__m256 x)
{
	const __m256 shift = _mm256_set1_ps(EXP_SHIFT);
	__m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(EXP_LOG2E), shift);
	__m256 n = _mm256_sub_ps(t, shift);
	__m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_HIGH), x);
	__m256 p = _mm256_set1_ps(EXP_C7);

	r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_LOW), r);
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C6));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C5));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C4));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C3));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C2));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
	p = _mm256_castsi256_ps(_mm256_add_epi32(
		_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
	p = _mm256_blendv_ps(
		p, _mm256_setzero_ps(), _mm256_cmp_ps(x, _mm256_set1_ps(EXP_LEAST), _CMP_LT_OQ));
	p = _mm256_blendv_ps(p, _mm256_set1_ps(__builtin_inff()),
		_mm256_cmp_ps(x, _mm256_set1_ps(EXP_MOST), _CMP_GT_OQ));
	return _mm256_blendv_ps(p, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline struct v16 v16_exp(struct v16 x)
{
	return (struct v16){v8_exp(x.low), v8_exp(x.high)};
}

struct w8 {
	__m256i low, high;
};

static inline struct w8 w8_set1(uint64_t a)
{
	return (struct w8){_mm256_set1_epi64x((long long)a), _mm256_set1_epi64x((long long)a)};
}

static inline struct w8 w8_count(uint32_t first)
{
	__m256i from = _mm256_set1_epi64x(first);

	return (struct w8){_mm256_add_epi64(from, _mm256_setr_epi64x(0, 1, 2, 3)),
		_mm256_add_epi64(from, _mm256_setr_epi64x(4, 5, 6, 7))};
}

static inline struct w8 w8_mul(struct w8 a, struct w8 b)
{
	return (struct w8){_mm256_mul_epu32(a.low, b.low), _mm256_mul_epu32(a.high, b.high)};
}

static inline struct w8 w8_high(struct w8 a)
{
	return (struct w8){_mm256_srli_epi64(a.low, 32), _mm256_srli_epi64(a.high, 32)};
}

static inline struct w8 w8_xor3(struct w8 a, struct w8 b, struct w8 c)
{
	return (struct w8){_mm256_xor_si256(_mm256_xor_si256(a.low, b.low), c.low),
		_mm256_xor_si256(_mm256_xor_si256(a.high, b.high), c.high)};
}

static inline void w8_store_top24(uint32_t *out, struct w8 a)
{
	/* The low halves: those of each 128 bits of `low`, then those of `high`; then the quarters
	 * are put in order. */
	__m256 halves =
		_mm256_shuffle_ps(_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high), 0x88);
	__m256i words =
		_mm256_permute4x64_epi64(_mm256_castps_si256(halves), _MM_SHUFFLE(3, 1, 2, 0));

	_mm256_storeu_si256((__m256i *)(void *)out, _mm256_srli_epi32(words, 8));
}
