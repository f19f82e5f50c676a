/* Quantised products with AVX2: 8 rows by up to 8 activation rows; template_blocks.h says how. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"

#include <immintrin.h>

#define TILE_ROWS 8
#define TILE_TOKENS 8
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#include "kernels/cpu/template_blocks.h"

/* 128-bit halves of in[i]: 16 bytes of row i and of row 4 + i -> lane r of out[k] = dword k of row r. */
ALWAYS_INLINE void transpose_8x4(const __m256i in[4], __m256i out[4])
{
	__m256i a = _mm256_unpacklo_epi32(in[0], in[1]), b = _mm256_unpacklo_epi32(in[2], in[3]);
	__m256i c = _mm256_unpackhi_epi32(in[0], in[1]), d = _mm256_unpackhi_epi32(in[2], in[3]);

	out[0] = _mm256_unpacklo_epi64(a, b);
	out[1] = _mm256_unpackhi_epi64(a, b);
	out[2] = _mm256_unpacklo_epi64(c, d);
	out[3] = _mm256_unpackhi_epi64(c, d);
}

/* 16 bytes of each of 8 rows. */
ALWAYS_INLINE void unpack_16_bytes(const uint8_t *p, size_t row_bytes, __m256i out[4])
{
	__m256i in[4];

#pragma GCC unroll 4
	for (uint32_t i = 0; i < 4; i++) {
		const void *low = p + i * row_bytes, *high = p + (4 + i) * row_bytes;

		in[i] = _mm256_inserti128_si256(
			_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
			_mm_loadu_si128((const __m128i *)high), 1);
	}
	transpose_8x4(in, out);
}

/* 32 bytes of each of 8 rows -> lane r of w[k] = dword k of row r. */
ALWAYS_INLINE void unpack_bytes(const uint8_t *p, size_t row_bytes, __m256i w[8])
{
	unpack_16_bytes(p, row_bytes, w);
	unpack_16_bytes(p + 16, row_bytes, w + 4);
}

/* 16 bytes of each of 8 rows, low nibbles weights 0..15, high nibbles 16..31 -> w as above. */
ALWAYS_INLINE void unpack_nibbles(const uint8_t *p, size_t row_bytes, __m256i w[8])
{
	const __m256i low = _mm256_set1_epi8(15);
	__m256i t[4];

	unpack_16_bytes(p, row_bytes, t);
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		w[k] = _mm256_and_si256(t[k], low);
		w[4 + k] = _mm256_and_si256(_mm256_srli_epi16(t[k], 4), low);
	}
}

/* The float16 at p of each of 8 rows, widened. */
ALWAYS_INLINE __m256 load_scales(const uint8_t *p, size_t s)
{
	return _mm256_cvtph_ps(_mm_setr_epi16((short)load_u16(p), (short)load_u16(p + s),
		(short)load_u16(p + 2 * s), (short)load_u16(p + 3 * s), (short)load_u16(p + 4 * s),
		(short)load_u16(p + 5 * s), (short)load_u16(p + 6 * s),
		(short)load_u16(p + 7 * s)));
}

ALWAYS_INLINE __m256i broadcast_4(const int8_t *q)
{
	int32_t four;

	memcpy(&four, q, sizeof(four));
	return _mm256_set1_epi32(four);
}

/* Lane r: sum of q_w * q_x over the block, signed bytes. The sign of w goes to x: |w| <= 128 and |x| <= 127, so
 * a pair is at most 32512 and the 16-bit sums of maddubs do not saturate. */
ALWAYS_INLINE __m256i tile_dot_bytes(const __m256i w[8], const struct q8_block *x)
{
	const __m256i ones = _mm256_set1_epi16(1);
	__m256i dot = _mm256_setzero_si256();

#pragma GCC unroll 8
	for (uint32_t k = 0; k < 8; k++) {
		__m256i in = _mm256_sign_epi8(broadcast_4(x->q + (size_t)4 * k), w[k]);
		__m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[k]), in);

		dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
	}
	return dot;
}

