/*
 * Runs of the types whose weights are found in a grid, of the ternary ones and of NVFP4, as plainly
 * as BLOCKS of numerics.md states them, each weight from its bits. The grids' entries are those of
 * kernels/cpu: the golden blocks hold every one.
 */
#pragma once

#include "kernels/cpu/grids.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* n <= 16 bits from any bit of p on. */
static inline uint32_t field_at(const uint8_t *p, uint32_t bit, uint32_t n)
{
	uint32_t value = 0;

	for (uint32_t i = 0; i < n; i++)
		value |= (uint32_t)(p[(bit + i) / 8] >> (bit + i) % 8 & 1) << i;
	return value;
}

/* Weight i of eight (or of four): its code in an entry. */
static inline int code_of(uint32_t entry, uint32_t i)
{
	return (int)(entry >> (8 * (i % 4) + 4 * (i / 4)) & 15);
}

/* Bit i of a field of seven signs, whose eighth makes their number even. */
static inline bool sign_of_seven(uint32_t seven, uint32_t i)
{
	return (i < 7 ? seven >> i : (uint32_t)__builtin_parity(seven)) & 1;
}

static inline int grid_weight(enum tensor_type type, int code, bool minus)
{
	static const int iq2[] = {8, 25, 43}, iq3[] = {4, 12, 20, 28, 36, 44, 52, 62};
	int g = type == TENSOR_IQ3_XXS ? iq3[code] : type == TENSOR_IQ3_S ? 2 * code + 1 : 0;

	if (type == TENSOR_IQ1_S || type == TENSOR_IQ1_M)
		return 8 * (code - 1) + (minus ? -1 : 1);
	if (g == 0)
		g = iq2[code];
	return minus ? -g : g;
}

/* Weight i of run s: IQ1 and IQ2, indices of eight weights. */
static inline int eights_weight(enum tensor_type type, const uint8_t *b, uint32_t s, uint32_t i)
{
	uint32_t at = 4 * s + i / 8, j = i % 8, index;

	if (type == TENSOR_IQ2_XXS)
		return grid_weight(type, code_of(kernels_grid_iq2_xxs[b[2 + 8 * s + i / 8]], j),
			sign_of_seven(field_at(b + 6 + 8 * s, 7 * (i / 8), 7), j));
	if (type == TENSOR_IQ2_XS)
		return grid_weight(type,
			code_of(kernels_grid_iq2_xs[field_at(b + 2, 16 * at, 9)], j),
			sign_of_seven(field_at(b + 2, 16 * at + 9, 7), j));
	if (type == TENSOR_IQ2_S) {
		index = b[2 + at] + 256 * field_at(b + 66, 2 * at, 2);
		return grid_weight(type, code_of(kernels_grid_iq2_s[index], j),
			field_at(b + 34, 32 * s + i, 1));
	}
	if (type == TENSOR_IQ1_S) {
		index = b[2 + at] + 256 * field_at(b + 34 + 2 * s, 3 * (i / 8), 3);
		return grid_weight(type, code_of(kernels_grid_iq1_s[index], j),
			field_at(b + 34 + 2 * s, 15, 1));
	}
	index = b[at] + 256 * field_at(b + 32, 4 * at, 3);
	return grid_weight(
		type, code_of(kernels_grid_iq1_s[index], j), field_at(b + 32, 4 * at + 3, 1));
}

static inline int fours_weight(enum tensor_type type, const uint8_t *b, uint32_t s, uint32_t i)
{
	uint32_t at = 8 * s + i / 4, index = b[2 + at];

	if (type == TENSOR_IQ3_XXS)
		return grid_weight(type, code_of(kernels_grid_iq3_xxs[index], i % 4),
			sign_of_seven(field_at(b + 66 + 4 * s, 7 * (i / 8), 7), i % 8));
	index += 256 * field_at(b + 66, at, 1);
	return grid_weight(
		type, code_of(kernels_grid_iq3_s[index], i % 4), field_at(b + 74, 32 * s + i, 1));
}

/* Weight w of a block of TQ1_0: its byte is a fraction, ceil(256 * n / 243) with n in base three.
 */
