/*
 * Attention of one token (kernels.h says in which order) and the storing of what it reads: included after vec_*.h and
 * template_elementwise.h.
 * Scratch: [n_heads][ATTENTION_CHUNK] scores, then [n_heads] maxima, then [n_heads] sums.
 */
#pragma once

#include "kernels/kernels.h"

#include <assert.h>

/* Query heads whose partial sums stay in registers while a key or value goes by. */
#define ATTENTION_HEADS 4

/* The types are constants where these are inlined, so that a chunk's loops hold one type's code. */
#define ATTENTION_INLINE static inline __attribute__((always_inline))

enum { KV_BLOCK_BYTES = 2 + Q8_BLOCK };

static size_t op_attention_scratch(uint32_t n_heads)
{
	return (size_t)n_heads * (ATTENTION_CHUNK + 2); /* the running output lives in job->out */
}

/* Values d..d+15, or d..d+n-1 with zeros behind, of a stored vector; d % 16 == 0, so they are of one block. */
ATTENTION_INLINE struct v16 kv_16(enum kv_type type, const uint8_t *p, uint32_t d)
{
	if (type == KV_F32)
		return v16_load((const float *)(const void *)p + d);
	if (type == KV_F16)
		return v16_load_f16((const uint16_t *)(const void *)p + d);
	p += (size_t)(d / Q8_BLOCK) * KV_BLOCK_BYTES;
	return v16_mul(v16_set1(v1_load_f16(p)), v16_load_i8(p + 2 + d % Q8_BLOCK));
}

ATTENTION_INLINE struct v16 kv_n(enum kv_type type, const uint8_t *p, uint32_t d, uint32_t n)
{
	if (type == KV_F32)
		return v16_load_n((const float *)(const void *)p + d, n);
	if (type == KV_F16)
		return v16_load_f16_n((const uint16_t *)(const void *)p + d, n);
	p += (size_t)(d / Q8_BLOCK) * KV_BLOCK_BYTES;
	return v16_mul(v16_set1(v1_load_f16(p)), v16_load_i8_n(p + 2 + d % Q8_BLOCK, n));
}

static void kv_store_q8(const float *x, uint32_t n, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i += Q8_BLOCK) {
		uint32_t some = n - i < Q8_BLOCK ? n - i : Q8_BLOCK;
		float padded[Q8_BLOCK] = {0};
		struct q8_block block;
		uint16_t d;

		memcpy(padded, x + i, some * sizeof(float));
		op_quantise_q8(padded, Q8_BLOCK, &block);
		d = half_of_float(block.d);
		memcpy(out, &d, sizeof(d));
		memcpy(out + 2, block.q, some);
		out += 2 + some;
	}
}

static void op_kv_store(const float *x, uint32_t n, enum kv_type type, void *out)
{
	uint16_t *half = out;
	uint32_t i = 0;

	if (type == KV_F32) {
		memcpy(out, x, n * sizeof(float));
		return;
	}
	if (type == KV_Q8_0) {
		kv_store_q8(x, n, out);
		return;
	}
	assert(type == KV_F16);
	for (; i + 16 <= n; i += 16)
		v16_store_f16(half + i, v16_load(x + i));
	if (i < n)
		v16_store_f16_n(half + i, v16_load_n(x + i, n - i), n - i);
}

/* scores[h][c] of heads head..head+H-1 and one cell; H is a constant where this is inlined. */
ATTENTION_INLINE void attention_scores(enum kv_type type, const struct attention_job *job,
	uint32_t head, const uint32_t H, const uint8_t *key, float *scores)
{
	const float *q = job->q + head * job->q_stride;
	struct v16 sum[ATTENTION_HEADS];
	uint32_t d = 0, left;

	for (uint32_t h = 0; h < H; h++)
		sum[h] = v16_set1(0);
	for (; d + 16 <= job->k_dim; d += 16) {
		struct v16 k = kv_16(type, key, d);

		for (uint32_t h = 0; h < H; h++)
			sum[h] = v16_fma(v16_load(q + h * job->q_stride + d), k, sum[h]);
	}
	left = job->k_dim - d;
	if (left) {
		struct v16 k = kv_n(type, key, d, left);

		for (uint32_t h = 0; h < H; h++)
			sum[h] = v16_fma_n(
				v16_load_n(q + h * job->q_stride + d, left), k, sum[h], left);
	}
	for (uint32_t h = 0; h < H; h++)
		scores[(head + h) * ATTENTION_CHUNK] = v16_sum(sum[h]) * job->scale;
}

/* out[h][d] = fma(p[h][c], v[c][d], out[h][d]) for the cells in order, of H heads and up to 16 d. */
ATTENTION_INLINE void attention_values(enum kv_type type, const struct attention_job *job,
	uint32_t head, const uint32_t H, const uint32_t *cells, uint32_t n_cells, uint32_t d,
	uint32_t n, const float *p)
{
	float *out = job->out + head * job->out_stride + d;
	struct v16 sum[ATTENTION_HEADS];

	for (uint32_t h = 0; h < H; h++)
		sum[h] = n == 16 ? v16_load(out + h * job->out_stride)
				 : v16_load_n(out + h * job->out_stride, n);
	for (uint32_t c = 0; c < n_cells; c++) {
		const uint8_t *value = (const uint8_t *)job->v + cells[c] * job->v_cell_bytes;
		struct v16 v = n == 16 ? kv_16(type, value, d) : kv_n(type, value, d, n);

		for (uint32_t h = 0; h < H; h++)
			sum[h] = v16_fma(v16_set1(p[(head + h) * ATTENTION_CHUNK + c]), v, sum[h]);
	}
	for (uint32_t h = 0; h < H; h++) {
		if (n == 16)
			v16_store(out + h * job->out_stride, sum[h]);
		else
			v16_store_n(out + h * job->out_stride, sum[h], n);
	}
}

