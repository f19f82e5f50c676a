/*
 * Attention (kernels.h says in which order): included after vec_*.h and template_elementwise.h.
 *
 * A chunk is two small matrix products, of queries with keys and of weights with values, and both are limited by the
 * multiply-adds when many heads or tokens share a KV head, by memory otherwise. So the keys are used dimension by
 * dimension (template_keys.h), so that a lane is a cell and no sum goes across lanes; sums are kept in registers by tiles of V16_TILE, of
 * several rows (a row is one head of one token) and several cells or values; and what one product reads of memory is
 * fetched while the other computes. For many rows the keys and values of a chunk are widened to float32 once.
 */
#pragma once

#include "kernels/cpu/template_keys.h"

#include <assert.h>

/* Rows of a tile of scores: what is widened for one serves them all. */
#define SCORE_ROWS (V16_TILE == 16 ? 8u : 2u)
/* The same of keys of blocks, and how many sums such a tile has. */
#define Q8_ROWS (V16_TILE == 16 ? 4u : 2u)
#define Q8_TILE (V16_TILE == 16 ? 8u : 2u)
/* From so many rows on the values of a chunk, and its keys, are widened for all of them. */
#define ATTENTION_WIDE_ROWS 17
#define ATTENTION_WIDE_KEYS (V16_TILE == 16 ? 17u : 3u)
/* Values of the keys, and cells of the values, that a tile takes between two fetches. */
enum { FETCH_STEPS = 4 };
enum { Q8_FLOATS = sizeof(struct q8_block) / sizeof(float) };
/* Scores of a row: a chunk's, and what is filled up behind them. */
#define SCORES_STRIDE (ATTENTION_CHUNK + 16)

/* A view's first n vectors, of `length` bytes each, which will be read soon: `step` of them at a time, from `next` on. */
struct kv_fetch {
	struct kv_view view;
	uint32_t n, length, next, step;
};

struct attention_pass {
	const struct attention_job *job;
	float *q; /* [rows][k_dim] */
	struct q8_block *q8; /* [rows][key_blocks(k_dim)], where keys are of such blocks */
	float *scores; /* [rows][SCORES_STRIDE] by position in the chunk, then weights */
	float *factor; /* [rows] the chunk's maxima, then what the sums before it are scaled by */
	float *keys; /* a chunk's where they are copied: put_keys, put_q8_keys */
	float *values; /* a chunk's, when wide: [ATTENTION_CHUNK][v_dim] */
	bool wide;
};

/* Rows that attend to the same `n` cells of a chunk, those from its `first` on. */
struct attention_run {
	uint32_t row, rows, first, n;
};

static size_t round_16(size_t n)
{
	return (n + 15) / 16 * 16;
}

/* Of a copy of a chunk's keys, of either form. */
static size_t keys_floats(uint32_t k_dim)
{
	size_t plain = (size_t)k_dim * ATTENTION_CHUNK;
	size_t blocks =
		(size_t)key_blocks(k_dim) * ATTENTION_CHUNK * KV_BLOCK_BYTES / sizeof(float);

	return plain > blocks ? plain : blocks;
}

static size_t op_attention_scratch(uint32_t rows, uint32_t k_dim, uint32_t v_dim)
{
	size_t wide = rows >= ATTENTION_WIDE_ROWS ? ATTENTION_CHUNK : 0;

	return rows * (k_dim + SCORES_STRIDE + key_blocks(k_dim) * Q8_FLOATS) + round_16(rows) +
	       keys_floats(k_dim) + wide * v_dim;
}

static inline void kv_fetch(struct kv_fetch *fetch)
{
	for (uint32_t i = fetch->step; i && fetch->next < fetch->n; i--) {
		const uint8_t *p = kv_at(&fetch->view, fetch->next++);

		for (uint32_t b = 0; b < fetch->length; b += 64)
			__builtin_prefetch(p + b);
	}
}

