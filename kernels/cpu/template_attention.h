/*
 * Attention (numerics.md defines the order and names the papers). Include after vec_*.h and
 * template_elementwise.h.
 *
 * A chunk is two small matrix products: queries with keys, and weights with values. When many heads
 * or tokens share a KV head, both are limited by multiply-adds; otherwise by memory. So keys are
 * used dimension by dimension (template_keys.h, template_scores.h): a lane is a cell, and no sum
 * crosses lanes. Sums are kept in registers in tiles of V16_TILE, of several rows (a row is one
 * head of one token) and several cells or values. Memory that one product reads is prefetched while
 * the other computes. For many rows, a chunk's plain keys and values are widened to float32 once.
 * Those in blocks are multiplied as integers (template_weights.h).
 */
#pragma once

#include "kernels/cpu/template_weights.h"

#include <assert.h>

/* The number of rows from which a chunk's values, and its keys, are widened once for all rows. */
#define ATTENTION_WIDE_ROWS 17
#define ATTENTION_WIDE_KEYS (V16_TILE == 16 ? 17u : 3u)

/* Size of a copy of a chunk's vectors, in any form. */
static size_t copy_floats(uint32_t dim)
{
	return (size_t)kv_blocks(dim) * Q8_BLOCK * ATTENTION_CHUNK;
}

static_assert(sizeof(struct q16_block) > sizeof(struct q8_block), "room for both");

/* Offsets of the parts of the scratch memory, in floats; each part is a whole number of vectors. */
struct scratch_parts {
	size_t scores, factor, keys, blocks, values, scales, integers, end;
};

static struct scratch_parts scratch_parts(uint32_t rows, uint32_t k_dim, uint32_t v_dim)
{
	const size_t v_blocks = kv_blocks(v_dim);
	struct scratch_parts p = {.scores = round_16((size_t)rows * k_dim)};

	p.factor = p.scores + (size_t)rows * SCORES_STRIDE;
	p.keys = p.factor + round_16(rows);
	p.blocks = p.keys + copy_floats(k_dim);
	p.values = p.blocks +
		   round_16(rows * kv_blocks(k_dim) * sizeof(struct q16_block) / sizeof(float));
	p.scales = p.values + copy_floats(v_dim);
	p.integers = p.scales + (v_blocks + 1) * ATTENTION_CHUNK;
	p.end = p.integers + WEIGH_ROWS * v_blocks * ATTENTION_CHUNK / 2;
	return p;
}

static size_t op_attention_scratch(uint32_t rows, uint32_t k_dim, uint32_t v_dim)
{
	return scratch_parts(rows, k_dim, v_dim).end;
}

/* out[r][e] = out[r][e] * factor[r], then out[r][e] = fma(p[r][i], v[i][e], out[r][e]) for the
 * cells i in order. For H rows and the 16 * D values e from d on; with D == 1 perhaps only the
 * `some` < 16 last ones. */
