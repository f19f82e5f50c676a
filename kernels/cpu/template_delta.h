/*
 * The gated delta net (numerics.md defines the order). Include after vec_*.h and
 * template_elementwise.h.
 */
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/kernels.h"

#include <assert.h>

/* Above this, softplus(x) equals x to the last bit of a float32 (e^-20 < 2^-28). */
#define SOFTPLUS_LINEAR 20.0f

static inline struct v16 load_up_to_16(const float *p, uint32_t n)
{
	return n == 16 ? v16_load(p) : v16_load_n(p, n);
}

static inline void store_up_to_16(float *p, struct v16 a, uint32_t n)
{
	if (n == 16)
		v16_store(p, a);
	else
		v16_store_n(p, a, n);
}

static void op_sigmoid_mul(const float *g, const float *x, uint32_t n, float *out)
{
	for (uint32_t i = 0; i < n; i += 16) {
		uint32_t m = n - i < 16 ? n - i : 16;

		store_up_to_16(out + i,
			v16_mul(load_up_to_16(x + i, m), sigmoid_16(load_up_to_16(g + i, m))), m);
	}
}

static void op_conv_silu(
	const float *const *rows, const float *w, uint32_t taps, uint32_t n, float *out)
{
	for (uint32_t i = 0; i < n; i += 16) {
		uint32_t m = n - i < 16 ? n - i : 16;
		struct v16 sum = v16_set1(0);

		for (uint32_t tap = 0; tap < taps; tap++)
			sum = v16_fma(load_up_to_16(rows[tap] + i, m),
				load_up_to_16(w + (size_t)tap * n + i, m), sum);
		store_up_to_16(out + i, v16_mul(sum, sigmoid_16(sum)), m);
	}
}

static void op_l2_norm(const float *x, float eps, float scale, uint32_t n, float *y)
{
	struct v16 factor = v16_set1(1.0f / __builtin_sqrtf(norm_sum(x, n, true) + eps));
	struct v16 second = v16_set1(scale);

	for (uint32_t i = 0; i < n; i += 16) {
		uint32_t m = n - i < 16 ? n - i : 16;

		store_up_to_16(y + i, v16_mul(v16_mul(load_up_to_16(x + i, m), factor), second), m);
	}
}

/* log(1 + e) with e = exp(x). The quotient restores what rounding 1 + e has lost (Kahan), so that a
 * small e keeps its effect. */
static inline float softplus32(float x)
{
	float e, u;

	if (x > SOFTPLUS_LINEAR)
		return x;
	e = exp32(x);
	u = 1.0f + e;
	return u == 1.0f ? e : kernels_log(u) * (e / (u - 1.0f));
}

static void op_delta_gates(const float *a, const float *dt, const float *alpha, const float *beta,
	uint32_t n, float *decay, float *rate)
{
	for (uint32_t h = 0; h < n; h++) {
		float b = beta[h];

		decay[h] = exp32(a[h] * softplus32(alpha[h] + dt[h]));
		rate[h] = 1.0f / (1.0f + exp32(-b));
	}
}

/* (r0 + r2) + (r1 + r3) */
static inline struct v16 fold_4(const struct v16 *r)
{
	return v16_add(v16_add(r[0], r[2]), v16_add(r[1], r[3]));
}

/* Row i of n <= 16 columns: decays it, writes it, and adds it to the output. */
static inline __attribute__((always_inline)) void delta_row(const struct delta_step *step,
	uint32_t i, float *row, struct v16 decay, struct v16 change, const uint32_t n,
	const bool out, struct v16 *sum)
{
	struct v16 s = v16_mul(load_up_to_16(row, n), decay);

	s = v16_fma(v16_set1(step->k[i]), change, s);
	store_up_to_16(row, s, n);
	if (out)
		*sum = v16_fma(s, v16_set1(step->q[i]), *sum);
}

/* n and `out` are constants where this is inlined. Rows are taken by fours: their partial sums are
 * independent, so additions overlap. */
static inline __attribute__((always_inline)) void delta_columns(
	const struct delta_step *step, uint32_t first, const uint32_t n, const bool out)
{
	struct v16 m[4] = {v16_set1(0), v16_set1(0), v16_set1(0), v16_set1(0)};
	struct v16 o[4] = {m[0], m[0], m[0], m[0]};
	struct v16 decay = v16_set1(step->decay), change;
	float *state = step->state + first, *row = state;
	const uint32_t d_k = step->d_k, whole = d_k - d_k % 4;
	const size_t stride = step->stride;

	for (uint32_t i = 0; i < whole; i += 4, row += 4 * stride)
#pragma GCC unroll 4
		for (uint32_t r = 0; r < 4; r++)
			m[r] = v16_fma(
				load_up_to_16(row + r * stride, n), v16_set1(step->k[i + r]), m[r]);
	for (uint32_t i = whole; i < d_k; i++)
		m[i % 4] = v16_fma(
			load_up_to_16(state + i * stride, n), v16_set1(step->k[i]), m[i % 4]);
	change = v16_sub(load_up_to_16(step->v + first, n), v16_mul(decay, fold_4(m)));
	change = v16_mul(change, v16_set1(step->rate));
	row = state;
	for (uint32_t i = 0; i < whole; i += 4, row += 4 * stride)
#pragma GCC unroll 4
		for (uint32_t r = 0; r < 4; r++)
			delta_row(step, i + r, row + r * stride, decay, change, n, out, &o[r]);
	for (uint32_t i = whole; i < d_k; i++)
		delta_row(step, i, state + i * stride, decay, change, n, out, &o[i % 4]);
	if (out)
		store_up_to_16(step->out + first, fold_4(o), n);
}

static void op_delta_step(const struct delta_step *step)
{
	const uint32_t whole = step->columns - step->columns % 16, left = step->columns - whole;

	for (uint32_t j = 0; j < whole; j += 16) {
		if (step->out)
			delta_columns(step, j, 16, true);
		else
			delta_columns(step, j, 16, false);
	}
	if (left && step->out)
		delta_columns(step, whole, left, true);
	else if (left)
		delta_columns(step, whole, left, false);
}