/* All of it in `calls` calls. */
static inline void kv_fetch_in(struct kv_fetch *fetch, uint32_t calls)
{
	fetch->step = (fetch->n + calls - 1) / calls;
}

/* scores of H rows and V times 16 cells, each of turned whole blocks: a block is an exact sum of integers. */
ATTENTION_INLINE void score_q8_tile(const struct attention_pass *pass, const uint8_t *const *turned,
	size_t row, const uint32_t H, float *scores, const uint32_t V, struct kv_fetch *fetch)
{
	const uint32_t n_blocks = key_blocks(pass->job->k_dim);
	const struct q8_block *q = pass->q8 + row * n_blocks;
	const struct v16 scale = v16_set1(pass->job->scale);
	struct v16 sum[Q8_TILE];

	for (uint32_t s = 0; s < Q8_TILE; s++)
		sum[s] = v16_set1(0);
	for (uint32_t b = 0; b < n_blocks; b++, q++) {
		const size_t at = (size_t)b * KV_TURN * KV_BLOCK_BYTES;
		struct i16 dot[Q8_TILE];

		kv_fetch(fetch);
		for (uint32_t h = 0; h < H; h++)
			for (uint32_t v = 0; v < V; v++)
				dot[h * V + v] = i16_dot_begin(&q[(size_t)h * n_blocks]);
		for (uint32_t i = 0; i < Q8_BLOCK; i += 4)
			for (uint32_t v = 0; v < V; v++) {
				struct i8x64 k = i8x64_load(
					turned[v] + at + KV_TURN * (sizeof(uint16_t) + i));

				for (uint32_t h = 0; h < H; h++)
					dot[h * V + v] = i16_dot(
						dot[h * V + v], k, q[(size_t)h * n_blocks].q + i);
			}
		for (uint32_t v = 0; v < V; v++) {
			struct v16 d =
				v16_load_f16((const uint16_t *)(const void *)(turned[v] + at));

			for (uint32_t h = 0; h < H; h++)
				sum[h * V + v] =
					v16_fma(v16_mul(d, v16_set1(q[(size_t)h * n_blocks].d)),
						v16_of_i16(dot[h * V + v]), sum[h * V + v]);
		}
	}
	for (uint32_t h = 0; h < H; h++)
		for (uint32_t v = 0; v < V; v++)
			v16_store(scores + h * SCORES_STRIDE + (size_t)KV_TURN * v,
				v16_mul(sum[h * V + v], scale));
}

ATTENTION_INLINE void score_q8_rows(const struct attention_pass *pass,
	const struct chunk_keys *keys, const struct attention_run *run, uint32_t row,
	const uint32_t H, struct kv_fetch *fetch)
{
	const uint32_t V = Q8_TILE / H < CHUNK_TURNS ? Q8_TILE / H : CHUNK_TURNS;
	const uint32_t end = (run->first + run->n + KV_TURN - 1) / KV_TURN;
	float *scores = pass->scores + (size_t)row * SCORES_STRIDE;
	uint32_t g = run->first / KV_TURN;

	for (; g + V <= end; g += V)
		score_q8_tile(pass, keys->turned + g, row, H, scores + g * KV_TURN, V, fetch);
	for (; g < end; g++)
		score_q8_tile(pass, keys->turned + g, row, H, scores + g * KV_TURN, 1, fetch);
}

static __attribute__((noinline)) void scores_q8(const struct attention_pass *pass,
	const struct chunk_keys *keys, const struct attention_run *run, struct kv_fetch *fetch)
{
	const uint32_t tiles =
		(run->rows + Q8_ROWS - 1) / Q8_ROWS * CHUNK_TURNS * Q8_ROWS / Q8_TILE;
	uint32_t row = run->row, left = run->rows;

	kv_fetch_in(fetch, tiles * key_blocks(pass->job->k_dim));
	for (; left >= Q8_ROWS; left -= Q8_ROWS, row += Q8_ROWS)
		score_q8_rows(pass, keys, run, row, Q8_ROWS, fetch);
	for (; left; left--, row++)
		score_q8_rows(pass, keys, run, row, 1, fetch);
}

