/* The scalar table: plain C for any CPU, in the order that numerics.md defines, and as simple as
 * that allows. Also the reference table, which differs from it only in the product of quantised
 * weights. */
#include "kernels/cpu/vec_scalar.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/quantise.h"

#define BACKEND scalar
#define MATMUL_ROWS 2
#define MATMUL_TOKENS 2
#define MATMUL_QUANTISED kernels_scalar_matmul_blocks

static void op_quantise_q8(const float *x, uint32_t cols, struct q8_block *out)
{
	for (uint32_t b = 0; b < cols / Q8_BLOCK; b++) {
		const float *in = x + (size_t)b * Q8_BLOCK;
		int32_t sums[2] = {0, 0};
		uint32_t amax_bits = 0;
		float inverse;

		for (uint32_t i = 0; i < Q8_BLOCK; i++) {
			uint32_t magnitude = bits_of_float(in[i]) & 0x7fffffffu;

			amax_bits = magnitude > amax_bits ? magnitude : amax_bits;
		}
		inverse = quantise_scale(amax_bits, &out[b]);
		for (uint32_t i = 0; inverse > 0 && i < Q8_BLOCK; i++) {
			/* Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in
			 * the low bits. */
			float shifted = in[i] * inverse + EXP_SHIFT;
			int32_t q = (int32_t)(bits_of_float(shifted) - 0x4b400000u);

			out[b].q[i] = (int8_t)q;
			sums[i / 16] += q;
		}
		if (inverse > 0)
			quantise_sums(sums[0], sums[1], &out[b]);
	}
}

#include "kernels/cpu/template_elementwise.h"
#include "kernels/cpu/template_attention.h"
#include "kernels/cpu/template_delta.h"
#include "kernels/cpu/template_matmul.h"
#include "kernels/cpu/template_sample.h"
#include "kernels/cpu/template_ops.h"

/* Weights that are widened at once (a group of kernels/tiles.h), and tokens that share them. */
#define REFERENCE_WEIGHTS 256
#define REFERENCE_TOKENS 8

/* LANES of a row's float32 values and n <= REFERENCE_TOKENS rows of float32 activations. */
static void reference_row(const struct matrix *w, uint32_t row, const struct activation *x,
	uint32_t n, float *const *y)
{
	struct v16 sum[REFERENCE_TOKENS];
	float wide[REFERENCE_WEIGHTS];

	for (uint32_t t = 0; t < n; t++)
		sum[t] = v16_set1(0);
	for (uint32_t k = 0; k < w->cols; k += REFERENCE_WEIGHTS) {
		uint32_t some = w->cols - k < REFERENCE_WEIGHTS ? w->cols - k : REFERENCE_WEIGHTS;

		kernels_dequantise_group(w, row, k / REFERENCE_WEIGHTS, wide);
		for (uint32_t t = 0; t < n; t++)
			for (uint32_t i = 0; i < some; i += 16)
				sum[t] = v16_fma(
					v16_load(wide + i), v16_load(x[t].f32 + k + i), sum[t]);
	}
	for (uint32_t t = 0; t < n; t++)
		y[t][row] = v16_sum(sum[t]);
}

static void reference_matmul(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	if (!tensor_type_info((uint32_t)w->type)->quantised) {
		op_matmul(w, first, last, x, n, y);
		return;
	}
	assert(first <= last && last <= w->rows);
	for (uint32_t r = first; r < last; r++)
		for (uint32_t t = 0; t < n; t += REFERENCE_TOKENS)
			reference_row(w, r, x + t,
				n - t < REFERENCE_TOKENS ? n - t : REFERENCE_TOKENS, y + t);
	scale_products(w, first, last, n, y);
}

OPS_TABLE(reference, reference_matmul, true);
