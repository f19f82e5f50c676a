/*
 * Products of quantised weights with 8-bit activations, in the order BLOCKS (numerics.md): sixteen
 * rows of weights and eights of tokens in a warp. The products of bytes are exact; a lane's four
 * sums per eight tokens follow the runs, in registers. The warps of a block take segments in turn,
 * and their results are added in the order of the segments.
 */
#pragma once

#include "kernels/gpu/kernels/runs.cuh"

/* Where the two rows of a lane are, g and g + 8 of the block's sixteen. */
struct tile_source {
	const unsigned char *tile;
	uint32_t cols;
};

struct row_source {
	const unsigned char *row[2];
};

template <int TYPE>
DEV struct run_part source_run(const struct tile_source &s, uint32_t run, uint32_t i, uint32_t lane)
{
	return take_run<TYPE>(
		tile_group_at<TYPE>(s.tile, s.cols, run / 8, lane / 4 + 8 * i), run % 8, lane % 4);
}

template <int TYPE>
DEV struct run_part source_run(const struct row_source &s, uint32_t run, uint32_t i, uint32_t lane)
{
	return take_run<TYPE>(row_group_at<TYPE>(s.row[i], run / 8), run % 8, lane % 4);
}

/* A lane's rows of activations for eight tokens, 0 to 7: of token g, for the products of bytes, and
 * of tokens 2t and 2t + 1, whose sums it has. Null: there is no such token. */
struct few_columns {
	const struct q8_block *b, *c[2];
};

/* What a lane needs of the two tokens' blocks. */
struct few_scales {
	float d[2], d_sum[2];
	int32_t sums[2][2];
};

DEV struct few_scales few_scales_at(const struct few_columns &x, uint32_t run)
{
	struct few_scales s = {};

	for (unsigned i = 0; i < 2; i++)
		if (x.c[i]) {
			const struct q8_block *block = x.c[i] + run;

			s.d[i] = block->d;
			s.d_sum[i] = block->d_sum;
			s.sums[i][0] = block->sums[0];
			s.sums[i][1] = block->sums[1];
		}
	return s;
}

/* The bits of 1.5 * 2^23. A sum below 2^22 that begins with them is, as float32, 1.5 * 2^23 higher
 * than the integer, exactly. */
enum { FEW_SHIFT = 0x4b400000 };

/* One run of two rows times eight tokens. p: of rows g and g + 8. */
template <int TYPE>
DEV void few_run(const struct run_part (&p)[2], const struct few_columns &x, uint32_t run,
	uint32_t t, float (&acc)[4])
{
	typedef type_of<TYPE> T;
	const uint32_t *q = x.b ? (const uint32_t *)x.b[run].q : nullptr;
	const uint32_t b[2] = {q ? q[t] : 0, q ? q[4 + t] : 0};
	const struct few_scales s = few_scales_at(x, run);

	if (T::factors || T::two_d) {
		const uint32_t first[4] = {p[0].w[0], p[1].w[0], 0, 0};
		const uint32_t last[4] = {0, 0, p[0].w[1], p[1].w[1]};
		int32_t low[4], high[4];

		for (unsigned i = 0; i < 4; i++) {
			low[i] = -T::less * s.sums[i % 2][0];
			high[i] = -T::less * s.sums[i % 2][1];
		}
		MMA(low, first, b, T::is_signed, true);
		MMA(high, last, b, T::is_signed, true);
		for (unsigned i = 0; i < 4; i++) {
			const struct run_part &row = p[i / 2];
			unsigned n = i % 2;

			if (T::two_d) {
				acc[i] = f_fma(f_mul(row.d, s.d[n]), (float)low[i], acc[i]);
				acc[i] = f_fma(f_mul(row.d_last, s.d[n]), (float)high[i], acc[i]);
				continue;
			}
			acc[i] = f_fma(f_mul(row.d, s.d[n]),
				(float)(row.c[0] * low[i] + row.c[1] * high[i]), acc[i]);
			if (T::has_m)
				acc[i] = f_fma(row.m,
					f_mul(s.d[n], (float)(row.e[0] * s.sums[n][0] +
							      row.e[1] * s.sums[n][1])),
					acc[i]);
		}
	} else {
		const uint32_t a[4] = {p[0].w[0], p[1].w[0], p[0].w[1], p[1].w[1]};
		int32_t sum[4];

		for (unsigned i = 0; i < 4; i++)
			sum[i] = FEW_SHIFT - T::less * (s.sums[i % 2][0] + s.sums[i % 2][1]);
		MMA(sum, a, b, T::is_signed, true);
		for (unsigned i = 0; i < 4; i++) {
			const struct run_part &row = p[i / 2];
			unsigned n = i % 2;

			acc[i] = f_fma(f_mul(row.d, s.d[n]),
				f_sub(float_of_bits((uint32_t)sum[i]), 12582912.0f), acc[i]);
			if (T::has_m)
				acc[i] = f_fma(row.m, s.d_sum[n], acc[i]);
		}
	}
}