/* scores[r][16 * g..] of H rows and V times 16 cells, those of keys->turned[g] and on. */
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
		const size_t end = d + FETCH_STEPS < k_dim ? d + FETCH_STEPS : k_dim;

		kv_fetch(fetch);
		for (; d < end; d++, q++) {
			struct v16 k[V16_TILE];

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

/* out[r][e] = fma(p[r][i], v[i][e], out[r][e]) for the cells i in order, of H rows and the 16 * D values e from d on, or
 * the `some` < 16 last ones (D == 1). */
ATTENTION_INLINE void value_tile(enum kv_type type, const struct attention_pass *pass,
	const struct kv_view *values, const struct attention_run *run, size_t row, const uint32_t H,
	size_t d, const uint32_t D, uint32_t some, struct kv_fetch *fetch)
{
	const size_t v_dim = pass->job->v_dim;
	const float *p = pass->scores + row * SCORES_STRIDE + run->first;
	float *out = pass->job->part.out + row * v_dim + d;
	const uint32_t n = run->n;
	struct v16 sum[V16_TILE];

	for (uint32_t h = 0; h < H; h++)
		for (uint32_t e = 0; e < D; e++)
			sum[h * D + e] = some ? v16_load_n(out + h * v_dim, some)
					      : v16_load(out + h * v_dim + (size_t)16 * e);
	for (uint32_t i = 0; i < n;) {
		const uint32_t end = n - i < FETCH_STEPS ? n : i + FETCH_STEPS;

		kv_fetch(fetch);
		for (; i < end; i++, p++) {
			const uint8_t *value = kv_at(values, i);
			struct v16 v[V16_TILE];

			for (uint32_t e = 0; e < D; e++)
				v[e] = some ? kv_n(type, value, d, some)
					    : kv_16(type, value, d + 16 * e);
			for (uint32_t h = 0; h < H; h++) {
				struct v16 x = v16_set1(p[h * SCORES_STRIDE]);

				for (uint32_t e = 0; e < D; e++)
					sum[h * D + e] = v16_fma(x, v[e], sum[h * D + e]);
			}
		}
	}
	for (uint32_t h = 0; h < H; h++)
		for (uint32_t e = 0; e < D; e++) {
			if (some)
				v16_store_n(out + h * v_dim, sum[h * D + e], some);
			else
				v16_store(out + h * v_dim + (size_t)16 * e, sum[h * D + e]);
		}
}

/* All values of H rows: the widest tiles as far as they fit, narrower ones behind. */
ATTENTION_INLINE void value_rows(enum kv_type type, const struct attention_pass *pass,
	const struct kv_view *values, const struct attention_run *run, uint32_t row,
	const uint32_t H, struct kv_fetch *fetch)
{
	const uint32_t D = V16_TILE / H < 8 ? V16_TILE / H : 8, v_dim = pass->job->v_dim;
	uint32_t d = 0;

	for (; d + 16 * D <= v_dim; d += 16 * D)
		value_tile(type, pass, values, run, row, H, d, D, 0, fetch);
	if (D > 2)
		for (; d + 32 <= v_dim; d += 32)
			value_tile(type, pass, values, run, row, H, d, 2, 0, fetch);
	for (; d + 16 <= v_dim; d += 16)
		value_tile(type, pass, values, run, row, H, d, 1, 0, fetch);
	if (d < v_dim)
		value_tile(type, pass, values, run, row, H, d, 1, v_dim - d, fetch);
}

/* All scores of H rows, of whole vectors of cells: what lies around the run's is not used. */
ATTENTION_INLINE void score_rows(enum kv_type type, const struct attention_pass *pass,
	const struct chunk_keys *keys, const struct attention_run *run, uint32_t row,
	const uint32_t H, struct kv_fetch *fetch)
{
	const uint32_t V = V16_TILE / H < CHUNK_TURNS ? V16_TILE / H : CHUNK_TURNS;
	const uint32_t end = (run->first + run->n + KV_TURN - 1) / KV_TURN;
	float *scores = pass->scores + (size_t)row * SCORES_STRIDE;
	uint32_t g = run->first / KV_TURN;

	for (; g + V <= end; g += V)
		score_tile(type, pass, keys->turned + g, row, H, scores + g * KV_TURN, V, fetch);
	for (; g < end; g++)
		score_tile(type, pass, keys->turned + g, row, H, scores + g * KV_TURN, 1, fetch);
}

ATTENTION_INLINE void scores_of(enum kv_type type, const struct attention_pass *pass,
	const struct chunk_keys *keys, const struct attention_run *run, struct kv_fetch *fetch)
{
	const uint32_t tiles =
		(run->rows + SCORE_ROWS - 1) / SCORE_ROWS * CHUNK_TURNS / (V16_TILE / SCORE_ROWS);
	uint32_t row = run->row, left = run->rows;

	kv_fetch_in(fetch, tiles * ((pass->job->k_dim + FETCH_STEPS - 1) / FETCH_STEPS));
	for (; left >= SCORE_ROWS; left -= SCORE_ROWS, row += SCORE_ROWS)
		score_rows(type, pass, keys, run, row, SCORE_ROWS, fetch);
	for (; left >= 4 && V16_TILE == 16; left -= 4, row += 4)
		score_rows(type, pass, keys, run, row, 4, fetch);
	for (; left; left--, row++)
		score_rows(type, pass, keys, run, row, 1, fetch);
}

ATTENTION_INLINE void values_of(enum kv_type type, const struct attention_pass *pass,
	const struct kv_view *values, const struct attention_run *run, struct kv_fetch *fetch)
{
	const uint32_t tiles = run->rows * ((pass->job->v_dim + 15) / 16) / V16_TILE;
	uint32_t row = run->row, left = run->rows;

	kv_fetch_in(fetch, (tiles ? tiles : 1) * ((run->n + FETCH_STEPS - 1) / FETCH_STEPS));
	for (; left >= 8 && V16_TILE == 16; left -= 8, row += 8)
		value_rows(type, pass, values, run, row, 8, fetch);
	for (; left >= 4 && V16_TILE == 16; left -= 4, row += 4)
		value_rows(type, pass, values, run, row, 4, fetch);
	for (; left >= 2; left -= 2, row += 2)
		value_rows(type, pass, values, run, row, 2, fetch);
	if (left)
		value_rows(type, pass, values, run, row, 1, fetch);
}

/* `dim` values of vectors first..last-1, [ATTENTION_CHUNK][dim]. */
ATTENTION_INLINE void widen(enum kv_type type, const struct kv_view *from, uint32_t first,
	uint32_t last, uint32_t dim, float *to)
{
	to += (size_t)first * dim;
	for (uint32_t i = first; i < last; i++, to += dim) {
		const uint8_t *p = kv_at(from, i);
		uint32_t d = 0;

		for (; d + 16 <= dim; d += 16)
			v16_store(to + d, kv_16(type, p, d));
		if (d < dim)
			v16_store_n(to + d, kv_n(type, p, d, dim - d), dim - d);
	}
}

/* Each type's loops are functions of their own: all in one would be large and optimised badly. */
#define ATTENTION_TYPED(name, type)                                                            \
	static __attribute__((noinline)) void values_##name(const struct attention_pass *pass, \
		const struct kv_view *values, const struct attention_run *run,                 \
		struct kv_fetch *fetch)                                                        \
	{                                                                                      \
		values_of(type, pass, values, run, fetch);                                     \
	}                                                                                      \
	static __attribute__((noinline)) void widen_##name(const struct kv_view *from,         \
		uint32_t first, uint32_t last, uint32_t dim, float *to)                        \
	{                                                                                      \
		widen(type, from, first, last, dim, to);                                       \
	}

