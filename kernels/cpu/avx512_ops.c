/* The table of functions for AVX-512; needs F, BW, VL, DQ and VNNI. */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/quantise.h"

#define BACKEND avx512
#define MATMUL_ROWS 4
#define MATMUL_TOKENS 4
#define MATMUL_QUANTISED kernels_avx512_matmul_blocks

static void op_quantise_q8(const float *x, uint32_t cols, struct q8_block *out)
{
	const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);

	for (uint32_t b = 0; b < cols / Q8_BLOCK; b++) {
		__m512 low = _mm512_loadu_ps(x + (size_t)b * Q8_BLOCK);
		__m512 high = _mm512_loadu_ps(x + (size_t)b * Q8_BLOCK + 16);
		__m512i most =
			_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
				_mm512_and_si512(_mm512_castps_si512(high), magnitude));
		float inverse = quantise_scale((uint32_t)_mm512_reduce_max_epi32(most), &out[b]);
		__m512i q_low, q_high;

		if (!(inverse > 0))
			continue;
		q_low = _mm512_cvtps_epi32(_mm512_mul_ps(low, _mm512_set1_ps(inverse)));
		q_high = _mm512_cvtps_epi32(_mm512_mul_ps(high, _mm512_set1_ps(inverse)));
		_mm_storeu_si128((__m128i *)(void *)out[b].q, _mm512_cvtepi32_epi8(q_low));
		_mm_storeu_si128((__m128i *)(void *)(out[b].q + 16), _mm512_cvtepi32_epi8(q_high));
		quantise_sums(
			_mm512_reduce_add_epi32(q_low), _mm512_reduce_add_epi32(q_high), &out[b]);
	}
}

#include "kernels/cpu/template_elementwise.h"
#include "kernels/cpu/template_attention.h"
#include "kernels/cpu/template_delta.h"
#include "kernels/cpu/template_matmul.h"
#include "kernels/cpu/template_sample.h"
#include "kernels/cpu/template_ops.h"