/* Turns a chunk's scores of one head into probabilities and brings the running sum and output to the new max. */
static inline void attention_rescale(const struct attention_job *job, uint32_t head,
	uint32_t n_cells, bool is_first, float *scores, float *most, float *sum)
{
	float chunk = greatest(scores, n_cells);
	float *out = job->out + head * job->out_stride;

	if (is_first) {
		*most = chunk;
		*sum = 0;
		memset(out, 0, job->v_dim * sizeof(float));
	} else {
		float larger = *most > chunk ? *most : chunk;
		float factor = exp32(*most - larger);

		*most = larger;
		*sum *= factor;
		/* exp(0) is 1, and times 1 changes nothing. */
		if (factor != 1.0f)
			scale_by(out, job->v_dim, factor);
	}
	exp_less(scores, n_cells, *most);
	for (uint32_t c = 0; c < n_cells; c++)
		*sum += scores[c];
}

ATTENTION_INLINE void attention_chunk(
	enum kv_type type, const struct attention_job *job, uint32_t from, uint32_t n_cells)
{
	const uint32_t *cells = job->cells + from;
	float *scores = job->scratch;
	float *most = scores + (size_t)job->n_heads * ATTENTION_CHUNK;
	float *sum = most + job->n_heads;

	for (uint32_t c = 0; c < n_cells; c++) {
		const uint8_t *key = (const uint8_t *)job->k + cells[c] * job->k_cell_bytes;
		uint32_t h = 0;

		for (; h + ATTENTION_HEADS <= job->n_heads; h += ATTENTION_HEADS)
			attention_scores(type, job, h, ATTENTION_HEADS, key, scores + c);
		for (; h + 2 <= job->n_heads; h += 2)
			attention_scores(type, job, h, 2, key, scores + c);
		if (h < job->n_heads)
			attention_scores(type, job, h, 1, key, scores + c);
	}
	for (uint32_t h = 0; h < job->n_heads; h++)
		attention_rescale(job, h, n_cells, from == 0 && !job->sinks,
			scores + (size_t)h * ATTENTION_CHUNK, most + h, sum + h);
	for (uint32_t d = 0; d < job->v_dim; d += 16) {
		uint32_t n = job->v_dim - d < 16 ? job->v_dim - d : 16;
		uint32_t h = 0;

		for (; h + ATTENTION_HEADS <= job->n_heads; h += ATTENTION_HEADS)
			attention_values(
				type, job, h, ATTENTION_HEADS, cells, n_cells, d, n, scores);
		for (; h + 2 <= job->n_heads; h += 2)
			attention_values(type, job, h, 2, cells, n_cells, d, n, scores);
		if (h < job->n_heads)
			attention_values(type, job, h, 1, cells, n_cells, d, n, scores);
	}
}

/* A sink is a cell before all others whose value is zero: after it the maximum is the sink, the sum exp(0). */
static void attention_sinks(const struct attention_job *job)
{
	float *most = job->scratch + (size_t)job->n_heads * ATTENTION_CHUNK;
	float *sum = most + job->n_heads;

	for (uint32_t h = 0; job->sinks && h < job->n_heads; h++) {
		most[h] = job->sinks[h];
		sum[h] = 1;
		memset(job->out + h * job->out_stride, 0, job->v_dim * sizeof(float));
	}
}

ATTENTION_INLINE void attention_chunks(enum kv_type type, const struct attention_job *job)
{
	for (uint32_t from = 0; from < job->n_cells; from += ATTENTION_CHUNK) {
		uint32_t left = job->n_cells - from;

		attention_chunk(type, job, from, left < ATTENTION_CHUNK ? left : ATTENTION_CHUNK);
	}
}

/* Each type's loops are a function of their own: all in one would be large and optimised badly. */
#define ATTENTION_TYPED(name, type)                                                 \
	static __attribute__((noinline)) void name(const struct attention_job *job) \
	{                                                                           \
		attention_chunks(type, job);                                        \
	}
ATTENTION_TYPED(attention_f32, KV_F32)
ATTENTION_TYPED(attention_f16, KV_F16)
ATTENTION_TYPED(attention_q8, KV_Q8_0)

static void op_attention(const struct attention_job *job)
{
	const float *sum = job->scratch + (size_t)job->n_heads * (ATTENTION_CHUNK + 1);

	assert(job->n_cells > 0);
	attention_sinks(job);
	if (job->kv_type == KV_F32)
		attention_f32(job);
	else if (job->kv_type == KV_F16)
		attention_f16(job);
	else
		attention_q8(job);
	for (uint32_t h = 0; h < job->n_heads; h++)
		scale_by(job->out + h * job->out_stride, job->v_dim, 1.0f / sum[h]);
}
