/*
 * Norms, rope, activations, softmax and conversions. The file that defines a table of functions
 * includes this after its vec_*.h. The order of every operation is that of numerics.md.
 */
#pragma once

#include <assert.h>

/* Partial sums of a norm, counted in vectors. */
#define NORM_VECTORS 16

/* Folds the vectors that hold partial sums, neighbours first. The others would be +0, which adds
 * nothing. */
static inline __attribute__((always_inline)) float norm_fold(
	struct v16 sum[NORM_VECTORS], const uint32_t vectors)
{
#pragma GCC unroll 4
	for (uint32_t step = 1; step < vectors; step *= 2)
#pragma GCC unroll 8
		for (uint32_t j = 0; j < vectors - step; j += 2 * step)
			sum[j] = v16_add(sum[j], sum[j + step]);
	return v16_sum(sum[0]);
}

/* The sum of `vectors` full vectors of one head, with a partial sum each. vectors and square are
 * constants where this is inlined. */
static inline __attribute__((always_inline)) float norm_sum_head(
	const float *x, const uint32_t vectors, const bool square)
{
	const struct v16 one = v16_set1(1.0f), zero = v16_set1(0);
	struct v16 sum[NORM_VECTORS];

#pragma GCC unroll 16
	for (uint32_t j = 0; j < vectors; j++) {
		struct v16 a = v16_load(x + (size_t)16 * j);

		sum[j] = v16_fma(a, square ? a : one, zero);
	}
	return norm_fold(sum, vectors);
}

/* One vector of partial sums at a time, so that one register is enough for it; the next one does
 * not depend on it. */
static inline __attribute__((always_inline)) float norm_sum_any(
	const float *x, uint32_t n, const bool square)
{
	const struct v16 one = v16_set1(1.0f);
	struct v16 sum[NORM_VECTORS];
	uint32_t vectors = n < 16 * NORM_VECTORS ? (n + 15) / 16 : NORM_VECTORS;

	for (uint32_t j = 0; j < vectors; j++) {
		struct v16 s = v16_set1(0);
		uint32_t i = 16 * j;

		for (; i + 16 <= n; i += 16 * NORM_VECTORS) {
			struct v16 a = v16_load(x + i);

			s = v16_fma(a, square ? a : one, s);
		}
		if (i < n) {
			struct v16 a = v16_load_n(x + i, n - i);

			s = v16_fma_n(a, square ? a : one, s, n - i);
		}
		sum[j] = s;
	}
	return norm_fold(sum, vectors);
}

/* A norm's sum of x[i] * x[i], or of x[i] * 1. Heads are of 32, 64, 128 or 256 values. */
static inline __attribute__((always_inline)) float norm_sum(
	const float *x, uint32_t n, const bool square)
{
	switch (n) {
	case 32:
		return norm_sum_head(x, 2, square);
	case 64:
		return norm_sum_head(x, 4, square);
	case 128:
		return norm_sum_head(x, 8, square);
	case 256:
		return norm_sum_head(x, 16, square);
	default:
		return norm_sum_any(x, n, square);
	}
}

static void op_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y)
{
	float ss = norm_sum(x, n, true);
	float inverse = 1.0f / __builtin_sqrtf(ss / (float)n + eps);
	struct v16 factor = v16_set1(inverse);
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), factor), v16_load(w + i)));
	if (i < n)
		v16_store_n(y + i,
			v16_mul(v16_mul(v16_load_n(x + i, n - i), factor),
				v16_load_n(w + i, n - i)),
			n - i);
}

static void op_layer_norm(
	const float *x, const float *w, const float *b, float eps, uint32_t n, float *y)
{
	struct v16 mean = v16_set1(norm_sum(x, n, false) / (float)n);
	struct v16 factor;
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(y + i, v16_sub(v16_load(x + i), mean));
	if (i < n)
		v16_store_n(y + i, v16_sub(v16_load_n(x + i, n - i), mean), n - i);
	factor = v16_set1(1.0f / __builtin_sqrtf(norm_sum(y, n, true) / (float)n + eps));
	for (i = 0; i + 16 <= n; i += 16)
		v16_store(y + i, v16_fma(v16_mul(v16_load(y + i), factor), v16_load(w + i),
					 v16_load(b + i)));
	if (i < n)
		v16_store_n(y + i,
			v16_fma(v16_mul(v16_load_n(y + i, n - i), factor), v16_load_n(w + i, n - i),
				v16_load_n(b + i, n - i)),
			n - i);
}

/* Pair i is a[i * step], b[i * step]. step is a constant where this is inlined, so that adjacent
 * pairs are rotated many at once. */
static inline __attribute__((always_inline)) void rope_pairs(float *restrict a, float *restrict b,
	const uint32_t step, const float *restrict cos_sin, uint32_t pairs)
{
	for (uint32_t i = 0; i < pairs; i++) {
		float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
		float first = a[i * step], second = b[i * step];

		a[i * step] = fma32(first, c, -(second * s));
		b[i * step] = fma32(first, s, second * c);
	}
}

