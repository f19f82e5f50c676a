/*
 * What the kernel tests share: a generator, comparison to the bit, the backends this CPU can run, and LANES and
 * BLOCKS of kernels.h written again as plainly as they are stated there (with libm's fmaf), independent of the
 * templates that all backends, scalar included, are made from.
 */
#pragma once

#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static inline uint64_t random_bits(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)(random_bits(state) % n);
}

/* Uniform in (-1, 1). */
static inline float random_float(uint64_t *state)
{
	return (float)((double)(int64_t)random_bits(state) * 0x1p-63);
}

static inline float float_from(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint32_t bits_from(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

/* Equal to the bit; a NaN equals a NaN, whose sign and payload kernels.h leaves open. */
static inline bool same_float(float a, float b)
{
	return bits_from(a) == bits_from(b) || (isnan(a) && isnan(b));
}

static inline void assert_same_floats(const float *a, const float *b, size_t n, const char *what)
{
	for (size_t i = 0; i < n; i++)
		if (!same_float(a[i], b[i]))
			fail_msg("%s: element %zu is %a (%08x), expected %a (%08x)", what, i,
				(double)a[i], bits_from(a[i]), (double)b[i], bits_from(b[i]));
}

/* The i-th backend this CPU supports, NULL after the last. Those it lacks are named once, as skipped. */
static inline const struct kernels *backend(size_t i)
{
	static bool told;
	size_t seen = 0;

	for (size_t k = 0; kernels_all[k]; k++) {
		if (!kernels_all[k]->supported()) {
			if (!told)
				print_message("# SKIP %s: this CPU cannot run it\n",
					kernels_all[k]->name);
			continue;
		}
		if (seen++ == i)
			return kernels_all[k];
	}
	told = true;
	return NULL;
}

static inline const struct kernels *scalar_backend(void)
{
	const struct kernels *k = kernels_select("scalar", NULL);

	assert_non_null(k);
	return k;
}

static inline float reference_lanes(const float *a, const float *b, uint32_t n)
{
	float lane[16] = {0};

	for (uint32_t k = 0; k < n; k++)
		lane[k % 16] = fmaf(a[k], b[k], lane[k % 16]);
	for (uint32_t half = 8; half; half /= 2)
		for (uint32_t i = 0; i < half; i++)
			lane[i] = lane[i] + lane[i + half];
	return lane[0];
}

/* float16 by its definition. */
static inline float reference_half(uint16_t h)
{
	int exponent = h >> 10 & 31;
	float fraction = (float)(h & 1023), value;

	if (exponent == 31)
		value = fraction > 0 ? NAN : INFINITY;
	else if (exponent == 0)
		value = ldexpf(fraction, -24);
	else
		value = ldexpf(1024 + fraction, exponent - 25);
	return h & 0x8000 ? -value : value;
}

static inline uint16_t u16_at(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

/* One row of weights, any type, times one activation row, as kernels.h states it. */
static inline float reference_product(
	enum tensor_type type, const uint8_t *row, uint32_t cols, const struct activation *x)
{
	float wide[4096], acc = 0;

	assert_true(cols <= 4096);
	if (type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16) {
		for (uint32_t k = 0; k < cols; k++) {
			if (type == TENSOR_F32)
				memcpy(&wide[k], row + (size_t)k * 4, 4);
			else if (type == TENSOR_F16)
				wide[k] = reference_half(u16_at(row + (size_t)k * 2));
			else
				wide[k] = float_from((uint32_t)u16_at(row + (size_t)k * 2) << 16);
		}
		return reference_lanes(wide, x->f32, cols);
	}
	for (uint32_t b = 0; b < cols / 32; b++) {
		const struct q8_block *in = &x->q8[b];
		float d = reference_half(u16_at(row));
		int isum = 0, sum = 0;

		for (int i = 0; i < 32; i++) {
			int q;

			if (type == TENSOR_Q8_0)
				q = (int8_t)row[2 + i];
			else if (type == TENSOR_Q4_0)
				q = (i < 16 ? row[2 + i] & 15 : row[2 + i - 16] >> 4) - 8;
			else
				q = i < 16 ? row[4 + i] & 15 : row[4 + i - 16] >> 4;
			isum += q * in->q[i];
			sum += in->q[i];
		}
		acc = fmaf(d * in->d, (float)isum, acc);
		if (type == TENSOR_Q4_1)
			acc = fmaf(reference_half(u16_at(row + 2)), in->d * (float)sum, acc);
		row += type == TENSOR_Q8_0 ? 34 : type == TENSOR_Q4_0 ? 18 : 20;
	}
	return acc;
}
