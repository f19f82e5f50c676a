/*
 * Attention over one split of positions (numerics.md), for the rows of one KV head: a row is one
 * query head of one token. Four warps have a chunk each. Rows are taken by eights, the columns of
 * an MMA; keys (positions) and values (dimensions) are its rows.
 *
 * A CTA takes neighbouring tokens that find the split's cells in the same map. A token whose branch
 * has cells of its own there is taken alone. join.cuh joins the splits.
 */
#pragma once

#include "kernels/gpu/kernels/attend_cells.cuh"
#include "kernels/gpu/kernels/attend_numbers.cuh"

enum { ATTEND_THREADS = 128, ATTEND_SCORES = GPU_SPLIT + 4 /* spreads rows over the banks */ };

struct attend_args {
	struct gpu_cells cells;
	/* Tokens first_token.. of the batch; rows of q and of the parts begin with them. n_heads:
	 * per KV head. */
	uint32_t first_token, n_tokens, n_heads, n_kv_heads;
	uint32_t k_dim, v_dim;
	uint32_t block_heads, head_blocks; /* heads of a CTA, and CTAs that share a KV head's */
	uint32_t group; /* most tokens that a CTA takes together */
	uint32_t span; /* tokens among which a CTA looks for groups: 1, or `group` */
	uint32_t first_split;
	struct dev_rows q; /* heads are q_stride floats apart */
	uint32_t q_stride;
	float scale;
	/* out: [splits][n_tokens][all heads], of v_dim floats and of one */
	float *part_out, *part_most, *part_sum;
};

/* The rows of a CTA: heads head..head+n_heads-1 of n tokens from
 * `first` on, which are the batch's from `token` on; row r is head r %
 * n_heads of token r / n_heads. low..high-1: positions in the split that any of them attends to. */
struct attend_group {
	unsigned first, token, n, head, n_heads, rows, low, high;
};

struct attend_row {
	unsigned first, last; /* positions in the split */
};

/* Shared memory, besides the queries: R rows. */
template <int R> struct attend_shared {
	uint32_t cells[GPU_SPLIT];
	uint32_t paired[4]; /* the chunk's cells are pairs of neighbours in memory */
	attend_row row[R];
	float scores[R][ATTEND_SCORES]; /* then weights */
	float scales[4][GPU_CHUNK]; /* of one block of the chunk's values */
	float greatest[4][GPU_CHUNK]; /* of all blocks of a value */
	float most[4][R], factor[4][R], sum[4][R], unit[4][R];
	float dot[4][R][Q8_BLOCK + 1];
};

DEV unsigned attend_blocks(unsigned dim)
{
	return (dim + Q8_BLOCK - 1) / Q8_BLOCK;
}

/* Bytes of a row of a query's integers, as bytes of one significance; 16 more spread rows over the
 * banks. */
DEV unsigned query_stride(unsigned k_dim)
{
	return attend_blocks(k_dim) * Q8_BLOCK + 16;
}

/* The group that begins at token t, or n = 0 where none does. */
DEV attend_group group_at(const attend_args *a, unsigned t, unsigned split, unsigned head_block)
{
	const unsigned most = a->block_heads;
	attend_group g = {};

	g.first = t;
	g.token = a->first_token + t;
	g.head = head_block * most;
	g.n_heads = a->n_heads - g.head < most ? a->n_heads - g.head : most;
	if (t >= a->n_tokens || !attends(&a->cells, g.token, split) ||
		(t % a->group != 0 && together(&a->cells, g.token - 1, g.token, split)))
		return g;
	g.low = GPU_SPLIT;
	do {
		gpu_span s = span_of(&a->cells, g.token + g.n, split);

		g.low = s.first < g.low ? s.first : g.low;
		g.high = s.last > g.high ? s.last : g.high;
		g.n++;
	} while ((t + g.n) % a->group != 0 && t + g.n < a->n_tokens &&
		 together(&a->cells, g.token + g.n - 1, g.token + g.n, split));
	g.rows = g.n * g.n_heads;
	return g;
}