#define ATTENTION_TYPED_KEYS(name, type)                                                           \
	static __attribute__((noinline)) void keys_##name(bool turned, const struct kv_view *keys, \
		uint32_t first, uint32_t last, uint32_t k_dim, float *out)                         \
	{                                                                                          \
		put_keys(type, turned, keys, first, last, k_dim, out);                             \
	}                                                                                          \
	static __attribute__((noinline)) void scores_##name(const struct attention_pass *pass,     \
		const struct chunk_keys *keys, const struct attention_run *run,                    \
		struct kv_fetch *fetch)                                                            \
	{                                                                                          \
		scores_of(type, pass, keys, run, fetch);                                           \
	}

ATTENTION_TYPED(f32, KV_F32)
ATTENTION_TYPED(f16, KV_F16)
ATTENTION_TYPED(q8, KV_Q8_0)
ATTENTION_TYPED_KEYS(f32, KV_F32)
ATTENTION_TYPED_KEYS(f16, KV_F16)

static __attribute__((noinline)) void keys_q8(bool turned, const struct kv_view *keys,
	uint32_t first, uint32_t last, uint32_t k_dim, float *out)
{
	put_q8_keys(turned, keys, first, last, k_dim, (uint8_t *)out);
}

static const struct attention_typed {
	void (*keys)(bool turned, const struct kv_view *keys, uint32_t first, uint32_t last,
		uint32_t k_dim, float *out);
	void (*scores)(const struct attention_pass *pass, const struct chunk_keys *keys,
		const struct attention_run *run, struct kv_fetch *fetch);
	void (*values)(const struct attention_pass *pass, const struct kv_view *values,
		const struct attention_run *run, struct kv_fetch *fetch);
	void (*widen)(
		const struct kv_view *from, uint32_t first, uint32_t last, uint32_t dim, float *to);
} attention_typed[] = {
	[KV_F32] = {keys_f32, scores_f32, values_f32, widen_f32},
	[KV_F16] = {keys_f16, scores_f16, values_f16, widen_f16},
	[KV_Q8_0] = {keys_q8, scores_q8, values_q8, widen_q8},
};

