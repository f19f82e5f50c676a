/* Quantised products with AVX-512 VNNI: 16 rows by up to 16 activation rows; template_blocks.h says how. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"

#include <immintrin.h>

#define TILE_ROWS 16
#define TILE_TOKENS 16
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#include "kernels/cpu/template_blocks.h"

/* rows i, 4 + i, 8 + i and 12 + i of 16 bytes each -> lane r of out[k] = dword k of row r. */
ALWAYS_INLINE void transpose_16x4(const __m512i in[4], __m512i out[4])
{
	__m512i a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpacklo_epi32(in[2], in[3]);
	__m512i c = _mm512_unpackhi_epi32(in[0], in[1]), d = _mm512_unpackhi_epi32(in[2], in[3]);

	out[0] = _mm512_unpacklo_epi64(a, b);
	out[1] = _mm512_unpackhi_epi64(a, b);
	out[2] = _mm512_unpacklo_epi64(c, d);
	out[3] = _mm512_unpackhi_epi64(c, d);
}

ALWAYS_INLINE __m512i load_two(const uint8_t *low, const uint8_t *high)
{
	__m256i first = _mm256_loadu_si256((const __m256i *)(const void *)low);
	__m256i second = _mm256_loadu_si256((const __m256i *)(const void *)high);

	return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

/* 32 bytes of each of 16 rows -> lane r of w[k] = dword k of row r. */
ALWAYS_INLINE void unpack_bytes(const uint8_t *p, size_t row_bytes, __m512i w[8])
{
	__m512i in[8], t[8];

#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		in[i] = load_two(p + i * row_bytes, p + (4 + i) * row_bytes);
		in[4 + i] = load_two(p + (8 + i) * row_bytes, p + (12 + i) * row_bytes);
	}
	/* 128-bit lanes of t[k]: dword k of rows 0-3, dword 4 + k of them, then the same of rows 4-7. */
	transpose_16x4(in, t);
	transpose_16x4(in + 4, t + 4);
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		w[k] = _mm512_shuffle_i32x4(t[k], t[4 + k], 0x88);
		w[4 + k] = _mm512_shuffle_i32x4(t[k], t[4 + k], 0xdd);
	}
}

ALWAYS_INLINE __m128i load_16(const uint8_t *p)
{
	return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* 16 bytes of each of 16 rows, low nibbles weights 0..15, high nibbles 16..31 -> w as above. */
ALWAYS_INLINE void unpack_nibbles(const uint8_t *p, size_t row_bytes, __m512i w[8])
{
	const __m512i low = _mm512_set1_epi8(15);
	__m512i in[4], t[4];

#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		in[i] = _mm512_castsi128_si512(load_16(p + i * row_bytes));
		in[i] = _mm512_inserti32x4(in[i], load_16(p + (4 + i) * row_bytes), 1);
		in[i] = _mm512_inserti32x4(in[i], load_16(p + (8 + i) * row_bytes), 2);
		in[i] = _mm512_inserti32x4(in[i], load_16(p + (12 + i) * row_bytes), 3);
	}
	transpose_16x4(in, t);
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		w[k] = _mm512_and_si512(t[k], low);
		w[4 + k] = _mm512_and_si512(_mm512_srli_epi16(t[k], 4), low);
	}
}

/* The float16 at p of each of 16 rows, widened. */
ALWAYS_INLINE __m512 load_scales(const uint8_t *p, size_t s)
{
	const uint8_t *q = p + 8 * s;
	__m128i low = _mm_setr_epi16((short)load_u16(p), (short)load_u16(p + s),
		(short)load_u16(p + 2 * s), (short)load_u16(p + 3 * s), (short)load_u16(p + 4 * s),
		(short)load_u16(p + 5 * s), (short)load_u16(p + 6 * s), (short)load_u16(p + 7 * s));
	__m128i high = _mm_setr_epi16((short)load_u16(q), (short)load_u16(q + s),
		(short)load_u16(q + 2 * s), (short)load_u16(q + 3 * s), (short)load_u16(q + 4 * s),
		(short)load_u16(q + 5 * s), (short)load_u16(q + 6 * s), (short)load_u16(q + 7 * s));

	return _mm512_cvtph_ps(_mm256_set_m128i(high, low));
}

/* Lane r: sum of u_w * q_x over the block, u_w the unsigned weights. Two chains hide half the latency. */
ALWAYS_INLINE __m512i tile_dot(const __m512i w[8], const struct q8_block *x)
{
	__m512i even = _mm512_setzero_si512(), odd = even;

#pragma GCC unroll 4
	for (uint32_t k = 0; k < 8; k += 2) {
		int32_t first, second;

		memcpy(&first, x->q + (size_t)4 * k, sizeof(first));
		memcpy(&second, x->q + (size_t)4 * k + 4, sizeof(second));
		even = _mm512_dpbusd_epi32(even, w[k], _mm512_set1_epi32(first));
		odd = _mm512_dpbusd_epi32(odd, w[k + 1], _mm512_set1_epi32(second));
	}
	return _mm512_add_epi32(even, odd);
}

