/*
 * What the kernel tests share: a generator, comparison to the bit, the backends this CPU can run,
 * and LANES and BLOCKS of numerics.md written again as plainly as they are stated there (with
 * libm's fmaf), independent of the templates that all backends, scalar included, are made from.
 */
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/kernels.h"
#include "tests/kernels/reference_coded.h"

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

/* Equal to the bit; a NaN equals a NaN, whose sign and payload numerics.md leaves open. */
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

/* The i-th backend this CPU supports, NULL after the last. Those it lacks are named once, as
 * skipped. */
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

/* The sum of a norm, NORM SUM of numerics.md. */
static inline float reference_norm_sum(const float *a, const float *b, uint32_t n)
{
	float partial[256] = {0};

	for (uint32_t k = 0; k < n; k++)
		partial[k % 256] = fmaf(a[k], b[k], partial[k % 256]);
	for (uint32_t step = 16; step < 256; step *= 2)
		for (uint32_t i = 0; i < 256; i++)
			if (i % (2 * step) < 16)
				partial[i] = partial[i] + partial[i + step];
	for (uint32_t half = 8; half; half /= 2)
		for (uint32_t i = 0; i < half; i++)
			partial[i] = partial[i] + partial[i + half];
	return partial[0];
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

/* Rows as they lie in a file. */
static inline struct matrix matrix_of(
	enum tensor_type type, const void *data, uint32_t rows, uint32_t cols)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)type);

	return (struct matrix){.type = type,
		.rows = rows,
		.cols = cols,
		.row_bytes = (size_t)cols / info->block_weights * info->block_bytes,
		.data = data};
}

struct reference_run {
	int q[32], c[2], e[2];
	float d, m;
	float d_last; /* d, but in NVFP4 */
	bool has_m;
};

static inline int bits_at(const uint8_t *p, uint32_t bit, uint32_t n)
{
	return p[bit / 8] >> bit % 8 & ((1 << n) - 1);
}

/* The types in blocks of 32: where d, m, the fifth bits and the weights begin, and what is taken
 * off. */
