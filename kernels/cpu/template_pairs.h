/*
 * Products of matrices in TILES with many tokens, which wait for the arithmetic and not for memory: two tiles at once, so
 * that four activations, once they are broadcast, serve both. With a broadcast for every product a core does no more than
 * the loads: on Zen 5 60 to 64 % of the VNNI peak with Q4_0, two tiles 68 to 74 %. (80 % are possible, since the pipes for
 * the eight products of a run do two multiplications of float32 beside.) The sums of a row are the same, in the same
 * order, as those of template_tiles.h, which includes this for AVX-512, as AVX2 has too few registers. For types in
 * blocks of 32, whose runs are unpacked alike.
 */
#pragma once

/* The products of a run with so many tokens at least, and PAIR_TOKENS at most, lie in registers at once. */
#define PAIR_TOKENS_LEAST 4

/* A run of two tiles. */
struct pair_run {
	struct tile_group tile[2];
	uint32_t r;
};

typedef void run_function(
	const struct tile_group *g, uint32_t r, uint32_t lane, struct lanes_run *out);

/* Not before here: all that a run unpacks to would be too much for the registers. What is not used of it is not computed. */
ALWAYS_INLINE void unpack_pair(
	run_function *run, const struct pair_run *pair, struct lanes_run one[2])
{
	__asm__ volatile("" ::: "memory");
	run(&pair->tile[0], pair->r, 0, &one[0]);
	run(&pair->tile[1], pair->r, 0, &one[1]);
}

/* dot and the products of weights 4k..4k+3 of the run with those of T tokens. */
ALWAYS_INLINE void add_four_of_pair(const struct lanes_run one[2], uint32_t k,
	const struct q8_block *const *x, const uint32_t T, ilanes (*dot)[2])
{
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++) {
		dot[t][0] = add_four(dot[t][0], one[0].w[k], x[t]->q, k);
		dot[t][1] = add_four(dot[t][1], one[1].w[k], x[t]->q, k);
	}
}

/* sums and the run's terms, for T tokens, whose activations are blocks `at`. */
ALWAYS_INLINE void add_run_of_pair(enum kind kind, run_function *run, const struct pair_run *pair,
	const struct activation *activations, uint32_t at, const uint32_t T, flanes (*sums)[2])
{
	ilanes dot[PAIR_TOKENS][2];
	const struct q8_block *x[PAIR_TOKENS];
	struct lanes_run one[2];

	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++) {
		x[t] = activations[t].q8 + at;
		dot[t][0] = i_set1(kind == KIND_MIN ? 0 : x[t]->minus_128);
		dot[t][1] = dot[t][0];
	}
	/* Nibbles k and 4 + k lie in the same bytes. */
#pragma GCC unroll 4
	for (uint32_t k = 0; k < 4; k++) {
		unpack_pair(run, pair, one);
		add_four_of_pair(one, k, x, T, dot);
		add_four_of_pair(one, 4 + k, x, T, dot);
	}
	unpack_pair(run, pair, one);
	UNROLL_TOKENS
	for (uint32_t t = 0; t < T; t++)
#pragma GCC unroll 2
		for (uint32_t i = 0; i < 2; i++)
			sums[t][i] = add_terms(kind, &one[i], x[t], dot[t][i], sums[t][i]);
}

/* Two tiles, whole; all but work, x and y are constants where this is inlined. */
ALWAYS_INLINE void pair_product(enum kind kind, uint32_t block_bytes, run_function *run,
	const struct tile_work *work, const struct activation *x, const uint32_t T, float *const *y)
{
	const uint32_t per_group = TILES_GROUP_WEIGHTS / Q8_BLOCK;
	const size_t tile_bytes = (size_t)work->blocks * block_bytes * TILE_LANES;
	const uint8_t *p = work->tile;
	flanes sums[PAIR_TOKENS][2];

	for (uint32_t t = 0; t < T; t++)
		sums[t][0] = sums[t][1] = f_zero();
	for (uint32_t b = 0; b < work->blocks; b += per_group) {
		uint32_t n = work->blocks - b < per_group ? work->blocks - b : per_group;
		struct pair_run pair = {{{p, n, NULL}, {p + tile_bytes, n, NULL}}, 0};

		for (; pair.r < n; pair.r++) {
			/* The same run of the next pair. */
			const uint8_t *next =
				p + (size_t)pair.r * block_bytes * TILE_LANES + 2 * tile_bytes;

			fetch(next, block_bytes * TILE_LANES, false);
			fetch(next + tile_bytes, block_bytes * TILE_LANES, false);
			add_run_of_pair(kind, run, &pair, x, b + pair.r, T, sums);
		}
		p += (size_t)n * block_bytes * TILE_LANES;
	}
	for (uint32_t t = 0; t < T; t++)
		for (uint32_t i = 0; i < 2; i++)
			f_store_some(y[t] + work->row + i * TILE_LANES, sums[t][i], 0, TILE_LANES);
}

/* n >= PAIR_TOKENS tokens, in parts of about five: those are fastest, as their sums too stay in registers. A part is
 * never of less than PAIR_TOKENS_LEAST or of more than PAIR_TOKENS. */
static void pair_tokens(tiles_function *const *functions, const struct tile_work *work,
	const struct activation *x, uint32_t n, float *const *y)
{
	uint32_t parts = (n + 1) / 5;

	for (uint32_t i = 0; i < parts; i++) {
		uint32_t t = n * i / parts;

		functions[n * (i + 1) / parts - t - PAIR_TOKENS_LEAST](work, x + t, y + t);
	}
}

#define PAIRS_FUNCTION(type, kind, bytes, run, tokens)                                     \
	static void pairs_##type##_##tokens(                                               \
		const struct tile_work *work, const struct activation *x, float *const *y) \
	{                                                                                  \
		pair_product(KIND_##kind, bytes, run, work, x, tokens, y);                 \
	}
#define PAIRS_FUNCTIONS(type, kind, weights, bytes, offset, shared, run)                        \
	PAIRS_FUNCTION(type, kind, bytes, run, 4)                                               \
	PAIRS_FUNCTION(type, kind, bytes, run, 5)                                               \
	PAIRS_FUNCTION(type, kind, bytes, run, 6)                                               \
	PAIRS_FUNCTION(type, kind, bytes, run, 7)                                               \
	PAIRS_FUNCTION(type, kind, bytes, run, 8)                                               \
	static void pairs_##type(const struct tile_work *work, const struct activation *x,      \
		uint32_t n, float *const *y)                                                    \
	{                                                                                       \
		static tiles_function *const functions[] = {pairs_##type##_4, pairs_##type##_5, \
			pairs_##type##_6, pairs_##type##_7, pairs_##type##_8};                  \
                                                                                                \
		pair_tokens(functions, work, x, n, y);                                          \
	}
TILES_TYPES_32(PAIRS_FUNCTIONS)