static inline int ternary_weight(const uint8_t *b, uint32_t w)
{
	uint32_t byte = w < 160 ? b[w % 32] : w < 240 ? b[32 + w % 16] : b[48 + w % 4];
	uint32_t place = w < 160 ? w / 32 : w < 240 ? (w - 160) / 16 : (w - 240) / 4;

	for (; place; place--)
		byte = byte * 3 % 256;
	return (int)(byte * 3 / 256) - 1;
}

static inline bool is_coded(enum tensor_type type)
{
	return (type >= TENSOR_IQ2_XXS && type <= TENSOR_IQ1_S) || type == TENSOR_IQ3_S ||
	       type == TENSOR_IQ2_S || type == TENSOR_IQ1_M || type == TENSOR_TQ1_0 ||
	       type == TENSOR_TQ2_0 || type == TENSOR_NVFP4;
}

static inline int coded_weight(enum tensor_type type, const uint8_t *b, uint32_t s, uint32_t i)
{
	static const int fp4[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

	if (type == TENSOR_NVFP4)
		return fp4[field_at(
			b + 4 + 16 * s + 8 * (i / 16), 8 * (i % 8) + 4 * (i / 8 % 2), 4)];
	if (type == TENSOR_TQ1_0)
		return ternary_weight(b, 32 * s + i);
	if (type == TENSOR_TQ2_0)
		return (int)field_at(b + 32 * (s / 4) + i, 2 * (s % 4), 2) - 1;
	if (type == TENSOR_IQ3_XXS || type == TENSOR_IQ3_S)
		return fours_weight(type, b, s, i);
	return eights_weight(type, b, s, i);
}

static inline float reference_half(uint16_t h);

/* An unsigned E4M3 number, halved; the top bit is not read. */
static inline float reference_e4m3_half(uint8_t e)
{
	int exponent = e >> 3 & 15, fraction = e & 7;

	if (e == 0x7f)
		return 0;
	return exponent ? ldexpf((float)(8 + fraction), exponent - 11)
			: ldexpf((float)fraction, -10);
}

/* Scales of run s: d of the first and the last 16 weights, c likewise. */
static inline void coded_scales(
	enum tensor_type type, const uint8_t *b, uint32_t s, float d[2], int c[2])
{
	uint32_t at = type == TENSOR_TQ1_0 ? 52 : type == TENSOR_TQ2_0 ? 64 : 0;
	uint16_t half = (uint16_t)field_at(b + at, 0, 16);

	if (type == TENSOR_NVFP4) {
		d[0] = reference_e4m3_half(b[2 * s]);
		d[1] = reference_e4m3_half(b[2 * s + 1]);
		return;
	}
	if (type == TENSOR_IQ1_M) {
		half = 0;
		for (uint32_t i = 0; i < 4; i++)
			half |= (uint16_t)(field_at(b + 48, 16 * i + 12, 4) << 4 * i);
	}
	d[0] = reference_half(half);
	if (type == TENSOR_IQ2_XXS)
		d[0] *= (float)(2 * field_at(b + 6 + 8 * s, 28, 4) + 1) / 8;
	else if (type == TENSOR_IQ3_XXS)
		d[0] *= (float)(2 * field_at(b + 66 + 4 * s, 28, 4) + 1) / 4;
	else if (type == TENSOR_IQ3_S)
		d[0] *= (float)(2 * field_at(b + 106, 4 * s, 4) + 1);
	else if (type == TENSOR_IQ1_S)
		d[0] *= (float)(2 * field_at(b + 34 + 2 * s, 12, 3) + 1) / 8;
	else if (type != TENSOR_TQ1_0 && type != TENSOR_TQ2_0)
		d[0] /= 8;
	d[1] = d[0];
	for (uint32_t h = 0; h < 2; h++) {
		if (type == TENSOR_IQ2_XS || type == TENSOR_IQ2_S)
			c[h] = (int)(2 * field_at(b + (type == TENSOR_IQ2_XS ? 66 : 74),
						 8 * s + 4 * h, 4) +
				     1);
		else if (type == TENSOR_IQ1_M)
			c[h] = (int)(2 * field_at(b + 48 + s / 2 * 2, 6 * (s % 2) + 3 * h, 3) + 1);
	}
}