static inline void reference_run_32(
	enum tensor_type type, const uint8_t *block, struct reference_run *run)
{
	static const int iq4[] = {
		-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	static const int fp4[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
	bool five = type == TENSOR_Q5_0 || type == TENSOR_Q5_1;
	uint32_t at = run->has_m ? 4 : type == TENSOR_MXFP4 ? 1 : 2;

	if (type == TENSOR_MXFP4)
		run->d = ldexpf(1, block[0] - 128);
	else
		run->d = reference_half(u16_at(block));
	if (run->has_m)
		run->m = reference_half(u16_at(block + 2));
	for (uint32_t i = 0; i < 32; i++) {
		const uint8_t *codes = block + at + (five ? 4 : 0);
		int q;

		if (type == TENSOR_Q8_0) {
			run->q[i] = (int8_t)block[2 + i];
			continue;
		}
		q = bits_at(codes, 8 * (i % 16) + 4 * (i / 16), 4);
		if (five)
			q += 16 * bits_at(block + at, i, 1);
		if (type == TENSOR_IQ4_NL)
			q = iq4[q];
		else if (type == TENSOR_MXFP4)
			q = fp4[q];
		else if (!run->has_m)
			q -= five ? 16 : 8;
		run->q[i] = q;
	}
}

/* The six-bit numbers of Q4_K and Q5_K: scales 0..7, then minima 0..7. */
static inline int reference_six_bits(const uint8_t *p, uint32_t i)
{
	uint32_t j = i % 8, minimum = i / 8;

	if (j < 4)
		return bits_at(p, 8 * (j + 4 * minimum), 6);
	return bits_at(p + 8, 8 * (j - 4) + 4 * minimum, 4) +
	       16 * bits_at(p, 8 * (j - 4 + 4 * minimum) + 6, 2);
}

/* Run s of a block of 256. The weights of all are in parts of 128 but for Q4_K's and Q5_K's of 64.
 */
static inline void reference_run_256(
	enum tensor_type type, const uint8_t *block, uint32_t s, struct reference_run *run)
{
	static const int iq4[] = {
		-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	float d = reference_half(u16_at(block + (type == TENSOR_Q2_K	      ? 80
							: type == TENSOR_Q3_K ? 108
							: type == TENSOR_Q6_K ? 208
									      : 0)));
	uint32_t part = s / 4, in = s % 4;

	run->d = d;
	for (uint32_t h = 0; h < 2; h++) {
		uint32_t k = 2 * s + h;

		if (type == TENSOR_Q2_K) {
			run->c[h] = block[k] & 15;
			run->e[h] = block[k] >> 4;
		} else if (type == TENSOR_Q3_K) {
			run->c[h] = bits_at(block + 96, 8 * (k % 8) + 4 * (k / 8), 4) +
				    16 * bits_at(block + 104, 8 * (k % 4) + 2 * (k / 4), 2) - 32;
		} else if (type == TENSOR_Q6_K) {
			run->c[h] = (int8_t)block[192 + k];
		}
	}
	if (type == TENSOR_Q2_K) {
		run->m = -reference_half(u16_at(block + 82));
	} else if (type == TENSOR_Q4_K || type == TENSOR_Q5_K) {
		run->d = d * (float)reference_six_bits(block + 4, s);
		run->m = -(reference_half(u16_at(block + 2)) *
			   (float)reference_six_bits(block + 4, 8 + s));
	} else if (type == TENSOR_IQ4_XS) {
		run->d = d * (float)(bits_at(block + 4, 4 * s, 4) +
				     16 * bits_at(block + 2, 2 * s, 2) - 32);
	}
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t of_two = 8 * i + 4 * (s % 2), of_four = 8 * i + 2 * in;

		if (type == TENSOR_Q2_K)
			run->q[i] = bits_at(block + 16 + 32 * part, of_four, 2);
		else if (type == TENSOR_Q3_K)
			run->q[i] = bits_at(block + 32 + 32 * part, of_four, 2) +
				    4 * bits_at(block, 8 * i + s, 1) - 4;
		else if (type == TENSOR_Q4_K)
			run->q[i] = bits_at(block + 16 + 32 * (s / 2), of_two, 4);
		else if (type == TENSOR_Q5_K)
			run->q[i] = bits_at(block + 48 + 32 * (s / 2), of_two, 4) +
				    16 * bits_at(block + 16, 8 * i + s, 1);
		else if (type == TENSOR_Q6_K)
			run->q[i] = bits_at(block + 64 * part + 32 * (in % 2), 8 * i + 4 * (in / 2),
					    4) +
				    16 * bits_at(block + 128 + 32 * part, of_four, 2) - 32;
		else
			run->q[i] =
				iq4[bits_at(block + 8 + 16 * s, 8 * (i % 16) + 4 * (i / 16), 4)];
	}
}

/* Weights 32b..32b+31 of a row of blocks, by the names of BLOCKS. */
static inline struct reference_run reference_run(
	enum tensor_type type, const uint8_t *row, uint32_t b)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
	struct reference_run run = {.c = {1, 1}, .e = {1, 1}};
	uint32_t runs = info->block_weights / 32;
	const uint8_t *block = row + (size_t)(b / runs) * info->block_bytes;

	run.has_m = type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q2_K ||
		    type == TENSOR_Q4_K || type == TENSOR_Q5_K;
	if (is_coded(type)) {
		float d[2];

		coded_scales(type, block, b % runs, d, run.c);
		run.d = d[0];
		run.d_last = d[1];
		for (uint32_t i = 0; i < 32; i++)
			run.q[i] = coded_weight(type, block, b % runs, i);
		return run;
	}
	if (runs == 1)
		reference_run_32(type, block, &run);
	else
		reference_run_256(type, block, b % runs, &run);
	run.d_last = run.d;
	return run;
}

/* One row of weights, any type, times one activation row, as numerics.md states it. */
static inline float reference_product(
	enum tensor_type type, const uint8_t *row, uint32_t cols, const struct activation *x)
{
	float wide[4096], acc = 0, total = 0;

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
		struct reference_run run = reference_run(type, row, b);
		int isum[2] = {0, 0}, esum = 0;

		if (b > 0 && b % 32 == 0) {
			total = b == 32 ? acc : total + acc;
			acc = 0;
		}
		for (int i = 0; i < 32; i++) {
			isum[i / 16] += run.c[i / 16] * run.q[i] * in->q[i];
			esum += run.e[i / 16] * in->q[i];
		}
		assert_true(abs(isum[0]) + abs(isum[1]) < 1 << 24);
		if (type == TENSOR_NVFP4) {
			acc = fmaf(run.d * in->d, (float)isum[0], acc);
			acc = fmaf(run.d_last * in->d, (float)isum[1], acc);
			continue;
		}
		acc = fmaf(run.d * in->d, (float)(isum[0] + isum[1]), acc);
		if (run.has_m)
			acc = fmaf(run.m, in->d * (float)esum, acc);
	}
	return cols > 1024 ? total + acc : acc;
}

/* The same row with float32 activations: LANES of its float32 values, what the backend "reference"
 * computes. */
static inline float reference_product_f32(
	enum tensor_type type, const uint8_t *row, uint32_t cols, const struct activation *x)
{
	float wide[4096];

	if (!tensor_type_info((uint32_t)type)->quantised)
		return reference_product(type, row, cols, x);
	assert_true(cols <= 4096);
	for (uint32_t b = 0; b < cols / 32; b++) {
		struct reference_run run = reference_run(type, row, b);

		for (uint32_t i = 0; i < 32; i++) {
			float value = (i < 16 ? run.d : run.d_last) * (float)run.c[i / 16] *
				      (float)run.q[i];

			wide[32 * b + i] = run.has_m ? value + run.m * (float)run.e[i / 16] : value;
		}
	}
	return reference_lanes(wide, x->f32, cols);
}

static inline bool is_reference(const struct kernels *k)
{
	return strcmp(k->name, "reference") == 0;
}