/* One tile: type and T are constants where this is inlined. */
ALWAYS_INLINE void tile_product(enum tensor_type type, const struct tile *tile,
	const struct activation *x, const uint32_t T, float *const *y)
{
	const uint32_t block_bytes = type == TENSOR_Q8_0 ? 34 : type == TENSOR_Q4_0 ? 18 : 20;
	/* VNNI multiplies unsigned by signed bytes, so Q8_0 weights are taken 128 higher and Q4_0's as they
	 * are stored, 8 higher: a shift of sum_x takes that off exactly. */
	const unsigned int offset_bits = type == TENSOR_Q8_0 ? 7 : 3;
	const __mmask16 wanted = (__mmask16)((1u << tile->to) - (1u << tile->from));
	const uint8_t *p = tile->weights;
	__m512 acc[TILE_TOKENS];

	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		acc[t] = _mm512_setzero_ps();
	for (uint32_t b = 0; b < tile->blocks; b++, p += block_bytes) {
		__m512 d = load_scales(p, tile->row_bytes), m = d;
		__m512i w[8];

		if (type == TENSOR_Q8_0) {
			unpack_bytes(p + 2, tile->row_bytes, w);
#pragma GCC unroll 8
			for (uint32_t k = 0; k < 8; k++)
				w[k] = _mm512_xor_si512(w[k], _mm512_set1_epi8(-128));
		} else {
			unpack_nibbles(p + block_bytes - 16, tile->row_bytes, w);
		}
		if (type == TENSOR_Q4_1)
			m = load_scales(p + 2, tile->row_bytes);
		UNROLL_TOKENS
		for (uint32_t t = 0; t < T; t++) {
			const struct q8_block *block = x[t].q8 + b;
			__m512i dot = tile_dot(w, block);

			if (type != TENSOR_Q4_1)
				dot = _mm512_sub_epi32(
					dot, _mm512_slli_epi32(_mm512_set1_epi32(q8_sum(block)),
						     offset_bits));
			acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(block->d)),
				_mm512_cvtepi32_ps(dot), acc[t]);
			if (type == TENSOR_Q4_1)
				acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(block->d_sum), acc[t]);
		}
	}
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		_mm512_mask_storeu_ps(y[t] + tile->row, wanted, acc[t]);
}

/* A function for each type and count of tokens, so that the sums stay in registers. */
#define TILE(type, tokens)                                                            \
	static void tile_##type##_##tokens(                                           \
		const struct tile *tile, const struct activation *x, float *const *y) \
	{                                                                             \
		tile_product(TENSOR_##type, tile, x, tokens, y);                      \
	}
#define TILES(type)                                                                                \
	TILE(type, 1)                                                                              \
	TILE(type, 2)                                                                              \
	TILE(type, 3)                                                                              \
	TILE(type, 4)                                                                              \
	TILE(type, 5)                                                                              \
	TILE(type, 6)                                                                              \
	TILE(type, 7)                                                                              \
	TILE(type, 8)                                                                              \
	TILE(type, 9)                                                                              \
	TILE(type, 10)                                                                             \
	TILE(type, 11)                                                                             \
	TILE(type, 12)                                                                             \
	TILE(type, 13)                                                                             \
	TILE(type, 14)                                                                             \
	TILE(type, 15)                                                                             \
	TILE(type, 16)                                                                             \
	static tile_function *const tiles_##type[TILE_TOKENS] = {tile_##type##_1, tile_##type##_2, \
		tile_##type##_3, tile_##type##_4, tile_##type##_5, tile_##type##_6,                \
		tile_##type##_7, tile_##type##_8, tile_##type##_9, tile_##type##_10,               \
		tile_##type##_11, tile_##type##_12, tile_##type##_13, tile_##type##_14,            \
		tile_##type##_15, tile_##type##_16}

TILES(Q8_0);
TILES(Q4_0);
TILES(Q4_1);

void kernels_avx512_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	if (w->layout == LAYOUT_TILES)
		kernels_avx512_matmul_tiles(w, first, last, x, n, y);
	else if (w->type == TENSOR_Q8_0)
		blocks_matmul_all(tiles_Q8_0, NULL, w, first, last, x, n, y);
	else if (w->type == TENSOR_Q4_0)
		blocks_matmul_all(tiles_Q4_0, NULL, w, first, last, x, n, y);
	else if (w->type == TENSOR_Q4_1)
		blocks_matmul_all(tiles_Q4_1, NULL, w, first, last, x, n, y);
	else
		kernels_avx512_matmul_runs(w, first, last, x, n, y);
}
