/*
 * The ops table of a backend, and the definition of every result to the bit.
 *
 * Batch invariance: the value of an output element is computed in the order written here whatever the batch
 * size, the place in the batch, the thread count or the instruction set. Scalar, AVX2 and AVX-512 agree to the
 * bit because each does exactly these float32 operations; integer sums are exact in any order.
 * fma(a, b, c) is one rounding everywhere; a*b + c written apart is two. Nothing here calls libm.
 *
 * LANES: a float32 sum over k = 0..n-1 keeps 16 partial sums, lane[k % 16], each filled in ascending k by
 * lane = fma(a_k, b_k, lane), starting from +0; then lanes fold: 16 -> 8 (lane[i] + lane[i + 8]), -> 4 (i, i + 4),
 * -> 2 (i, i + 2), -> 1. n needs not be a multiple of 16 (missing terms are not added at all).
 *
 * BLOCKS: a product of a quantised weight row with an 8-bit activation row is one chain over the blocks of 32 in
 * ascending order, starting from +0:
 *   Q8_0, Q4_0:  acc = fma(d_w * d_x, (float)isum, acc)          isum = sum q_w * q_x, exact (Q4_0: q - 8)
 *   Q4_1:        acc = fma(d_w * d_x, (float)isum, acc), then acc = fma(m_w, s_x, acc), s_x = d_x * (float)sum_x
 * A row in a lane or a row at a time: same value. So layouts (GGUF rows, rows interleaved) may change freely.
 *
 * Activations are quantised per row in blocks of 32: amax = max |x|, d = amax / 127, q = round-to-nearest-even of
 * x * (127 / amax) (both divisions and the product in float32). amax < 2^-110 gives d = 0, q = 0 (127 / amax must
 * stay finite). A block that holds an infinity or a NaN has q = 0 and d = inf, or NaN if there is a NaN, so that its
 * products are NaN. A row's result depends on that row only.
 *
 * float16 and bfloat16 are widened exactly and rounded to nearest even, subnormals included. Where a result is NaN it
 * is NaN in every backend, but its sign and payload are open. All of this needs the default rounding mode and
 * subnormals switched on (neither FTZ nor DAZ).
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GGUF's tensor type ids, those the engine computes with. */
enum tensor_type {
	TENSOR_F32 = 0,
	TENSOR_F16 = 1,
	TENSOR_Q4_0 = 2,
	TENSOR_Q4_1 = 3,
	TENSOR_Q8_0 = 8,
	TENSOR_BF16 = 30,
};

struct tensor_type_info {
	enum tensor_type type;
	const char *name;
	uint32_t block_weights; /* weights per block; 1 for plain types */
	uint32_t block_bytes;
	bool quantised; /* multiplied with 8-bit activations; else with float32 ones (LANES) */
};

/* NULL when the engine cannot compute with the type. */
const struct tensor_type_info *tensor_type_info(uint32_t type);

#define Q8_BLOCK 32
/* 32 activations of one row. */
struct q8_block {
	float d;
	int32_t sum; /* of q */
	int8_t q[Q8_BLOCK];
};

/* A weight matrix as it lies in the file: rows = outputs, cols = inputs, row-major, row_bytes apart.
 * data is borrowed and read-only. */
struct matrix {
	enum tensor_type type;
	uint32_t rows, cols;
	size_t row_bytes;
	const void *data;
};

/* One activation row in both forms; q8 may be NULL when only plain types will be multiplied, f32 when only
 * quantised ones will. cols and cols / 32 elements. */
struct activation {
	const float *f32;
	const struct q8_block *q8;
};

enum kv_type { KV_F32 = 0, KV_F16 = 1 };

/* Attention of one query token and one KV head with the query heads that share it. */
struct attention_job {
	uint32_t
		n_cells; /* cells attended to, in ascending position; the last is the token itself */
	const uint32_t *cells; /* [n_cells] */
	enum kv_type kv_type;
	const void *k, *v; /* cell c's vector of this layer and KV head at k + c * cell_bytes */
	size_t k_cell_bytes, v_cell_bytes;
	uint32_t head_dim; /* of k and v */
	uint32_t n_heads; /* query heads of this KV head */
	const float *q; /* [n_heads][head_dim], heads q_stride floats apart */
	float *out; /* [n_heads][head_dim], heads out_stride floats apart */
	size_t q_stride, out_stride;
	float scale; /* 1 / sqrt(head_dim) */
	float *scratch; /* kernels->attention_scratch(n_heads, head_dim) floats */
};

