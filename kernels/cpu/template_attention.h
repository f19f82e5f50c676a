/*
 * Attention of one token (kernels.h says in which order): included after vec_*.h and template_elementwise.h.
 * Scratch: [n_heads][ATTENTION_CHUNK] scores, then [n_heads] maxima, then [n_heads] sums.
 */
#pragma once

#include "kernels/kernels.h"

#include <assert.h>

/* Query heads whose partial sums stay in registers while a key or value goes by. */
#define ATTENTION_HEADS 4

static size_t op_attention_scratch(uint32_t n_heads, uint32_t head_dim)
{
	(void)head_dim; /* the running output lives in job->out */
	return (size_t)n_heads * (ATTENTION_CHUNK + 2);
}

static inline struct v16 kv_16(enum kv_type type, const uint8_t *p, uint32_t d)
{
	if (type == KV_F32)
		return v16_load((const float *)(const void *)p + d);
	return v16_load_f16((const uint16_t *)(const void *)p + d);
}

static inline struct v16 kv_n(enum kv_type type, const uint8_t *p, uint32_t d, uint32_t n)
{
	if (type == KV_F32)
		return v16_load_n((const float *)(const void *)p + d, n);
	return v16_load_f16_n((const uint16_t *)(const void *)p + d, n);
}

/* scores[h][c] of heads head..head+H-1 and one cell; H is a constant where this is inlined. */
static inline __attribute__((always_inline)) void attention_scores(const struct attention_job *job,
	uint32_t head, const uint32_t H, const uint8_t *key, float *scores)
{
	const float *q = job->q + head * job->q_stride;
	struct v16 sum[ATTENTION_HEADS];
	uint32_t d = 0, left;

	for (uint32_t h = 0; h < H; h++)
		sum[h] = v16_set1(0);
	for (; d + 16 <= job->head_dim; d += 16) {
		struct v16 k = kv_16(job->kv_type, key, d);

		for (uint32_t h = 0; h < H; h++)
			sum[h] = v16_fma(v16_load(q + h * job->q_stride + d), k, sum[h]);
	}
	left = job->head_dim - d;
	if (left) {
		struct v16 k = kv_n(job->kv_type, key, d, left);

		for (uint32_t h = 0; h < H; h++)
			sum[h] = v16_fma_n(
				v16_load_n(q + h * job->q_stride + d, left), k, sum[h], left);
	}
	for (uint32_t h = 0; h < H; h++)
		scores[(head + h) * ATTENTION_CHUNK] = v16_sum(sum[h]) * job->scale;
}

/* out[h][d] = fma(p[h][c], v[c][d], out[h][d]) for the cells in order, of H heads and up to 16 d. */
static inline __attribute__((always_inline)) void attention_values(const struct attention_job *job,
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
		struct v16 v =
			n == 16 ? kv_16(job->kv_type, value, d) : kv_n(job->kv_type, value, d, n);

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
		memset(out, 0, job->head_dim * sizeof(float));
	} else {
		float larger = *most > chunk ? *most : chunk;
		float factor = exp32(*most - larger);

		*most = larger;
		*sum *= factor;
		/* exp(0) is 1, and times 1 changes nothing. */
		if (factor != 1.0f)
			scale_by(out, job->head_dim, factor);
	}
	exp_less(scores, n_cells, *most);
	for (uint32_t c = 0; c < n_cells; c++)
		*sum += scores[c];
}

static void attention_chunk(const struct attention_job *job, uint32_t from, uint32_t n_cells)
{
	const uint32_t *cells = job->cells + from;
	float *scores = job->scratch;
	float *most = scores + (size_t)job->n_heads * ATTENTION_CHUNK;
	float *sum = most + job->n_heads;

	for (uint32_t c = 0; c < n_cells; c++) {
		const uint8_t *key = (const uint8_t *)job->k + cells[c] * job->k_cell_bytes;
		uint32_t h = 0;

		for (; h + ATTENTION_HEADS <= job->n_heads; h += ATTENTION_HEADS)
			attention_scores(job, h, ATTENTION_HEADS, key, scores + c);
		for (; h + 2 <= job->n_heads; h += 2)
			attention_scores(job, h, 2, key, scores + c);
		if (h < job->n_heads)
			attention_scores(job, h, 1, key, scores + c);
	}
	for (uint32_t h = 0; h < job->n_heads; h++)
		attention_rescale(job, h, n_cells, from == 0, scores + (size_t)h * ATTENTION_CHUNK,
			most + h, sum + h);
	for (uint32_t d = 0; d < job->head_dim; d += 16) {
		uint32_t n = job->head_dim - d < 16 ? job->head_dim - d : 16;
		uint32_t h = 0;

		for (; h + ATTENTION_HEADS <= job->n_heads; h += ATTENTION_HEADS)
			attention_values(job, h, ATTENTION_HEADS, cells, n_cells, d, n, scores);
		for (; h + 2 <= job->n_heads; h += 2)
			attention_values(job, h, 2, cells, n_cells, d, n, scores);
		if (h < job->n_heads)
			attention_values(job, h, 1, cells, n_cells, d, n, scores);
	}
}

static void op_attention(const struct attention_job *job)
{
	const float *sum = job->scratch + (size_t)job->n_heads * (ATTENTION_CHUNK + 1);

	assert(job->n_cells > 0);
	for (uint32_t from = 0; from < job->n_cells; from += ATTENTION_CHUNK) {
		uint32_t left = job->n_cells - from;

		attention_chunk(job, from, left < ATTENTION_CHUNK ? left : ATTENTION_CHUNK);
	}
	for (uint32_t h = 0; h < job->n_heads; h++)
		scale_by(job->out + h * job->out_stride, job->head_dim, 1.0f / sum[h]);
}
