/*
 * Scores and their weights: the half of a chunk's attention before its values. template_attention.h
 * includes this. Sums are kept in registers in tiles of several rows (a row is one head of one
 * token) and several times 16 cells.
 */
#pragma once

#include "kernels/cpu/template_keys.h"
#include "shared/base/limits.h"

/* Rows of a tile of scores, and its sums: a value widened for one row serves all rows. With blocks,
 * the integers need sums of their own. */
#define SCORE_ROWS(type) (V16_TILE == 4 ? 2u : kv_in_blocks(type) ? 4u : 8u)
#define SCORE_TILE(type) (SCORE_ROWS(type) * (V16_TILE == 4 && kv_in_blocks(type) ? 1 : 2))
#define SCORE_TILE_MOST (2 * 8)
/* How many values of the keys, or cells of the values, a tile of H rows takes between two calls of
 * kv_fetch. One line is prefetched with each, so with fewer rows more lines come at once. */
#define FETCH_STEPS(H) ((H) < 4 ? 4u : 16u)
/* Scores of a row: those of a chunk, and those that fill up the last vector. */
#define SCORES_STRIDE (ATTENTION_CHUNK + 16)

/* The first n vectors of a view, of `length` bytes each, which will be read soon. `step` of them
 * are prefetched at a time, from `next` on. */
struct kv_fetch {
	struct kv_view view;
	uint32_t n, length, next, step;
};

struct attention_pass {
	const struct attention_job *job;
	float *q; /* [rows][k_dim] */
	struct q8_block *q8; /* [rows][kv_blocks(k_dim)], when keys are KV_Q8_0 */
	struct q16_block *q16; /* the same, when keys are KV_Q16_0 */
	float *scores; /* [rows][SCORES_STRIDE] by position in the chunk, then weights */
	float *factor; /* [rows] the chunk's maxima, then the factors for the sums before it */
	float *keys; /* a chunk's copied keys: put_keys, put_block_keys */
	float *values; /* a chunk's copied values: [ATTENTION_CHUNK][v_dim], or put_block_values */
	bool copied; /* all chunks are copied */
	/* of values in blocks: [kv_blocks(v_dim)][ATTENTION_CHUNK], and behind them the greatest of
	 * each cell */
	float *scales;
	/* the weights of some rows as integers: [kv_blocks(v_dim)][WEIGH_ROWS][ATTENTION_CHUNK] */
	int16_t *integers;
};

/* Rows that attend to the same `n` cells of a chunk, from its cell `first` on. */
struct attention_run {
	uint32_t row, rows, first, n;
};

static size_t round_16(size_t n)
{
	return (n + 15) / 16 * 16;
}

/* Addresses to prefetch one by one, `step` bytes apart. */
struct fetch_lines {
	const uint8_t *at;
	size_t step;
};

/* Gives the next vectors as lines to prefetch in `steps` steps of a loop, which then needs no
 * branch for them. Vectors that lie apart, or are too long for the loop, are prefetched at once.
 * `idle`, an address that is in use anyway, stands for nothing left. Lines come to the second
 * level: the first would not hold another chunk beside the present one, and waits for few lines at
 * once (Zen 4: 1.05 times the rate with float16, 1.3 with KV_Q16_0). */
static inline struct fetch_lines kv_fetch(
	struct kv_fetch *fetch, const void *idle, const uint32_t steps)
{
	const uint32_t left = fetch->n - fetch->next, n = fetch->step < left ? fetch->step : left;
	const uint32_t *cells = fetch->view.cells + fetch->next;
	const size_t most = (size_t)CACHE_LINE * steps;
	size_t bytes = (size_t)n * fetch->length, step;

	if (n == 0)
		return (struct fetch_lines){idle, 0};
	fetch->next += n;
	if (cells[n - 1] - cells[0] != n - 1 || fetch->length != fetch->view.bytes) {
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t b = 0; b < fetch->length; b += CACHE_LINE)
				__builtin_prefetch(
					kv_at(&fetch->view, fetch->next - n + i) + b, 0, 2);
		return (struct fetch_lines){idle, 0};
	}
	const uint8_t *first = fetch->view.base + cells[0] * fetch->view.bytes;

	for (; bytes > most; first += step, bytes -= step) {
		step = bytes - most < CACHE_LINE ? bytes - most : CACHE_LINE;
		__builtin_prefetch(first, 0, 2);
	}
	return (struct fetch_lines){first, bytes / steps};
}

