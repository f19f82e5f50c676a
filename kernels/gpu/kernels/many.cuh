/*
 * Products of quantised weights with many rows of 8-bit activations, such as those of a prompt: 64 rows
 * of weights in tiles times 128 tokens in a block, with the bits of few.cuh. A warp has sixteen rows
 * and 64 tokens, and takes all runs one after the other. The activations come to shared memory by
 * asynchronous copies, stage by stage, while the stages before are computed.
 */
#pragma once

#include "kernels/gpu/kernels/products.cuh"

enum {
	MANY_THREADS = 256,
	MANY_ROWS = 64,
	MANY_TOKENS = 128,
	MANY_STAGES = 3,
	MANY_RUNS = 2, /* of a stage; divides SEGMENT_RUNS */
	MANY_PIECE = 16, /* bytes that are copied at once */
};

/* A token's blocks of a stage; what is behind them spreads tokens over the banks. */
struct many_token {
	struct q8_block block[MANY_RUNS];
	uint32_t unused[4];
};

struct many_shared {
	many_token token[MANY_STAGES][MANY_TOKENS];
};

/* Begins to copy a stage, if there is one, and commits it in any case. Behind the last token, the last
 * one is copied again. */
DEV void many_fetch(many_shared *s, const struct product_args &a, uint32_t first, uint32_t stage)
{
	const uint32_t pieces = sizeof(struct q8_block) * MANY_RUNS / MANY_PIECE;
	uint32_t runs = a.w.cols / 32 - stage * MANY_RUNS, last = a.y.n - 1;
	bool any = stage * MANY_RUNS < a.w.cols / 32;
	uint32_t there = any && runs < MANY_RUNS
				 ? runs * (uint32_t)sizeof(struct q8_block) / MANY_PIECE
				 : pieces;

	for (uint32_t i = threadIdx.x; any && i < MANY_TOKENS * pieces; i += MANY_THREADS) {
		uint32_t token = i / pieces, piece = i % pieces;
		uint32_t from = first + token < last ? first + token : last;
		const unsigned char *row =
			(const unsigned char *)(q8_row(a.x, from) + stage * MANY_RUNS);
		unsigned char *to = (unsigned char *)&s->token[stage % MANY_STAGES][token];

		if (piece < there)
			async_copy<MANY_PIECE>(to + piece * MANY_PIECE, row + piece * MANY_PIECE);
	}
	async_commit();
}

/* Where a lane's columns of eight tokens lie in a stage. */
DEV struct few_columns many_columns(const many_token *eight, uint32_t lane)
{
	uint32_t g = lane / 4, t = lane % 4;

	return {eight[g].block, {eight[2 * t].block, eight[2 * t + 1].block}};
}

/* Grid: (tiles / 4, tokens / MANY_TOKENS). LEFT: stages that may still be on their way when one is
 * computed; anything but MANY_STAGES - 2 is wrong, for tests. */
template <int TYPE, unsigned LEFT = MANY_STAGES - 2> KERNEL many_tiles(struct product_args a)
{
	many_shared *s = &shared_memory<many_shared>();
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t row = blockIdx.x * MANY_ROWS + warp % 4 * 16, half = warp / 4 * (MANY_TOKENS / 2);
	uint32_t first = blockIdx.y * MANY_TOKENS, runs = a.w.cols / 32;
	bool has = row < a.w.rows / 16 * 16 && first + half < a.y.n;
	struct tile_source source = {
		(const unsigned char *)a.w.data + row * a.w.row_bytes, a.w.cols};
	float acc[8][4] = {}, total[8][4] = {};

	for (uint32_t stage = 0; stage < MANY_STAGES - 1; stage++)
		many_fetch(s, a, first, stage);
	for (uint32_t stage = 0; stage * MANY_RUNS < runs; stage++) {
		async_wait<LEFT>();
		/* The stage is there for all, and nobody reads the one that is overwritten next. */
		__syncthreads();
		many_fetch(s, a, first, stage + MANY_STAGES - 1);
		const many_token *tokens = s->token[stage % MANY_STAGES] + half;

		for (uint32_t i = 0; has && i < MANY_RUNS && stage * MANY_RUNS + i < runs; i++) {
			uint32_t run = stage * MANY_RUNS + i;
			const struct run_part p[2] = {source_run<TYPE>(source, run, 0, lane),
				source_run<TYPE>(source, run, 1, lane)};
			bool ends = run % SEGMENT_RUNS == SEGMENT_RUNS - 1 || run == runs - 1;

			UNROLL
			for (unsigned j = 0; j < 8; j++) {
				if (first + half + 8 * j >= a.y.n)
					break;
				few_run<TYPE>(
					p, many_columns(tokens + 8 * j, lane), i, lane % 4, acc[j]);
				for (unsigned k = 0; ends && k < 4; k++) {
					total[j][k] = run < SEGMENT_RUNS
							      ? acc[j][k]
							      : f_add(total[j][k], acc[j][k]);
					acc[j][k] = 0;
				}
			}
		}
	}
	UNROLL
	for (unsigned j = 0; j < 8; j++)
		for (unsigned i = 0; has && i < 4; i++) {
			uint32_t token = first + half + 8 * j + lane % 4 * 2 + i % 2;

			if (token < a.y.n)
				put_product(a, row + lane / 4 + i / 2 * 8, token, total[j][i]);
		}
}