ATTENTION_INLINE void value_tile(enum kv_type type, const struct attention_pass *pass,
	const struct kv_view *values, const struct attention_run *run, size_t row, const uint32_t H,
	size_t d, const uint32_t D, uint32_t some, struct kv_fetch *fetch)
{
	const size_t v_dim = pass->job->v_dim;
	const float *p = pass->scores + row * SCORES_STRIDE + run->first;
	float *out = pass->job->part.out + row * v_dim + d;
	const uint32_t n = run->n;
	struct v16 sum[V16_TILE];

	for (uint32_t h = 0; h < H; h++) {
		const struct v16 factor = v16_set1(pass->factor[row - run->row + h]);

		for (uint32_t e = 0; e < D; e++)
			sum[h * D + e] = v16_mul(some ? v16_load_n(out + h * v_dim, some)
						      : v16_load(out + h * v_dim + (size_t)16 * e),
				factor);
	}
	for (uint32_t i = 0; i < n;) {
		const uint32_t end = n - i < FETCH_STEPS(H) ? n : i + FETCH_STEPS(H);
		struct fetch_lines lines = kv_fetch(fetch, p, FETCH_STEPS(H));

		for (; i < end; i++, p++) {
			const uint8_t *value = kv_at(values, i);
			struct v16 v[V16_TILE];

			fetch_line(&lines);
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

/* All values of H rows: with the widest tiles as far as they fit, then with narrower ones. */
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

ATTENTION_INLINE void values_of(enum kv_type type, const struct attention_pass *pass,
	const struct kv_view *values, const struct attention_run *run, struct kv_fetch *fetch)
{
	const uint32_t tiles = run->rows * ((pass->job->v_dim + 15) / 16) / V16_TILE;
	const uint32_t steps = FETCH_STEPS(run->rows);
	uint32_t row = run->row, left = run->rows;

	kv_fetch_in(fetch, (tiles ? tiles : 1) * ((run->n + steps - 1) / steps));
	for (; left >= 8 && V16_TILE == 16; left -= 8, row += 8)
		value_rows(type, pass, values, run, row, 8, fetch);
	for (; left >= 4 && V16_TILE == 16; left -= 4, row += 4)
		value_rows(type, pass, values, run, row, 4, fetch);
	for (; left >= 2; left -= 2, row += 2)
		value_rows(type, pass, values, run, row, 2, fetch);
	if (left)
		value_rows(type, pass, values, run, row, 1, fetch);
}

/* Widens `dim` values of vectors first..last-1 to [ATTENTION_CHUNK][dim]. */
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

/* The loops of each type are functions of their own: one function for all would be large and badly
 * optimised. */
#define ATTENTION_APART static __attribute__((noinline))
#define ATTENTION_SCORES(name, type)                                             \
	ATTENTION_APART void scores_##name(const struct attention_pass *pass,    \
		const struct chunk_turns *keys, const struct attention_run *run, \
		struct kv_fetch *fetch)                                          \
	{                                                                        \
		scores_of(type, pass, keys, run, fetch);                         \
	}
#define ATTENTION_PLAIN(name, type)                                                               \
	ATTENTION_SCORES(name, type)                                                              \
	ATTENTION_APART void values_##name(const struct attention_pass *pass,                     \
		const struct kv_view *values, const struct attention_run *run,                    \
		struct kv_fetch *fetch)                                                           \
	{                                                                                         \
		values_of(type, pass, values, run, fetch);                                        \
	}                                                                                         \
	ATTENTION_APART void widen_##name(const struct kv_view *from, uint32_t first,             \
		uint32_t last, uint32_t dim, float *to)                                           \
	{                                                                                         \
		widen(type, from, first, last, dim, to);                                          \
	}                                                                                         \
	ATTENTION_APART void keys_##name(bool turned, const struct kv_view *keys, uint32_t first, \
		uint32_t last, uint32_t k_dim, float *out)                                        \
	{                                                                                         \
		put_keys(type, turned, keys, first, last, k_dim, out);                            \
	}
#define ATTENTION_BLOCKS(name, type)                                                              \
	ATTENTION_SCORES(name, type)                                                              \
	ATTENTION_APART void values_##name(const struct attention_pass *pass,                     \
		const struct chunk_turns *values, const struct attention_run *run,                \
		struct kv_fetch *fetch)                                                           \
	{                                                                                         \
		block_values_of(type, pass, values, run, fetch);                                  \
	}                                                                                         \
	ATTENTION_APART void scales_##name(const struct attention_pass *pass,                     \
		const struct chunk_turns *values, uint32_t first, uint32_t last)                  \
	{                                                                                         \
		take_scales(type, pass, values, first, last);                                     \
	}                                                                                         \
	ATTENTION_APART void keys_##name(bool turned, const struct kv_view *keys, uint32_t first, \
		uint32_t last, uint32_t k_dim, float *out)                                        \
	{                                                                                         \
		put_block_keys(type, turned, keys, first, last, k_dim, (uint8_t *)out);           \
	}                                                                                         \
	ATTENTION_APART void pairs_##name(bool paired, const struct kv_view *values,              \
		uint32_t first, uint32_t last, uint32_t v_dim, uint8_t *out)                      \
	{                                                                                         \
		put_block_values(type, paired, values, first, last, v_dim, out);                  \
	}

ATTENTION_PLAIN(f32, KV_F32)
ATTENTION_PLAIN(f16, KV_F16)
ATTENTION_BLOCKS(q8, KV_Q8_0)
ATTENTION_BLOCKS(q16, KV_Q16_0)

static const struct attention_typed {
	void (*keys)(bool turned, const struct kv_view *keys, uint32_t first, uint32_t last,
		uint32_t k_dim, float *out);
	void (*scores)(const struct attention_pass *pass, const struct chunk_turns *keys,
		const struct attention_run *run, struct kv_fetch *fetch);
	/* For plain types. */
	void (*values)(const struct attention_pass *pass, const struct kv_view *values,
		const struct attention_run *run, struct kv_fetch *fetch);
	void (*widen)(
		const struct kv_view *from, uint32_t first, uint32_t last, uint32_t dim, float *to);
	/* For types in blocks. */
	void (*block_values)(const struct attention_pass *pass, const struct chunk_turns *values,
		const struct attention_run *run, struct kv_fetch *fetch);
	void (*scales)(const struct attention_pass *pass, const struct chunk_turns *values,
		uint32_t first, uint32_t last);
	void (*pairs)(bool paired, const struct kv_view *values, uint32_t first, uint32_t last,
		uint32_t v_dim, uint8_t *out);
} attention_typed[] = {
	[KV_F32] = {.keys = keys_f32,
		.scores = scores_f32,
		.values = values_f32,
		.widen = widen_f32},
	[KV_F16] = {.keys = keys_f16,
		.scores = scores_f16,
		.values = values_f16,
		.widen = widen_f16},
	[KV_Q8_0] = {.keys = keys_q8,
		.scores = scores_q8,
		.block_values = values_q8,
		.scales = scales_q8,
		.pairs = pairs_q8},
	[KV_Q16_0] = {.keys = keys_q16,
		.scores = scores_q16,
		.block_values = values_q16,
		.scales = scales_q16,
		.pairs = pairs_q16},
};