static inline void fetch_line(struct fetch_lines *lines)
{
	__builtin_prefetch(lines->at, 0, 2);
	lines->at += lines->step;
}

/* Spreads the remaining vectors over `calls` calls. */
static inline void kv_fetch_in(struct kv_fetch *fetch, uint32_t calls)
{
	fetch->step = (fetch->n - fetch->next + calls - 1) / calls;
}

/* scores[r][16 * g..] for H rows and V times 16 cells, whose keys are at turned[g]. */
ATTENTION_INLINE void score_tile(enum kv_type type, const struct attention_pass *pass,
	const uint8_t *const *turned, size_t row, const uint32_t H, float *scores, const uint32_t V,
	struct kv_fetch *fetch)
{
	const size_t k_dim = pass->job->k_dim;
	const struct v16 scale = v16_set1(pass->job->scale);
	const float *q = pass->q + row * k_dim;
	struct v16 sum[V16_TILE];
	size_t d = 0;

	for (uint32_t s = 0; s < V16_TILE; s++)
		sum[s] = v16_set1(0);
	while (d < k_dim) {
		const size_t end = d + FETCH_STEPS(H) < k_dim ? d + FETCH_STEPS(H) : k_dim;
		struct fetch_lines lines = kv_fetch(fetch, q, FETCH_STEPS(H));

		for (; d < end; d++, q++) {
			struct v16 k[V16_TILE];

			fetch_line(&lines);
			for (uint32_t v = 0; v < V; v++)
				k[v] = kv_turned_16(type, turned[v], d);
			for (uint32_t h = 0; h < H; h++) {
				struct v16 x = v16_set1(q[h * k_dim]);

				for (uint32_t v = 0; v < V; v++)
					sum[h * V + v] = v16_fma(x, k[v], sum[h * V + v]);
			}
		}
	}
	for (uint32_t h = 0; h < H; h++)
		for (uint32_t v = 0; v < V; v++)
			v16_store(scores + h * SCORES_STRIDE + (size_t)KV_TURN * v,
				v16_mul(sum[h * V + v], scale));
}

/* Number of 4-byte units in a block; each is multiplied with a query's at once. */
ATTENTION_INLINE uint32_t block_units(enum kv_type type)
{
	return Q8_BLOCK * (uint32_t)kv_value_bytes(type) / 4;
}

/* The value that the sum of a block begins with; q: the query's block. */
ATTENTION_INLINE struct i16 block_begin(
	enum kv_type type, const struct attention_pass *pass, size_t q)
{
	return type == KV_Q8_0 ? i16_dot_begin(&pass->q8[q]) : i16_zero();
}

/* The scale of a query's block. */
ATTENTION_INLINE float query_scale(enum kv_type type, const struct attention_pass *pass, size_t q)
{
	return type == KV_Q8_0 ? pass->q8[q].d : pass->q16[q].d;
}

/* Scores of H rows and V times 16 cells, from turned whole blocks: each block gives an exact sum of
 * integers. */
ATTENTION_INLINE void score_block_tile(enum kv_type type, const struct attention_pass *pass,
	const uint8_t *const *turned, size_t row, const uint32_t H, float *scores, const uint32_t V,
	struct kv_fetch *fetch)
{
	const uint32_t n_blocks = kv_blocks(pass->job->k_dim), units = block_units(type);
	const struct v16 scale = v16_set1(pass->job->scale);
	size_t q = row * n_blocks, at = (size_t)n_blocks * KV_TURN_SCALES_BYTES;
	struct v16 sum[SCORE_TILE_MOST];