/*
 * One backend. All functions are pure: they touch only their arguments, allocate nothing and may run on many
 * threads at once. Dimensions are validated when a model is loaded; kernels assert.
 */
struct kernels {
	const char *name; /* "scalar", "avx2", "avx512" */
	bool (*supported)(void); /* by this CPU */

	/* x[cols] -> out[cols / 32]; cols % 32 == 0. */
	void (*quantise_q8)(const float *x, uint32_t cols, struct q8_block *out);

	/* Rows first..last-1 of w times n activations: y[t][r] for all t < n. y[t] points to w->rows floats.
	 * A weight row comes from memory once for every 64 tokens. Any first and last give the same bits;
	 * multiples of 16 rows are fastest. */
	void (*matmul)(const struct matrix *w, uint32_t first, uint32_t last,
		const struct activation *x, uint32_t n, float *const *y);

	/* out[cols] = row of w as float32 (embedding look-up). */
	void (*dequantise_row)(const struct matrix *w, uint32_t row, float *out);

	/* y[i] = x[i] * (1 / sqrt(ss / n + eps)) * w[i], ss = LANES sum of x*x; y may be x. The root and division are
	 * correctly rounded float32. */
	void (*rms_norm)(const float *x, const float *w, float eps, uint32_t n, float *y);

	/* Rotates pairs of a head in place. cos_sin[2 * i], [2 * i + 1] for pair i < n_rot / 2; neox: pair is
	 * (i, i + n_rot / 2), else (2i, 2i + 1). a' = fma(a, c, -(b * s)); b' = fma(a, s, b * c). */
	void (*rope)(float *head, const float *cos_sin, uint32_t n_rot, bool neox);

	/* out[i] = g[i] * (1 / (1 + exp(-g[i]))) * u[i], multiplied left to right. */
	void (*silu_mul)(const float *g, const float *u, uint32_t n, float *out);

	/* y[i] = y[i] + x[i]. */
	void (*add)(float *y, const float *x, uint32_t n);

	/* y[i] = fma(a, x[i], y[i]). */
	void (*axpy)(float *y, float a, const float *x, uint32_t n);

	/* In place: exp(x[i] - less), as kernels_exp has it. */
	void (*exp_less)(float *x, uint32_t n, float less);

	/* In place; max, then e_i = exp(x_i - max), sum by LANES (of e_i * 1), then e_i * (1 / sum). */
	void (*softmax)(float *x, uint32_t n);

	/* Flash-style: cells in chunks of ATTENTION_CHUNK counted from the first cell; in a chunk the scores are LANES
	 * dot products times scale, m' = max(m, chunk), the running sum and output are scaled by exp(m - m'), then
	 * for each cell in order s = s + p, out[d] = fma(p, v[d], out[d]); at the end out[d] * (1 / s). The first
	 * chunk starts from m = its own max, s = 0, out = 0. */
	void (*attention)(const struct attention_job *job);
	size_t (*attention_scratch)(uint32_t n_heads, uint32_t head_dim); /* floats */

	/* float32 -> the KV type, round to nearest even. */
	void (*kv_store)(const float *x, uint32_t n, enum kv_type type, void *out);
};

#define ATTENTION_CHUNK 64

/* The backends, best first, ended by NULL. */
extern const struct kernels *const kernels_all[];

/* name "auto" or NULL: the best this CPU supports. NULL and *err when the name is unknown or unsupported. */
const struct kernels *kernels_select(const char *name, struct error *err);

/* Our exp and log for float32, the same bits in every backend (kernels/cpu/math.h states the operations of exp and
 * says where its vector forms are). exp is within 1 ulp; of less than -87.3f it is 0, of more than 88.72283f inf, so
 * no result is subnormal. log is within 0.51 ulp, of 0 it is -inf, of less NaN. */
float kernels_exp(float x);
float kernels_log(float x);
/* sin and cos of angle = position * frequency, in double, ours, for rope tables: within 4e-16 relative for
 * |angle| <= 2^20, less exact beyond, NaN from 2^30. */
void kernels_sincos(double angle, double *sine, double *cosine);
/* base > 0 and normal; within 4e-16 relative. */
double kernels_pow(double base, double exponent);