/* Fills in which cells the CTA reads and which of them each row attends to. */
template <int R>
DEV void take_group(
	const attend_args *a, const attend_group *g, unsigned split, attend_shared<R> *s)
{
	split_cells(&a->cells, g->token, split, g->low, g->high, s->cells);
	for (unsigned r = threadIdx.x; r < R; r += ATTEND_THREADS) {
		gpu_span row = {0, 0};

		if (r < g->rows)
			row = span_of(&a->cells, g->token + r / g->n_heads, split);
		s->row[r].first = row.first;
		s->row[r].last = row.last;
	}
	if (threadIdx.x < 4)
		s->paired[threadIdx.x] = 1;
	__syncthreads();
	/* All that write, write the same. */
	uint32_t one = s->cells[2 * threadIdx.x], two = s->cells[2 * threadIdx.x + 1];

	if (one % 2 != 0 || two != one + 1)
		s->paired[threadIdx.x / 32] = 0;
}

/* The cells of chunk c that row r attends to: positions first..first+n-1 of the split. */
DEV unsigned row_in_chunk(attend_row row, unsigned c, unsigned *first)
{
	unsigned begin = c * GPU_CHUNK, end = begin + GPU_CHUNK;

	*first = row.first > begin ? row.first : begin;
	end = row.last < end ? row.last : end;
	return end > *first ? end - *first : 0;
}

/* The greatest score of each row in the warp's chunk; each half of the warp takes a row. */
template <int R>
DEV void chunk_maxima(unsigned rows, unsigned c, unsigned lane, attend_shared<R> *s)
{
	for (unsigned r = lane / 16; r - lane / 16 < rows; r += 2) {
		float most = -INFINITE;
		unsigned first = 0, n = r < rows ? row_in_chunk(s->row[r], c, &first) : 0;

		for (unsigned i = c * GPU_CHUNK + lane % 16; i < (c + 1) * GPU_CHUNK; i += 16)
			if (n && i >= first && i < first + n)
				most = f_max(most, s->scores[r][i]);
		most = lanes_max(most);
		if (n && lane % 16 == 0)
			s->most[c][r] = most;
	}
}

/* Turns the warp's scores of row r into weights. blocks: values in blocks, whose unit is made as
 * well, and by which the weights are divided. Which attended position LANES counts from does not
 * matter: the fold adds lanes whose numbers are equal modulo 8, 4, 2, 1. */
template <int R>
DEV void chunk_weights(unsigned r, unsigned rows, unsigned c, unsigned lane, bool blocks,
	bool bounded, attend_shared<R> *s)
{
	unsigned first = 0, n = r < rows ? row_in_chunk(s->row[r], c, &first) : 0;
	float old = -INFINITE, now, sum = 0, greatest = 0, all = 0, p[4];

	for (unsigned i = 0; i < c && r < rows; i++) {
		unsigned begin;

		if (row_in_chunk(s->row[r], i, &begin))
			old = f_max(old, s->most[i][r]);
	}
	now = n ? f_max(old, s->most[c][r]) : old;
	for (unsigned i = 0; i < 4; i++) {
		unsigned at = c * GPU_CHUNK + 16 * i + lane % 16;

		p[i] = n && at >= first && at < first + n ? exp32(s->scores[r][at] - now) : 0.0f;
		sum = f_add(sum, p[i]);
		if (blocks) {
			/* 0 times the scale of an unattended cell may be a NaN, which becomes 0 */
			float w = f_max(f_mul(p[i], s->greatest[c][16 * i + lane % 16]), 0.0f);

			greatest = f_max(greatest, w);
			all = f_add(all, w);
		}
	}
	sum = lanes_fold(sum);
	float by = 1;
	if (blocks) {
		float unit = f_mul(f_max(lanes_max(greatest), 0x1p-100f), 1.0f / KV_WEIGHT_MOST);

		all = lanes_fold(all);
		if (bounded)
			unit = f_max(unit, f_mul(all, 1.0f / KV_Q16_WEIGHTS_MOST));
		by = 1.0f / unit;
		if (r < rows && lane % 16 == 0)
			s->unit[c][r] = unit;
	}
	if (n && lane % 16 == 0) {
		s->factor[c][r] = exp32(old - now);
		s->sum[c][r] = sum;
	}
	for (unsigned i = 0; i < 4 && r < rows; i++) {
		float w = p[i];

		if (blocks) {
			w = f_max(f_mul(w, by), 0.0f);
			w = w < 0x1.fffffep127f ? w : 0x1.fffffep127f;
		}
		s->scores[r][c * GPU_CHUNK + 16 * i + lane % 16] = w;
	}
}