/* Runs first..last-1 of one segment; acc is set to its result. */
template <int TYPE, int NT, class SOURCE>
DEV void few_segment(const SOURCE &source, const struct few_columns (&x)[NT], uint32_t first,
	uint32_t last, float (&acc)[NT][4])
{
	uint32_t lane = threadIdx.x % 32;

	for (unsigned j = 0; j < NT; j++)
		for (unsigned i = 0; i < 4; i++)
			acc[j][i] = 0;
	for (uint32_t run = first; run < last; run++) {
		const struct run_part p[2] = {source_run<TYPE>(source, run, 0, lane),
			source_run<TYPE>(source, run, 1, lane)};

		UNROLL
		for (unsigned j = 0; j < NT; j++)
			few_run<TYPE>(p, x[j], run, lane % 4, acc[j]);
	}
}

/* The results of the warps' segments: [warp][NT][32][4] floats of shared memory. */
template <int NT> constexpr size_t few_shared_bytes(unsigned warps)
{
	return (size_t)warps * NT * 32 * 4 * sizeof(float);
}

/* Sixteen rows times 8 NT tokens. All threads of the block take part; x: of each lane, the same in
 * all warps. total: the products, in the lanes of warp 0: [j][i] is row g + 8 (i / 2), token
 * 8 j + 2 t + i % 2. part: few_shared_bytes of shared memory. */
template <int TYPE, int NT, class SOURCE>
DEV void few_product(const SOURCE &source, uint32_t cols, const struct few_columns (&x)[NT],
	float *part, float (&total)[NT][4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	uint32_t runs = cols / 32, segments = (runs + SEGMENT_RUNS - 1) / SEGMENT_RUNS;

	for (uint32_t begin = 0; begin < segments; begin += warps) {
		uint32_t mine = begin + warp, first = mine * SEGMENT_RUNS;
		uint32_t last = first + SEGMENT_RUNS < runs ? first + SEGMENT_RUNS : runs;
		float acc[NT][4];

		if (mine < segments) {
			few_segment<TYPE, NT>(source, x, first, last, acc);
			for (unsigned j = 0; j < NT; j++)
				for (unsigned i = 0; i < 4; i++)
					part[((warp * NT + j) * 32 + lane) * 4 + i] = acc[j][i];
		}
		__syncthreads();
		for (uint32_t w = 0; warp == 0 && w < warps && begin + w < segments; w++)
			for (unsigned j = 0; j < NT; j++)
				for (unsigned i = 0; i < 4; i++) {
					float more = part[((w * NT + j) * 32 + lane) * 4 + i];

					total[j][i] = begin + w ? f_add(total[j][i], more) : more;
				}
		__syncthreads();
	}
}

/* The columns of a lane for tokens first.., which rows(token) gives; null: no such token. */
template <int NT, class ROWS>
DEV void few_columns_of(const ROWS &rows, uint32_t first, struct few_columns (&x)[NT])
{
	uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

	for (unsigned j = 0; j < NT; j++) {
		x[j].b = rows.q8(first + 8 * j + g);
		x[j].c[0] = rows.q8(first + 8 * j + 2 * t);
		x[j].c[1] = rows.q8(first + 8 * j + 2 * t + 1);
	}
}