static void op_rope(float *head, const float *cos_sin, uint32_t n_rot, bool neox)
{
	uint32_t pairs = n_rot / 2;

	if (neox)
		rope_pairs(head, head + pairs, 1, cos_sin, pairs);
	else
		rope_pairs(head, head + 1, 2, cos_sin, pairs);
}

static inline struct v16 silu_mul_16(struct v16 g, struct v16 u)
{
	const struct v16 one = v16_set1(1.0f);
	struct v16 e = v16_exp(v16_sub(v16_set1(-0.0f), g));

	return v16_mul(v16_mul(g, v16_div(one, v16_add(one, e))), u);
}

static void op_silu_mul(const float *g, const float *u, uint32_t n, float *out)
{
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(out + i, silu_mul_16(v16_load(g + i), v16_load(u + i)));
	if (i < n)
		v16_store_n(out + i,
			silu_mul_16(v16_load_n(g + i, n - i), v16_load_n(u + i, n - i)), n - i);
}

/* 1 / (1 + exp(-x)) */
static inline struct v16 sigmoid_16(struct v16 x)
{
	const struct v16 one = v16_set1(1.0f);

	return v16_div(one, v16_add(one, v16_exp(v16_sub(v16_set1(-0.0f), x))));
}

static void op_sigmoid(float *x, uint32_t n)
{
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(x + i, sigmoid_16(v16_load(x + i)));
	if (i < n)
		v16_store_n(x + i, sigmoid_16(v16_load_n(x + i, n - i)), n - i);
}

/* v16_max returns its second operand when one is NaN; -max(-a, -b) is the smaller of a and b. */
static inline struct v16 at_most(struct v16 x, float most)
{
	const struct v16 zero = v16_set1(-0.0f);

	return v16_sub(zero, v16_max(v16_set1(-most), v16_sub(zero, x)));
}

static inline struct v16 swiglu_oai_16(struct v16 g, struct v16 u)
{
	g = at_most(g, 7.0f);
	u = v16_max(v16_set1(-7.0f), at_most(u, 7.0f));
	return v16_mul(
		v16_mul(g, sigmoid_16(v16_mul(v16_set1(1.702f), g))), v16_add(u, v16_set1(1.0f)));
}

static void op_swiglu_oai(const float *g, const float *u, uint32_t n, float *out)
{
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(out + i, swiglu_oai_16(v16_load(g + i), v16_load(u + i)));
	if (i < n)
		v16_store_n(out + i,
			swiglu_oai_16(v16_load_n(g + i, n - i), v16_load_n(u + i, n - i)), n - i);
}

static void op_add(float *y, const float *x, uint32_t n)
{
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(y + i, v16_add(v16_load(y + i), v16_load(x + i)));
	if (i < n)
		v16_store_n(
			y + i, v16_add(v16_load_n(y + i, n - i), v16_load_n(x + i, n - i)), n - i);
}

static void op_axpy(float *y, float a, const float *x, uint32_t n)
{
	struct v16 factor = v16_set1(a);
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(y + i, v16_fma(factor, v16_load(x + i), v16_load(y + i)));
	if (i < n)
		v16_store_n(y + i,
			v16_fma(factor, v16_load_n(x + i, n - i), v16_load_n(y + i, n - i)), n - i);
}

/* The greatest of x[0..n-1]. It may ignore a NaN: everything computed from x is NaN anyway. */
static inline float greatest(const float *x, uint32_t n)
{
	struct v16 most = v16_set1(-__builtin_inff());
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		most = v16_max(most, v16_load(x + i));
	if (i < n)
		most = v16_blend_n(v16_max(most, v16_load_n(x + i, n - i)), most, n - i);
	return v16_greatest(most);
}

/* x[i] = exp(x[i] - most) */
static inline void exp_less(float *x, uint32_t n, float most)
{
	struct v16 m = v16_set1(most);
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(x + i, v16_exp(v16_sub(v16_load(x + i), m)));
	if (i < n)
		v16_store_n(x + i, v16_exp(v16_sub(v16_load_n(x + i, n - i), m)), n - i);
}

/* x[i] = x[i] * factor */
static inline void scale_by(float *x, uint32_t n, float factor)
{
	struct v16 f = v16_set1(factor);
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(x + i, v16_mul(v16_load(x + i), f));
	if (i < n)
		v16_store_n(x + i, v16_mul(v16_load_n(x + i, n - i), f), n - i);
}

static void op_softmax(float *x, uint32_t n)
{
	const struct v16 one = v16_set1(1.0f);
	struct v16 sum = v16_set1(0);
	uint32_t i = 0;

	exp_less(x, n, greatest(x, n));
	for (; i + 16 <= n; i += 16)
		sum = v16_fma(v16_load(x + i), one, sum);
	if (i < n)
		sum = v16_fma_n(v16_load_n(x + i, n - i), one, sum, n - i);
	scale_by(x, n, 1.0f / v16_sum(sum));
}
