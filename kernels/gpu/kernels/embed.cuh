/* The start of a pass: rotations of the positions, and rows of the embedding. */
#pragma once

#include "kernels/gpu/kernels/rows.cuh"

#include "kernels/cpu/functions.h"

enum { EMBED_THREADS = 128 };

/* A thread: one pair of a token's cosines and sines. */
KERNEL angles(struct dev_rows tokens, struct dev_rows cos_sin, const double *frequency,
	double magnitude, uint32_t pairs)
{
	uint32_t i = blockIdx.x * EMBED_THREADS + threadIdx.x, t = blockIdx.y;

	if (i >= pairs)
		return;
	const struct step_token *token = (const struct step_token *)(tokens.at + t * tokens.stride);
	float *out = float_row(cos_sin, t);
	double sine, cosine;

	sincos64((double)token->position * frequency[i], &sine, &cosine);
	out[2 * i] = (float)(cosine * magnitude);
	out[2 * i + 1] = (float)(sine * magnitude);
}

/* A value of a plain type. */
template <int TYPE> DEV float plain_value(const void *row, uint32_t k)
{
	if (TYPE == TENSOR_F16)
		return float_of_half(((const uint16_t *)row)[k]);
	if (TYPE == TENSOR_BF16)
		return float_of_bfloat(((const uint16_t *)row)[k]);
	return ((const float *)row)[k];
}

/* Tokens that the table does not have are masks: embed_masks (adapt.cuh). */
template <int TYPE>
KERNEL embed_plain(struct dev_rows tokens, struct matrix table, struct dev_rows x)
{
	uint32_t k = blockIdx.x * EMBED_THREADS + threadIdx.x, t = blockIdx.y;

	if (k >= table.cols)
		return;
	const struct step_token *token = (const struct step_token *)(tokens.at + t * tokens.stride);
	if (token->id >= table.rows)
		return;
	const unsigned char *row = (const unsigned char *)table.data + token->id * table.row_bytes;
	float value = plain_value<TYPE>(row, k);

	float_row(x, t)[k] = table.scaled ? f_mul(value, table.scale) : value;
}
