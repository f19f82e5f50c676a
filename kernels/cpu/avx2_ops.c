/* The table of functions for AVX2; needs AVX2, FMA and F16C. */
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/quantise.h"

#define BACKEND avx2
#define MATMUL_ROWS 2
#define MATMUL_TOKENS 2
#define MATMUL_QUANTISED kernels_avx2_matmul_blocks

static void op_quantise_q8(const float *x, uint32_t cols, struct q8_block *out)
{
	const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
	/* Packing works within 128-bit halves; this puts the dwords back in order. */
	const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

	for (uint32_t b = 0; b < cols / Q8_BLOCK; b++) {
		__m256i q[4], sums, most = _mm256_setzero_si256();
		__m128i four;
		float inverse;

		for (uint32_t i = 0; i < 4; i++) {
			__m256 in = _mm256_loadu_ps(x + (size_t)b * Q8_BLOCK + (size_t)i * 8);

			most = _mm256_max_epi32(
				most, _mm256_and_si256(_mm256_castps_si256(in), magnitude));
		}
		four = _mm_max_epi32(
			_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
		four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
		four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
		inverse = quantise_scale((uint32_t)_mm_cvtsi128_si32(four), &out[b]);
		if (!(inverse > 0))
			continue;
		for (uint32_t i = 0; i < 4; i++) {
			__m256 in = _mm256_loadu_ps(x + (size_t)b * Q8_BLOCK + (size_t)i * 8);

			q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(in, _mm256_set1_ps(inverse)));
		}
		sums = _mm256_hadd_epi32(
			_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
		q[0] = _mm256_packs_epi16(
			_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
		_mm256_storeu_si256(
			(__m256i *)(void *)out[b].q, _mm256_permutevar8x32_epi32(q[0], order));
		/* Dwords 0 and 1 belong to the first 16 values, 2 and 3 to the last. */
		four = _mm_add_epi32(
			_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
		four = _mm_hadd_epi32(four, four);
		quantise_sums(_mm_extract_epi32(four, 0), _mm_extract_epi32(four, 1), &out[b]);
	}
}

#include "kernels/cpu/template_elementwise.h"
#include "kernels/cpu/template_attention.h"
#include "kernels/cpu/template_delta.h"
#include "kernels/cpu/template_matmul.h"
#include "kernels/cpu/template_sample.h"
#include "kernels/cpu/template_ops.h"
