/*
 * Products of a tile of sixteen rows with up to 8 * NT rows of 8-bit activations, in the order
 * BLOCKS, by a warp: the tensor cores' sums of a run are exact, and each thread goes on with four
 * float32 sums for each eight rows of activations.
 */
#pragma once

#include "kernels/gpu/kernels/rows.cuh"
#include "kernels/gpu/kernels/expert_runs.cuh"

/* Sixteen rows of a matrix. tiles: interleaved; otherwise the first `rows` of them are there, one
 * after the other. */
struct sixteen_rows {
	const unsigned char *at;
	size_t row_bytes;
	unsigned rows;
	bool tiles;
};

/* Run `run` of row `row` for thread t of its four. runs: of the whole row. */
template <int TYPE>
DEV row_run run_of_row(const sixteen_rows &m, unsigned runs, unsigned run, unsigned row, unsigned t)
{
	typedef run_type<TYPE> T;
	const unsigned group = run / 8, blocks = 8 / T::runs > 0 ? 8 / T::runs : 1;
	const unsigned left = runs / T::runs - group * blocks;
	size_t at = (size_t)group * blocks * T::bytes;
	row_run r = {};

	if (m.tiles) {
		tile_source s = {m.at + at * 16, left < blocks ? left : blocks, row};

		take_run(run_of<TYPE>(), s, run % 8, t, &r);
	} else {
		row_source s = {
			m.at + (row < m.rows ? row : m.rows - 1) * m.row_bytes + at, T::bytes};

		take_run(run_of<TYPE>(), s, run % 8, t, &r);
	}
	return r;
}

/* The four exact sums of a run become part of four float32 sums: rows g and g + 8 (i / 2),
 * activations 2 t and 2 t + 1 (i % 2) with scales d and d_sum and sums of their integers. */
struct run_activations {
	uint32_t b[2];
	float d[2], d_sum[2];
	int32_t sums[2][2];
};

DEV run_activations take_activations(
	const struct q8_block *const *x, unsigned run, unsigned g, unsigned t)
{
	run_activations a = {};
	const struct q8_block *column = x[g];

	if (column) {
		a.b[0] = ((const uint32_t *)column[run].q)[t];
		a.b[1] = ((const uint32_t *)column[run].q)[4 + t];
	}
	for (unsigned i = 0; i < 2; i++) {
		const struct q8_block *mine = x[2 * t + i];

		if (!mine)
			continue;
		a.d[i] = mine[run].d;
		a.d_sum[i] = mine[run].d_sum;
		a.sums[i][0] = mine[run].sums[0];
		a.sums[i][1] = mine[run].sums[1];
	}
	return a;
}

/* What a sum that is below 2^22 is added to, so that a float32's bits hold it. */
#define SUM_MAGIC 0x4b400000

/* Both halves of the run apart. */
template <int TYPE>
DEV void add_halves(float (&acc)[4], const row_run (&r)[2], const run_activations &x)
{
	typedef run_type<TYPE> T;
	const uint32_t first[4] = {r[0].w[0], r[1].w[0], 0, 0},
		       last[4] = {0, 0, r[0].w[1], r[1].w[1]};
	int32_t low[4], high[4];

	for (unsigned i = 0; i < 4; i++) {
		low[i] = -(int)T::less * x.sums[i % 2][0];
		high[i] = -(int)T::less * x.sums[i % 2][1];
	}
	MMA(low, first, x.b, (T::traits & RUN_SIGNED) != 0, true);
	MMA(high, last, x.b, (T::traits & RUN_SIGNED) != 0, true);
	for (unsigned i = 0; i < 4; i++) {
		const row_run &row = r[i / 2];
		float d = x.d[i % 2];

		if (T::traits & RUN_TWO) {
			acc[i] = f_fma(f_mul(row.d, d), (float)low[i], acc[i]);
			acc[i] = f_fma(f_mul(row.m, d), (float)high[i], acc[i]);
			continue;
		}
		acc[i] = f_fma(
			f_mul(row.d, d), (float)(row.c[0] * low[i] + row.c[1] * high[i]), acc[i]);
		if (T::traits & RUN_E)
			acc[i] = f_fma(row.m,
				f_mul(d, (float)(row.e[0] * x.sums[i % 2][0] +
						 row.e[1] * x.sums[i % 2][1])),
				acc[i]);
	}
}

template <int TYPE>
DEV void add_whole(float (&acc)[4], const row_run (&r)[2], const run_activations &x)
{
	typedef run_type<TYPE> T;
	const uint32_t a[4] = {r[0].w[0], r[1].w[0], r[0].w[1], r[1].w[1]};
	int32_t sum[4];

	for (unsigned i = 0; i < 4; i++)
		sum[i] = SUM_MAGIC - (int)T::less * (x.sums[i % 2][0] + x.sums[i % 2][1]);
	MMA(sum, a, x.b, (T::traits & RUN_SIGNED) != 0, true);
	for (unsigned i = 0; i < 4; i++) {
		float isum = f_sub(float_of_bits((uint32_t)sum[i]), 0x1.8p+23f);

		acc[i] = f_fma(f_mul(r[i / 2].d, x.d[i % 2]), isum, acc[i]);
		if (T::traits & RUN_M)
			acc[i] = f_fma(r[i / 2].m, x.d_sum[i % 2], acc[i]);
	}
}

/* Adds runs first..last-1. x: [8 * NT] rows of activations, null where there is none. */
template <int TYPE, int NT>
DEV void add_runs(float (&acc)[NT][4], const sixteen_rows &m, unsigned runs, unsigned first,
	unsigned last, const struct q8_block *const *x)
{
	unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

	for (unsigned run = first; run < last; run++) {
		const row_run r[2] = {run_of_row<TYPE>(m, runs, run, g, t),
			run_of_row<TYPE>(m, runs, run, g + 8, t)};

		for (unsigned j = 0; j < NT; j++) {
			run_activations a = take_activations(x + 8 * j, run, g, t);

			if (run_type<TYPE>::traits & (RUN_C | RUN_TWO))
				add_halves<TYPE>(acc[j], r, a);
			else
				add_whole<TYPE>(acc[j], r, a);
		}
	}
}