/* The sum and the greatest score of each row of the split. */
template <int R>
DEV void split_sums(const attend_args *a, const attend_group *g, size_t part, attend_shared<R> *s)
{
	unsigned r = threadIdx.x;
	float sum = 0, most = -INFINITE;

	if (r >= g->rows)
		return;
	for (unsigned c = 0; c < 4; c++) {
		unsigned first;

		if (!row_in_chunk(s->row[r], c, &first))
			continue;
		sum = f_fma(sum, s->factor[c][r], s->sum[c][r]);
		most = f_max(most, s->most[c][r]);
	}
	part += (size_t)(r / g->n_heads) * a->n_heads * a->n_kv_heads + r % g->n_heads;
	a->part_most[part] = most;
	a->part_sum[part] = sum;
}

#include "kernels/gpu/kernels/attend_blocks.cuh"
#include "kernels/gpu/kernels/attend_plain.cuh"

/* Rows x: KV head, block of its heads, and tokens; y: split. Shared memory: attend_shared<R>, then
 * the queries (query_bytes in steps/attend.cc). */
template <int TYPE, int R> KERNEL attend(attend_args a)
{
	attend_shared<R> *s = &shared_memory<attend_shared<R>>();
	unsigned char *q = (unsigned char *)(s + 1);
	unsigned unit = blockIdx.x, split = a.first_split + blockIdx.y;
	unsigned block = unit % a.head_blocks, kv_head = unit / a.head_blocks % a.n_kv_heads;
	unsigned t = unit / a.head_blocks / a.n_kv_heads * a.span, end = t + a.span;
	unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	for (; t < end; t++) {
		attend_group g = group_at(&a, t, split, block);

		if (!g.n)
			continue;
		size_t head = (size_t)kv_head * a.n_heads + g.head;
		size_t part =
			((size_t)blockIdx.y * a.n_tokens + t) * a.n_heads * a.n_kv_heads + head;

		take_group<R>(&a, &g, split, s);
		if (TYPE == KV_Q8_0 || TYPE == KV_Q16_0) {
			block_queries<TYPE, R>(&a, &g, head, q);
			block_greatest<TYPE, R>(&a, kv_head, warp, lane, s);
			__syncthreads();
			block_scores<TYPE, R>(&a, kv_head, q, warp, lane, s);
		} else {
			plain_queries<R>(&a, &g, head, (float *)q);
			__syncthreads();
			plain_scores<TYPE, R>(&a, kv_head, (const float *)q, warp, lane, s);
		}
		__syncwarp();
		chunk_maxima<R>(g.rows, warp, lane, s);
		__syncthreads();
		for (unsigned r = lane / 16; r - lane / 16 < g.rows; r += 2)
			chunk_weights<R>(r, g.rows, warp, lane, TYPE == KV_Q8_0 || TYPE == KV_Q16_0,
				TYPE == KV_Q16_0, s);
		if (TYPE == KV_Q8_0 || TYPE == KV_Q16_0) {
			__syncwarp();
			block_values<TYPE, R>(&a, &g, kv_head, part, warp, lane, s);
		} else {
			__syncthreads();
			plain_values<TYPE, R>(&a, &g, kv_head, part, s);
		}
		split_sums<R>(&a, &g, part, s);
		__syncthreads();
	}
}