/* From 16 rows' vectors to one vector with a lane for each row: its greatest, or its sum as LANES folds. */
static inline struct v16 greatest_of_each(struct v16 *a)
{
	v16_transpose(a);
	for (uint32_t half = 8; half; half /= 2)
		for (uint32_t lane = 0; lane < half; lane++)
			a[lane] = v16_max(a[lane], a[lane + half]);
	return a[0];
}

static inline struct v16 sum_of_each(struct v16 *a)
{
	v16_transpose(a);
	for (uint32_t half = 8; half; half /= 2)
		for (uint32_t lane = 0; lane < half; lane++)
			a[lane] = v16_add(a[lane], a[lane + half]);
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

/* From scores to weights, of some <= 16 rows from the run's row r on: the running maxima and sums, and the factors of the
 * sums before. The scores are filled up to whole vectors with -inf, whose weight is +0 and changes no sum. */
static inline void weigh_rows(const struct attention_pass *pass, const struct attention_run *run,
	uint32_t r, uint32_t some)
{
	const uint32_t n = (uint32_t)round_16(run->n), row = run->row + r;
	float *most = pass->job->part.most + row, *sum = pass->job->part.sum + row;
	float *p = pass->scores + (size_t)row * SCORES_STRIDE + run->first, less[16];
	struct v16 each[16], old = load_some(most, some), now, factor;

	for (uint32_t h = 0; h < 16; h++)
		each[h] = v16_set1(-__builtin_inff());
	for (uint32_t h = 0; h < some; h++, p += SCORES_STRIDE) {
		for (uint32_t i = run->n; i < n; i++)
			p[i] = -__builtin_inff();
		for (uint32_t i = 0; i < n; i += 16)
			each[h] = v16_max(each[h], v16_load(p + i));
	}
	now = v16_max(old, greatest_of_each(each));
	factor = v16_exp(v16_sub(old, now));
	v16_store(pass->factor + r, factor);
	store_some(most, now, some);
	/* A vector's lanes are read at once from a whole store, from one of some lanes late. */
	v16_store(less, now);
	p -= (size_t)some * SCORES_STRIDE;
	for (uint32_t h = 0; h < 16; h++)
		each[h] = v16_set1(0);
	for (uint32_t h = 0; h < some; h++, p += SCORES_STRIDE) {
		const struct v16 top = v16_set1(less[h]);

		for (uint32_t i = 0; i < n; i += 16) {
			struct v16 e = v16_exp(v16_sub(v16_load(p + i), top));

			v16_store(p + i, e);
			each[h] = v16_add(each[h], e);
		}
	}
	store_some(sum, v16_fma(load_some(sum, some), factor, sum_of_each(each)), some);
}

static __attribute__((noinline)) void weigh(
	const struct attention_pass *pass, const struct attention_run *run)
{
	for (uint32_t r = 0; r < run->rows; r += 16)
		weigh_rows(pass, run, r, run->rows - r < 16 ? run->rows - r : 16);
}

/* What a chunk's keys and values are read from, and what is fetched meanwhile. */
struct attention_chunk {
	struct kv_view keys, values;
	struct chunk_keys turned;
	enum kv_type value_type; /* of `values` */
	struct kv_fetch with_scores, with_values;
};

static void attention_run(const struct attention_pass *pass, const struct attention_chunk *chunk,
	const struct attention_run *run, bool fetch)
{
	const uint32_t v_dim = pass->job->v_dim;
	struct kv_view values = chunk->values;
	struct kv_fetch none = {0}, with_scores = fetch ? chunk->with_scores : none,
			with_values = fetch ? chunk->with_values : none;

	values.cells += run->first;
	attention_typed[chunk->turned.type].scores(pass, &chunk->turned, run, &with_scores);
	weigh(pass, run);
	for (uint32_t r = 0; r < run->rows; r++)
		/* exp(0) is 1, and times 1 changes nothing. */
		if (pass->factor[r] != 1.0f)
			scale_by(pass->job->part.out + (size_t)(run->row + r) * v_dim, v_dim,
				pass->factor[r]);
	attention_typed[chunk->value_type].values(pass, &values, run, &with_values);
}

/* The cells of the chunk at `from` that token t attends to. */
static struct attention_run run_of(const struct attention_job *job, uint32_t t, uint32_t from)
{
	const struct attention_query *query = &job->queries[t];
	uint32_t end = from + ATTENTION_CHUNK, first, last;

	first = query->first > from ? query->first : from;
	last = query->last < end ? query->last : end;
	return (struct attention_run){
		t * job->n_heads, job->n_heads, first - from, last > first ? last - first : 0};
}

/* Values first..last-1 of the chunk in float32, in place of the stored ones. */
static void widen_values(const struct attention_pass *pass, struct attention_chunk *chunk,
	uint32_t first, uint32_t last)
{
	static const uint32_t ascending[ATTENTION_CHUNK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
		12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
		33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53,
		54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
	const uint32_t v_dim = pass->job->v_dim;

	attention_typed[chunk->value_type].widen(&chunk->values, first, last, v_dim, pass->values);
	chunk->values = (struct kv_view){(uint8_t *)pass->values, v_dim * sizeof(float), ascending};
	chunk->value_type = KV_F32;
}

/* The chunk's keys where they are, if they can be used there; else a copy. */
static void take_keys(const struct attention_pass *pass, struct attention_chunk *chunk,
	uint32_t first, uint32_t last)
{
	const struct attention_job *job = pass->job;
	const bool q8 = job->kv_type == KV_Q8_0;
	const size_t bytes = q8 ? (size_t)key_blocks(job->k_dim) * KV_TURN * KV_BLOCK_BYTES
				: job->k_dim * KV_TURN * sizeof(float);
	bool there = job->k_turned && (q8 ? job->k_dim % Q8_BLOCK == 0
					  : job->n_tokens * job->n_heads < ATTENTION_WIDE_KEYS);

	chunk->turned.type = job->kv_type;
	for (uint32_t i = first; there && i < last; i = (i / KV_TURN + 1) * KV_TURN) {
		uint32_t end = (i / KV_TURN + 1) * KV_TURN;

		there = in_order(&chunk->keys, i, end < last ? end : last);
		chunk->turned.turned[i / KV_TURN] =
			kv_turned_at(&chunk->keys, chunk->keys.cells[i]);
	}
	if (there)
		return;
	attention_typed[job->kv_type].keys(
		job->k_turned, &chunk->keys, first, last, job->k_dim, pass->keys);
	chunk->turned.type = q8 ? KV_Q8_0 : KV_F32;
	for (uint32_t i = 0; i < CHUNK_TURNS; i++)
		chunk->turned.turned[i] = (const uint8_t *)pass->keys + i * bytes;
}

/* Memory is read while something is computed: the values while the keys of their chunk are used and the next keys while
 * the values are; when a chunk is widened first, the next chunk in its place. */
static void plan_fetches(const struct attention_pass *pass, struct attention_chunk *chunk,
	uint32_t from, uint32_t first, uint32_t last)
{
	const struct attention_job *job = pass->job;
	uint32_t next = from + ATTENTION_CHUNK, all = job->n_cells + job->n_ahead;
	uint32_t left = all > next ? all - next : 0;
	struct kv_fetch keys = {.view = chunk->keys,
		.n = left < ATTENTION_CHUNK ? left : ATTENTION_CHUNK,
		.length = (uint32_t)kv_vector_bytes(job->kv_type, job->k_dim)};
	struct kv_fetch values = keys;

	keys.view.cells += ATTENTION_CHUNK;
	values.view = chunk->values;
	values.length = (uint32_t)kv_vector_bytes(job->kv_type, job->v_dim);
	if (pass->wide) {
		values.view.cells += ATTENTION_CHUNK;
		values.n = job->v == job->k ? 0 : keys.n;
		chunk->with_scores = keys;
		chunk->with_values = values;
	} else {
		values.view.cells += first;
		values.n = job->v == job->k ? 0 : last - first;
		chunk->with_scores = values;
		chunk->with_values = keys;
	}
}

static void attention_chunk(const struct attention_pass *pass, uint32_t from)
{
	const struct attention_job *job = pass->job;
	struct attention_chunk chunk = {
		.keys = {job->k, job->k_cell_bytes, job->cells + from},
		.values = {job->v, job->v_cell_bytes, job->cells + from},
		.value_type = job->kv_type,
	};
	uint32_t first = ATTENTION_CHUNK, last = 0;
	bool fetch = true;

	for (uint32_t t = 0; t < job->n_tokens; t++) {
		struct attention_run run = run_of(job, t, from);

		if (run.n == 0)
			continue;
		first = run.first < first ? run.first : first;
		last = run.first + run.n > last ? run.first + run.n : last;
	}
	if (first >= last)
		return;
	plan_fetches(pass, &chunk, from, first, last);
	take_keys(pass, &chunk, first, last);
	if (pass->wide)
		widen_values(pass, &chunk, first, last);
	for (uint32_t t = 0; t < job->n_tokens;) {
		struct attention_run run = run_of(job, t, from);

		while (++t < job->n_tokens) {
			struct attention_run more = run_of(job, t, from);

			if (more.first != run.first || more.n != run.n)
				break;
			run.rows += more.rows;
		}
		if (run.n) {
			attention_run(pass, &chunk, &run, fetch);
			fetch = false;
		}
	}
}

/* A query head in the form that keys of blocks are multiplied with. */
static void quantise_query(const float *q, uint32_t k_dim, struct q8_block *out)
{
	for (uint32_t d = 0; d < k_dim; d += Q8_BLOCK, out++) {
		float padded[Q8_BLOCK] = {0};

		memcpy(padded, q + d, (k_dim - d < Q8_BLOCK ? k_dim - d : Q8_BLOCK) * sizeof(*q));
		op_quantise_q8(padded, Q8_BLOCK, out);
	}
}

static void op_attention(const struct attention_job *job)
{
	const uint32_t rows = job->n_tokens * job->n_heads;
	const size_t k_dim = job->k_dim;
	struct attention_pass pass = {.job = job, .wide = rows >= ATTENTION_WIDE_ROWS};

	assert(rows > 0 && rows <= ATTENTION_ROWS && job->n_cells <= ATTENTION_SPLIT &&
		job->part.out_stride == job->v_dim);
	pass.q = job->scratch;
	pass.scores = pass.q + rows * k_dim;
	pass.factor = pass.scores + (size_t)rows * SCORES_STRIDE;
	pass.keys = pass.factor + round_16(rows);
	pass.q8 = (struct q8_block *)(void *)(pass.keys + keys_floats(job->k_dim));
	pass.values = (float *)(void *)(pass.q8 + (size_t)rows * key_blocks(job->k_dim));
	for (uint32_t r = 0; r < rows; r++) {
		memcpy(pass.q + r * k_dim,
			job->queries[r / job->n_heads].q + r % job->n_heads * job->q_stride,
			k_dim * sizeof(*pass.q));
		if (job->kv_type == KV_Q8_0)
			quantise_query(pass.q + r * k_dim, job->k_dim,
				pass.q8 + (size_t)r * key_blocks(job->k_dim));
		job->part.most[r] = -__builtin_inff();
		job->part.sum[r] = 0;
	}
	memset(job->part.out, 0, (size_t)rows * job->v_dim * sizeof(*job->part.out));
	for (uint32_t from = 0; from < job->n_cells; from += ATTENTION_CHUNK)
		attention_chunk(&pass, from);
}

/* out[d] = fma(more[d], b, out[d] * a) */
static inline void join_row(float *out, float a, const float *more, float b, uint32_t v_dim)
{
	const struct v16 va = v16_set1(a), vb = v16_set1(b);
	uint32_t d = 0;

	for (; d + 16 <= v_dim; d += 16)
		v16_store(out + d, v16_fma(v16_load(more + d), vb, v16_mul(v16_load(out + d), va)));
	if (d < v_dim)
		v16_store_n(out + d,
			v16_fma(v16_load_n(more + d, v_dim - d), vb,
				v16_mul(v16_load_n(out + d, v_dim - d), va)),
			v_dim - d);
}

static void op_attention_join(const struct attention_state *into,
	const struct attention_state *part, uint32_t rows, uint32_t v_dim)
{
	for (uint32_t r = 0; r < rows; r += 16) {
		const uint32_t some = rows - r < 16 ? rows - r : 16;
		struct v16 old = load_some(into->most + r, some);
		struct v16 more = load_some(part->most + r, some), most = v16_max(old, more);
		struct v16 a = v16_exp(v16_sub(old, most)), b = v16_exp(v16_sub(more, most));
		float of_old[16], of_more[16];

		store_some(into->most + r, most, some);
		store_some(into->sum + r,
			v16_fma(load_some(part->sum + r, some), b,
				v16_mul(load_some(into->sum + r, some), a)),
			some);
		v16_store(of_old, a);
		v16_store(of_more, b);
		for (uint32_t h = 0; h < some; h++)
			join_row(into->out + (r + h) * into->out_stride, of_old[h],
				part->out + (r + h) * part->out_stride, of_more[h], v_dim);
	}
}

static void op_attention_finish(const struct attention_state *state, uint32_t rows, uint32_t v_dim)
{
	for (uint32_t r = 0; r < rows; r++)
		scale_by(state->out + r * state->out_stride, v_dim, 1.0f / state->sum[r]);
}
