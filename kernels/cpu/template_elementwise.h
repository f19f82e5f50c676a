/*
 * Norm, rope, activation, softmax and conversions of one backend: included after its vec_*.h by the file that
 * defines the backend. The order of every operation is kernels.h's.
 */
#pragma once

#include <assert.h>

/* LANES sum of a[i] * b[i]. */
static inline float lanes_dot(const float *a, const float *b, uint32_t n)
{
	struct v16 sum = v16_set1(0);
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		sum = v16_fma(v16_load(a + i), v16_load(b + i), sum);
	if (i < n)
		sum = v16_fma_n(v16_load_n(a + i, n - i), v16_load_n(b + i, n - i), sum, n - i);
	return v16_sum(sum);
}

static void op_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y)
{
	float ss = lanes_dot(x, x, n);
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

/* LANES sum of a[i] * 1. */
static inline float lanes_sum(const float *a, uint32_t n)
{
	const struct v16 one = v16_set1(1.0f);
	struct v16 sum = v16_set1(0);
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		sum = v16_fma(v16_load(a + i), one, sum);
	if (i < n)
		sum = v16_fma_n(v16_load_n(a + i, n - i), one, sum, n - i);
	return v16_sum(sum);
}

static void op_layer_norm(
	const float *x, const float *w, const float *b, float eps, uint32_t n, float *y)
{
	struct v16 mean = v16_set1(lanes_sum(x, n) / (float)n);
	struct v16 factor;
	uint32_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(y + i, v16_sub(v16_load(x + i), mean));
	if (i < n)
		v16_store_n(y + i, v16_sub(v16_load_n(x + i, n - i), mean), n - i);
	factor = v16_set1(1.0f / __builtin_sqrtf(lanes_dot(y, y, n) / (float)n + eps));
	for (i = 0; i + 16 <= n; i += 16)
		v16_store(y + i, v16_fma(v16_mul(v16_load(y + i), factor), v16_load(w + i),
					 v16_load(b + i)));
	if (i < n)
		v16_store_n(y + i,
			v16_fma(v16_mul(v16_load_n(y + i, n - i), factor), v16_load_n(w + i, n - i),
				v16_load_n(b + i, n - i)),
			n - i);
}

/* Pair i is a[i * step], b[i * step]; step is a constant where this is inlined, so that pairs that lie one behind the other
 * are turned many at once. */
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

/* v16_max gives its second operand when one is NaN; -max(-a, -b) is the smaller of two. */
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

/* The greatest of x[0..n-1]. A NaN may be passed over: what is computed from x is NaN all the same. */
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