	for (uint32_t s = 0; s < SCORE_TILE(type); s++)
		sum[s] = v16_set1(0);
	for (uint32_t b = 0; b < n_blocks; b++, q++, at += kv_turn_block_bytes(type)) {
		struct fetch_lines lines = kv_fetch(fetch, pass->q, units);
		struct i16 dot[SCORE_TILE_MOST];

		for (uint32_t h = 0; h < H; h++)
			for (uint32_t v = 0; v < V; v++)
				dot[h * V + v] = block_begin(type, pass, q + (size_t)h * n_blocks);
		for (uint32_t i = 0; i < units; i++) {
			fetch_line(&lines);
			for (uint32_t v = 0; v < V; v++) {
				const uint8_t *p = turned[v] + at + (size_t)4 * KV_TURN * i;

				if (type == KV_Q8_0) {
					struct i8x64 k = i8x64_load(p);

					for (uint32_t h = 0; h < H; h++)
						dot[h * V + v] = i16_dot(dot[h * V + v], k,
							pass->q8[q + (size_t)h * n_blocks].q +
								4 * i);
				} else {
					struct i16x32 k = i16x32_load(p);

					for (uint32_t h = 0; h < H; h++)
						dot[h * V + v] = i16_dot_pairs(dot[h * V + v], k,
							pass->q16[q + (size_t)h * n_blocks].q +
								2 * i);
				}
			}
		}
		for (uint32_t v = 0; v < V; v++) {
			struct v16 d = kv_scales_16(type, turned[v] + b * KV_TURN_SCALES_BYTES);

			for (uint32_t h = 0; h < H; h++)
				sum[h * V + v] =
					v16_fma(v16_mul(d, v16_set1(query_scale(type, pass,
								   q + (size_t)h * n_blocks))),
						v16_of_i16(dot[h * V + v]), sum[h * V + v]);
		}
	}
	for (uint32_t h = 0; h < H; h++)
		for (uint32_t v = 0; v < V; v++)
			v16_store(scores + h * SCORES_STRIDE + (size_t)KV_TURN * v,
				v16_mul(sum[h * V + v], scale));
}

/* One tile of either kind. */
ATTENTION_INLINE void score_any_tile(enum kv_type type, const struct attention_pass *pass,
	const uint8_t *const *turned, size_t row, const uint32_t H, float *scores, const uint32_t V,
	struct kv_fetch *fetch)
{
	if (kv_in_blocks(type))
		score_block_tile(type, pass, turned, row, H, scores, V, fetch);
	else
		score_tile(type, pass, turned, row, H, scores, V, fetch);
}

/* How many times 16 cells a tile of H rows takes. */
#define SCORE_TURNS(type, H) \
	(SCORE_TILE(type) / (H) < CHUNK_TURNS ? SCORE_TILE(type) / (H) : CHUNK_TURNS)

/* All scores of H rows, for whole vectors of cells; those outside the run are not used. */
ATTENTION_INLINE void score_rows(enum kv_type type, const struct attention_pass *pass,
	const struct chunk_turns *keys, const struct attention_run *run, uint32_t row,
	const uint32_t H, struct kv_fetch *fetch)
{
	const uint32_t V = SCORE_TURNS(type, H);
	const uint32_t end = (run->first + run->n + KV_TURN - 1) / KV_TURN;
	float *scores = pass->scores + (size_t)row * SCORES_STRIDE;
	uint32_t g = run->first / KV_TURN;

	for (; g + V <= end; g += V)
		score_any_tile(type, pass, keys->at + g, row, H, scores + g * KV_TURN, V, fetch);
	for (; g < end; g++)
		score_any_tile(type, pass, keys->at + g, row, H, scores + g * KV_TURN, 1, fetch);
}

ATTENTION_INLINE void scores_of(enum kv_type type, const struct attention_pass *pass,
	const struct chunk_turns *keys, const struct attention_run *run, struct kv_fetch *fetch)
{
	const uint32_t H = SCORE_ROWS(type), rows = run->rows;
	const uint32_t steps = kv_in_blocks(type) ? Q8_BLOCK : FETCH_STEPS(rows);
	const uint32_t tiles = rows < H ? CHUNK_TURNS / SCORE_TURNS(type, 1)
					: rows / H * (CHUNK_TURNS / SCORE_TURNS(type, H));
	uint32_t row = run->row, left = rows;

	kv_fetch_in(fetch, tiles * ((pass->job->k_dim + steps - 1) / steps));
	for (; left >= H; left -= H, row += H)
		score_rows(type, pass, keys, run, row, H, fetch);
	for (; H > 4 && left >= 4; left -= 4, row += 4)
		score_rows(type, pass, keys, run, row, 4, fetch);
	for (; left; left--, row++)
		score_rows(type, pass, keys, run, row, 1, fetch);
}

/* Reduces some rows' vectors to one vector with a lane for each row: its sum in the order of LANES,
 * or its greatest. Two vectors become one with half the lanes of each, which takes a quarter of the
 * work of transposing them. */