/* The same for weights 0..15, unsigned: eight pairs are at most 8 * 2 * 15 * 127 = 30480, so 16 bits hold the
 * sum of all eight. */
ALWAYS_INLINE __m256i tile_dot_nibbles(const __m256i w[8], const struct q8_block *x)
{
	__m256i pairs = _mm256_maddubs_epi16(w[0], broadcast_4(x->q));

#pragma GCC unroll 8
	for (uint32_t k = 1; k < 8; k++)
		pairs = _mm256_add_epi16(
			pairs, _mm256_maddubs_epi16(w[k], broadcast_4(x->q + (size_t)4 * k)));
	return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Lanes from..to-1 of a tile's results. */
ALWAYS_INLINE void tile_store(const struct tile *tile, float *y, __m256 acc)
{
	float whole[TILE_ROWS];

	if (tile->to - tile->from == TILE_ROWS) {
		_mm256_storeu_ps(y + tile->row, acc);
		return;
	}
	_mm256_storeu_ps(whole, acc);
	for (uint32_t r = tile->from; r < tile->to; r++)
		y[tile->row + r] = whole[r];
}

/* One tile: type and T are constants where this is inlined. */
ALWAYS_INLINE void tile_product(enum tensor_type type, const struct tile *tile,
	const struct activation *x, const uint32_t T, float *const *y)
{
	const uint32_t block_bytes = type == TENSOR_Q8_0 ? 34 : type == TENSOR_Q4_0 ? 18 : 20;
	const uint8_t *p = tile->weights;
	__m256 acc[TILE_TOKENS];

	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		acc[t] = _mm256_setzero_ps();
	for (uint32_t b = 0; b < tile->blocks; b++, p += block_bytes) {
		__m256 d = load_scales(p, tile->row_bytes), m = d;
		__m256i w[8];

		if (type == TENSOR_Q8_0)
			unpack_bytes(p + 2, tile->row_bytes, w);
		else
			unpack_nibbles(p + block_bytes - 16, tile->row_bytes, w);
		if (type == TENSOR_Q4_1)
			m = load_scales(p + 2, tile->row_bytes);
		UNROLL_TOKENS
		for (uint32_t t = 0; t < T; t++) {
			const struct q8_block *block = x[t].q8 + b;
			__m256i dot = type == TENSOR_Q8_0 ? tile_dot_bytes(w, block)
							  : tile_dot_nibbles(w, block);

			if (type == TENSOR_Q4_0)
				dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(8 * q8_sum(block)));
			acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(block->d)),
				_mm256_cvtepi32_ps(dot), acc[t]);
			if (type == TENSOR_Q4_1)
				acc[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(block->d_sum), acc[t]);
		}
	}
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
		tile_store(tile, y[t], acc[t]);
}

/* A function for each type and count of tokens, so that loops over tokens unroll. */
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
	static tile_function *const tiles_##type[TILE_TOKENS] = {tile_##type##_1, tile_##type##_2, \
		tile_##type##_3, tile_##type##_4, tile_##type##_5, tile_##type##_6,                \
		tile_##type##_7, tile_##type##_8}

TILES(Q8_0);
TILES(Q4_0);
TILES(Q4_1);

void kernels_avx2_matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	if (w->layout == LAYOUT_TILES)
		kernels_avx2_matmul_tiles(w, first, last, x, n, y);
	else if (w->type == TENSOR_Q8_0)
		blocks_matmul_all(tiles_Q8_0, NULL, w, first, last, x, n, y);
	else if (w->type == TENSOR_Q4_0)
		blocks_matmul_all(tiles_Q4_0, NULL, w, first, last, x, n, y);
	else if (w->type == TENSOR_Q4_1)
		blocks_matmul_all(tiles_Q4_1, NULL, w, first, last, x, n, y);
	else
		kernels_avx2_matmul_runs(w, first, last, x, n, y);
}
