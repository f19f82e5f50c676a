/* The reference backend: plain C for any CPU, in the order kernels.h defines, and as simple as that allows. */
#include "kernels/cpu/vec_scalar.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/quantise.h"

#define BACKEND scalar
#define MATMUL_ROWS 2
#define MATMUL_TOKENS 2
#define MATMUL_QUANTISED matmul_blocks

static void op_quantise_q8(const float *x, uint32_t cols, struct q8_block *out)
{
	for (uint32_t b = 0; b < cols / Q8_BLOCK; b++) {
		const float *in = x + (size_t)b * Q8_BLOCK;
		uint32_t amax_bits = 0;
		float inverse;

		for (uint32_t i = 0; i < Q8_BLOCK; i++) {
			uint32_t magnitude = bits_of_float(in[i]) & 0x7fffffffu;

			amax_bits = magnitude > amax_bits ? magnitude : amax_bits;
		}
		inverse = quantise_scale(amax_bits, &out[b]);
		for (uint32_t i = 0; inverse > 0 && i < Q8_BLOCK; i++) {
			/* Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits. */
			float shifted = in[i] * inverse + EXP_SHIFT;
			int32_t q = (int32_t)(bits_of_float(shifted) - 0x4b400000u);

			out[b].q[i] = (int8_t)q;
			out[b].sum += q;
		}
	}
}

/* q_w of weight i < 32 of a block, Q4_0's offset taken off. */
static int32_t weight_at(enum tensor_type type, const uint8_t *block, uint32_t i)
{
	const uint8_t *q = block + (type == TENSOR_Q4_1 ? 4 : 2);
	int32_t nibble;

	if (type == TENSOR_Q8_0)
		return (int8_t)q[i];
	nibble = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
	return type == TENSOR_Q4_0 ? nibble - 8 : nibble;
}

static float dot_blocks(enum tensor_type type, const uint8_t *row, const struct q8_block *x,
	uint32_t blocks, uint32_t block_bytes)
{
	float acc = 0;

	for (uint32_t b = 0; b < blocks; b++, row += block_bytes) {
		float d = float_of_half(load_u16(row));
		int32_t isum = 0;

		for (uint32_t i = 0; i < Q8_BLOCK; i++)
			isum += weight_at(type, row, i) * x[b].q[i];
		acc = fma32(d * x[b].d, (float)isum, acc);
		if (type == TENSOR_Q4_1)
			acc = fma32(
				float_of_half(load_u16(row + 2)), x[b].d * (float)x[b].sum, acc);
	}
	return acc;
}

static void matmul_blocks(const struct matrix *w, uint32_t first, uint32_t last,
	const struct activation *x, uint32_t n, float *const *y)
{
	uint32_t block_bytes = tensor_type_info((uint32_t)w->type)->block_bytes;

	for (uint32_t r = first; r < last; r++) {
		const uint8_t *row = (const uint8_t *)w->data + (size_t)r * w->row_bytes;

		for (uint32_t t = 0; t < n; t++)
			y[t][r] =
				dot_blocks(w->type, row, x[t].q8, w->cols / Q8_BLOCK, block_bytes);
	}
}

#include "kernels/cpu/template_elementwise.h"
#include "kernels/cpu/template_attention.h"
#include "kernels/cpu/template_matmul.h"
#include "kernels/cpu/template_ops.h"