ATTENTION_INLINE struct v16 fold_rows(struct v16 *a, const uint32_t rows, const bool sums)
{
	uint32_t n = rows;

#pragma GCC unroll 4
	for (uint32_t half = 8; half; half /= 2) {
#pragma GCC unroll 4
		for (uint32_t i = 0; i < n; i += 2) {
			struct v16 with,
				without = v16_halves(a[i], a[i + 1 < n ? i + 1 : i], half, &with);

			a[i / 2] = sums ? v16_add(without, with) : v16_max(without, with);
		}
		n = (n + 1) / 2;
	}
	return a[0];
}

static inline struct v16 load_some(const float *p, uint32_t n)
{
	return n == 16 ? v16_load(p) : v16_load_n(p, n);
}

static inline void store_some(float *p, struct v16 a, uint32_t n)
{
	if (n == 16)
		v16_store(p, a);
	else
		v16_store_n(p, a, n);
}

/* Not inlined: only the last chunk of a token has something to fill. */
static __attribute__((noinline)) void fill_up(float *p, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		p[i] = -__builtin_inff();
}

/* Turns scores into weights, for `some` <= WEIGH_ROWS rows from the run's row r on; updates the
 * running maxima and sums, and sets the factors for the earlier sums. Scores are filled up to whole
 * vectors with -inf, whose weight is +0 and changes no sum. */
#define WEIGH_ROWS 8
/* Vectors of weights in these rows; with each, one line is prefetched. */
#define WEIGH_STEPS (WEIGH_ROWS * ATTENTION_CHUNK / 16)
ATTENTION_INLINE void weigh_rows(const struct attention_pass *pass, const struct attention_run *run,
	uint32_t r, const uint32_t some, const uint32_t n, struct kv_fetch *fetch)
{
	const uint32_t row = run->row + r;
	float *most = pass->job->part.most + row, *sum = pass->job->part.sum + row;
	float *p = pass->scores + (size_t)row * SCORES_STRIDE + run->first, less[16];
	struct v16 each[WEIGH_ROWS], old = load_some(most, some), now, factor;
	struct fetch_lines lines = kv_fetch(fetch, p, WEIGH_STEPS);

#pragma GCC unroll 8
	for (uint32_t h = 0; h < some; h++, p += SCORES_STRIDE) {
		if (run->n < n)
			fill_up(p, run->n, n);
		each[h] = v16_load(p);
		for (uint32_t i = 16; i < n; i += 16)
			each[h] = v16_max(each[h], v16_load(p + i));
	}
	now = v16_max(old, fold_rows(each, some, false));
	/* Reading single lanes is fast after a store of the whole vector, and slow after a store of
	 * some lanes. */
	v16_store(less, now);
	factor = v16_exp(v16_sub(old, now));
	v16_store_n(pass->factor + r, factor, some);
	store_some(most, now, some);
	p -= (size_t)some * SCORES_STRIDE;
#pragma GCC unroll 8
	for (uint32_t h = 0; h < some; h++, p += SCORES_STRIDE) {
		const struct v16 top = v16_set1(less[h]);

		each[h] = v16_set1(0);
		for (uint32_t i = 0; i < n; i += 16) {
			struct v16 e = v16_exp(v16_sub(v16_load(p + i), top));

			fetch_line(&lines);
			v16_store(p + i, e);
			each[h] = v16_add(each[h], e);
		}
	}
	store_some(sum, v16_fma(load_some(sum, some), factor, fold_rows(each, some, true)), some);
}

static __attribute__((noinline)) void weigh(
	const struct attention_pass *pass, const struct attention_run *run, struct kv_fetch *fetch)
{
	const uint32_t n = (uint32_t)round_16(run->n);
	uint32_t r = 0, left = run->rows;
	struct kv_fetch none = {0};

	/* Most chunks of a long context. Without inner loops the vectors of all rows are in flight
	 * at once, and memory is still being read. */
	fetch->step = fetch->n ? WEIGH_STEPS * CACHE_LINE / fetch->length : 0;
	for (; left >= WEIGH_ROWS && n == ATTENTION_CHUNK; left -= WEIGH_ROWS, r += WEIGH_ROWS)
		weigh_rows(pass, run, r, WEIGH_ROWS, ATTENTION_CHUNK, fetch);
	for (; left >= WEIGH_ROWS; left -= WEIGH_ROWS, r += WEIGH_ROWS)
		weigh_rows(pass, run, r, WEIGH_ROWS, n, &none);
	for (; left >= 4; left -= 4, r += 4)
		weigh_rows(pass, run, r, 4, n, &none);
	for (; left; left--, r++)
		weigh_rows(pass, run, r, 1, n, &none);
}