/* Where the keys and values of a chunk are read from, and what is prefetched meanwhile. */
struct attention_chunk {
	struct kv_view keys, values;
	struct chunk_turns turned;
	struct chunk_turns paired; /* values of blocks */
	enum kv_type value_type; /* of `values`, for plain types */
	uint32_t first, last; /* positions that any of the tokens attends to */
	struct kv_fetch with_scores, with_values;
};

static void attention_run(const struct attention_pass *pass, const struct attention_chunk *chunk,
	const struct attention_run *run, bool fetch)
{
	struct kv_view values = chunk->values;
	struct kv_fetch none = {0}, with_scores = fetch ? chunk->with_scores : none,
			with_values = fetch ? chunk->with_values : none;
	const bool bound_by_memory = !pass->copied && pass->job->v != pass->job->k;

	values.cells += run->first;
	attention_typed[chunk->turned.type].scores(pass, &chunk->turned, run, &with_scores);
	weigh(pass, run, bound_by_memory ? &with_values : &none);
	if (!kv_in_blocks(pass->job->kv_type)) {
		attention_typed[chunk->value_type].values(pass, &values, run, &with_values);
		return;
	}
	/* Only for the first run, and after its scores: meanwhile the values arrive from memory. */
	if (fetch)
		attention_typed[chunk->paired.type].scales(
			pass, &chunk->paired, chunk->first, chunk->last);
	attention_typed[chunk->paired.type].block_values(pass, &chunk->paired, run, &with_values);
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

/* Replaces the chunk's stored values by float32 copies. */
static void widen_values(const struct attention_pass *pass, struct attention_chunk *chunk)
{
	static const uint32_t ascending[ATTENTION_CHUNK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
		12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
		33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53,
		54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
	const uint32_t v_dim = pass->job->v_dim;

	attention_typed[chunk->value_type].widen(
		&chunk->values, chunk->first, chunk->last, v_dim, pass->values);
	chunk->values = (struct kv_view){(uint8_t *)pass->values, v_dim * sizeof(float), ascending};
	chunk->value_type = KV_F32;
}

/* True when keys, and values in blocks, can be used in place if their cells lie in order: in whole
 * blocks. */
static bool keys_usable(const struct attention_job *job, uint32_t rows)
{
	return job->k_turned && (kv_in_blocks(job->kv_type) ? job->k_dim % Q8_BLOCK == 0
							    : rows < ATTENTION_WIDE_KEYS);
}

static bool pairs_usable(const struct attention_job *job)
{
	return job->v_paired && job->v_dim % Q8_BLOCK == 0;
}

/* Uses the chunk's keys in place if possible, otherwise copies them. */
static void take_keys(const struct attention_pass *pass, struct attention_chunk *chunk)
{
	const struct attention_job *job = pass->job;

	if (keys_usable(job, job->n_tokens * job->n_heads) &&
		turns_there(&chunk->keys, chunk->first, chunk->last, job->kv_type, &chunk->turned))
		return;
	attention_typed[job->kv_type].keys(
		job->k_turned, &chunk->keys, chunk->first, chunk->last, job->k_dim, pass->keys);
	if (kv_in_blocks(job->kv_type))
		turns_from(pass->keys, kv_turn_bytes(job->kv_type, kv_blocks(job->k_dim)),
			job->kv_type, &chunk->turned);
	else
		turns_from(
			pass->keys, job->k_dim * KV_TURN * sizeof(float), KV_F32, &chunk->turned);
}

/* The same for values in blocks. */
static void take_pairs(const struct attention_pass *pass, struct attention_chunk *chunk)
{
	const struct attention_job *job = pass->job;

	if (pairs_usable(job) && turns_there(&chunk->values, chunk->first, chunk->last,
					 job->kv_type, &chunk->paired))
		return;
	attention_typed[job->kv_type].pairs(job->v_paired, &chunk->values, chunk->first,
		chunk->last, job->v_dim, (uint8_t *)pass->values);
	turns_from(pass->values, kv_turn_bytes(job->kv_type, kv_blocks(job->v_dim)), job->kv_type,
		&chunk->paired);
}

/* Plans what is prefetched while something is computed: a chunk's values while its keys are used,
 * and the next keys while the values are. When chunks are copied first, the whole next chunk. */
static void plan_fetches(
	const struct attention_pass *pass, struct attention_chunk *chunk, uint32_t from)
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
	if (pass->copied) {
		values.view.cells += ATTENTION_CHUNK;
		values.n = job->v == job->k ? 0 : keys.n;
		chunk->with_scores = keys;
		chunk->with_values = values;
	} else {
		values.view.cells += chunk->first;
		values.n = job->v == job->k ? 0 : chunk->last - chunk->first;
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
		.first = ATTENTION_CHUNK,
	};
	bool fetch = true;

	for (uint32_t t = 0; t < job->n_tokens; t++) {
		struct attention_run run = run_of(job, t, from);

		if (run.n == 0)
			continue;
		chunk.first = run.first < chunk.first ? run.first : chunk.first;
		chunk.last = run.first + run.n > chunk.last ? run.first + run.n : chunk.last;
	}
	if (chunk.first >= chunk.last)
		return;
	plan_fetches(pass, &chunk, from);
	take_keys(pass, &chunk);
	if (kv_in_blocks(job->kv_type))
		take_pairs(pass, &chunk);
	else if (pass->copied)
		widen_values(pass, &chunk);
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

/* Scales the greatest |x| to KV_Q16_QUERY_MOST. An infinity or NaN only shows in the scale. */
static void quantise_q16(const float *x, struct q16_block *out)
{
	const float amax = float_of_bits(block_amax(x));

	out->d = amax < QUANTISE_LEAST ? 0 : amax / KV_Q16_QUERY_MOST;
	if (amax >= QUANTISE_LEAST && amax < __builtin_inff())
		block_integers(x, KV_Q16_QUERY_MOST / amax, out->q);
	else
		memset(out->q, 0, sizeof(out->q));
}

/* Quantises query row r to the form that keys in blocks are multiplied with. */
static void quantise_query(const struct attention_pass *pass, uint32_t r)
{
	const uint32_t k_dim = pass->job->k_dim, n_blocks = kv_blocks(k_dim);
	const float *q = pass->q + (size_t)r * k_dim;

	for (uint32_t b = 0; b < n_blocks; b++) {
		float block[Q8_BLOCK];

		pad_block(q, k_dim, b, block);
		if (pass->job->kv_type == KV_Q8_0)
			op_quantise_q8(block, Q8_BLOCK, &pass->q8[(size_t)r * n_blocks + b]);
		else
			quantise_q16(block, &pass->q16[(size_t)r * n_blocks + b]);
	}
}

/* Puts the job's queries into the scratch memory, in the forms that keys are multiplied with. */
static void take_queries(const struct attention_pass *pass)
{
	const struct attention_job *job = pass->job;
	const uint32_t rows = job->n_tokens * job->n_heads;

	for (uint32_t r = 0; r < rows; r++) {
		memcpy(pass->q + (size_t)r * job->k_dim,
			job->queries[r / job->n_heads].q + r % job->n_heads * job->q_stride,
			job->k_dim * sizeof(*pass->q));
		if (kv_in_blocks(job->kv_type))
			quantise_query(pass, r);
	}
}

static void op_attention(const struct attention_job *job)
{
	const uint32_t rows = job->n_tokens * job->n_heads;
	const struct scratch_parts parts = scratch_parts(rows, job->k_dim, job->v_dim);
	const struct attention_pass pass = {
		.job = job,
		.q = job->scratch,
		.scores = job->scratch + parts.scores,
		.factor = job->scratch + parts.factor,
		.keys = job->scratch + parts.keys,
		.q8 = (struct q8_block *)(void *)(job->scratch + parts.blocks),
		.q16 = (struct q16_block *)(void *)(job->scratch + parts.blocks),
		.values = job->scratch + parts.values,
		.scales = job->scratch + parts.scales,
		.integers = (int16_t *)(void *)(job->scratch + parts.integers),
		.copied = kv_in_blocks(job->kv_type) ? !keys_usable(job, rows) || !pairs_usable(job)
						     : rows >= ATTENTION_WIDE_ROWS,
	};

	assert(rows > 0 && rows <= ATTENTION_ROWS && job->n_cells <= ATTENTION_SPLIT &&
		job->part.out_stride == job->v_dim);
	if (!job->q_kept)
		take_queries(&pass);
	for (uint32_t r = 0; r < rows; r++) {
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
