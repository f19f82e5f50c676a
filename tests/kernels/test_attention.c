/* Attention: the chunked order of numerics.md to the bit, and softmax(q k / sqrt(d)) v in float64, with values of their
 * own or in the keys, with sinks and without, over every type of stored cells. */
#include "tests/kernels/reference.h"

#define CELLS_MAX 208 /* whole turns of them */
#define POSITIONS_MAX 600
#define DIM_MAX 260
#define BLOCKS_MAX 9
#define HEADS_MAX 19
#define TOKENS_MAX 5
#define ROWS_MAX (HEADS_MAX * TOKENS_MAX)

struct block {
	float d;
	int q[Q8_BLOCK];
};

struct case_data {
	uint32_t n_heads, n_tokens;
	uint32_t first[TOKENS_MAX], last[TOKENS_MAX]; /* positions first..last-1 are attended to */
	uint32_t cells[POSITIONS_MAX]; /* by position */
	enum kv_type type;
	uint32_t k_dim, v_dim;
	bool v_in_k, k_turned, v_paired;
	float scale;
	const float *used_sinks; /* sinks or NULL */
	float sinks[HEADS_MAX];
	float q[TOKENS_MAX][HEADS_MAX * (DIM_MAX + 3)];
	float out[TOKENS_MAX][HEADS_MAX * (DIM_MAX + 5)], expected[TOKENS_MAX][HEADS_MAX][DIM_MAX];
	float k[CELLS_MAX][DIM_MAX], v[CELLS_MAX][DIM_MAX]; /* as the kernel sees them, widened */
	float seen_q[TOKENS_MAX][HEADS_MAX][DIM_MAX]; /* the same; and the blocks of q */
	/* Of blocks: scales and integers. */
	struct block k_blocks[CELLS_MAX][BLOCKS_MAX], v_blocks[CELLS_MAX][BLOCKS_MAX];
	struct block q_blocks[TOKENS_MAX][HEADS_MAX][BLOCKS_MAX];
	uint8_t *k_raw, *v_raw;
};

static float scale_of(enum kv_type type, uint16_t bits)
{
	return type == KV_Q8_0 ? reference_half(bits) : float_from((uint32_t)bits << 16);
}

/* The blocks of a stored vector. */
static void read_blocks(const uint8_t *raw, uint32_t dim, enum kv_type type, struct block *blocks)
{
	const uint32_t value = type == KV_Q8_0 ? 1 : 2;

	memset(blocks, 0, BLOCKS_MAX * sizeof(*blocks));
	for (uint32_t d = 0; d < dim; d++) {
		const uint8_t *block = raw + (size_t)(d / 32) * (2 + 32 * value);

		blocks[d / 32].d = scale_of(type, u16_at(block));
		block += 2 + (size_t)d % 32 * value;
		blocks[d / 32].q[d % 32] =
			type == KV_Q8_0 ? (int8_t)block[0] : (int16_t)u16_at(block);
	}
}

/* What a stored vector says, by the definition of its type. */
static void widen(const uint8_t *raw, uint32_t dim, enum kv_type type, float *values)
{
	struct block blocks[BLOCKS_MAX];

	if (type == KV_F32)
		return;
	if (kv_in_blocks(type))
		read_blocks(raw, dim, type, blocks);
	for (uint32_t d = 0; d < dim; d++)
		values[d] = type == KV_F16 ? reference_half(u16_at(raw + (size_t)2 * d))
					   : blocks[d / 32].d * (float)blocks[d / 32].q[d % 32];
}

enum form { ALONE, TURNED, PAIRED };

/* A cell's values as they are stored, and as the kernel sees them then. */
static void put_cell(
	float *values, uint32_t dim, enum kv_type type, enum form form, uint8_t *raw, uint32_t cell)
{
	size_t cell_bytes = kv_vector_bytes(type, dim);
	uint8_t own[DIM_MAX * sizeof(float)];

	scalar_backend()->kv_store(values, dim, type, own);
	if (form == TURNED)
		scalar_backend()->kv_store_turned(values, dim, type, raw, cell);
	else if (form == PAIRED)
		scalar_backend()->kv_store_paired(values, dim, type, raw, cell);
	else
		memcpy(raw + cell * cell_bytes, own, cell_bytes);
	widen(own, dim, type, values);
}

static void put_cells(float (*values)[DIM_MAX], struct block (*blocks)[BLOCKS_MAX], uint32_t dim,
	enum kv_type type, enum form form, uint8_t *raw, uint64_t *rng)
{
	for (uint32_t c = 0; c < CELLS_MAX; c++) {
		uint8_t own[DIM_MAX * sizeof(float)];

		for (uint32_t d = 0; d < dim; d++)
			values[c][d] = random_float(rng) * 2;
		scalar_backend()->kv_store(values[c], dim, type, own);
		if (kv_in_blocks(type))
			read_blocks(own, dim, type, blocks[c]);
		put_cell(values[c], dim, type, form, raw, c);
	}
}

/* Cells in any order, or as long stretches of a cache are: in the order of their positions, but for a few. */
static void place_cells(struct case_data *a, uint32_t n_cells, uint64_t *rng)
{
	uint32_t strange = random_below(rng, 3), next = 0;

	for (uint32_t c = 0; c < n_cells; c++) {
		if (c % KV_TURN == 0)
			next = random_below(rng, CELLS_MAX / KV_TURN) * KV_TURN;
		a->cells[c] = next + c % KV_TURN;
		if (strange == 2 || (strange == 1 && random_below(rng, 100) == 0))
			a->cells[c] = random_below(rng, CELLS_MAX);
	}
}

/* What a row keeps between cells. */
struct row {
	float most, sum, out[DIM_MAX];
};

/* A query's block as numerics.md defines it. */
static struct block query_block(const float *x, enum kv_type type)
{
	struct q8_block q8;
	struct block block = {0};
	float amax = 0;

	if (type == KV_Q8_0) {
		scalar_backend()->quantise_q8(x, Q8_BLOCK, &q8);
		block.d = q8.d;
		for (int i = 0; i < Q8_BLOCK; i++)
			block.q[i] = q8.q[i];
		return block;
	}
	for (int i = 0; i < Q8_BLOCK; i++)
		amax = fmaxf(amax, fabsf(x[i]));
	block.d = amax / 8190;
	for (int i = 0; i < Q8_BLOCK && amax > 0; i++)
		block.q[i] = (int)nearbyintf(x[i] * (8190 / amax));
	return block;
}

/* The queries as scores take them: in blocks where the keys are. */
static void see_queries(struct case_data *a)
{
	for (uint32_t t = 0; t < a->n_tokens; t++)
		for (uint32_t h = 0; h < a->n_heads; h++) {
			float padded[BLOCKS_MAX * Q8_BLOCK] = {0};
			struct block *blocks = a->q_blocks[t][h];

			memcpy(padded, a->q[t] + (size_t)h * (a->k_dim + 3),
				a->k_dim * sizeof(float));
			for (uint32_t b = 0; kv_in_blocks(a->type) && b < BLOCKS_MAX; b++)
				blocks[b] = query_block(padded + (size_t)b * Q8_BLOCK, a->type);
			for (uint32_t d = 0; d < a->k_dim; d++)
				a->seen_q[t][h][d] =
					!kv_in_blocks(a->type)
						? padded[d]
						: blocks[d / 32].d *
							  (float)blocks[d / 32].q[d % 32];
		}
}

static float blocks_score(const struct case_data *a, const struct block *q, uint32_t cell)
{
	float s = 0;

	for (uint32_t b = 0; b * Q8_BLOCK < a->k_dim; b++) {
		const struct block *k = &a->k_blocks[cell][b];
		int sum = 0;

		for (uint32_t d = 0; d < Q8_BLOCK && b * Q8_BLOCK + d < a->k_dim; d++)
			sum += q[b].q[d] * k->q[d];
		s = fmaf(k->d * q[b].d, (float)sum, s);
	}
	return s;
}

static const struct block *value_block(const struct case_data *a, uint32_t position, uint32_t b)
{
	uint32_t cell = a->cells[position];

	return a->v_in_k ? &a->k_blocks[cell][b] : &a->v_blocks[cell][b];
}

/* Values of blocks with the weights of a chunk's positions from..to-1. */
static void blocks_values(const struct case_data *a, uint32_t from, uint32_t to,
	const float *weights, float factor, float *out)
{
	float products[ATTENTION_CHUNK] = {0}, ones[ATTENTION_CHUNK], greatest = 0x1p-100f, unit;

	for (uint32_t i = from; i < to; i++) {
		float d = 0;

		for (uint32_t b = 0; b * Q8_BLOCK < a->v_dim; b++)
			d = isnan(value_block(a, i, b)->d) ? INFINITY
							   : fmaxf(d, value_block(a, i, b)->d);
		d *= weights[i - from];
		products[i % ATTENTION_CHUNK] = isnan(d) ? 0 : d;
		greatest = fmaxf(greatest, products[i % ATTENTION_CHUNK]);
	}
	for (int i = 0; i < ATTENTION_CHUNK; i++)
		ones[i] = 1;
	unit = greatest * (1.0f / 32767);
	if (a->type == KV_Q16_0)
		unit = fmaxf(
			unit, reference_lanes(products, ones, ATTENTION_CHUNK) * (1.0f / 262000));
	for (uint32_t d = 0; d < a->v_dim; d++) {
		int sum = 0;

		for (uint32_t i = from; i < to; i++) {
			const struct block *v = value_block(a, i, d / 32);
			float weight = weights[i - from] * (1 / unit) * v->d;

			sum += isnan(weight) ? 0 : (int)nearbyintf(weight) * v->q[d % 32];
		}
		out[d] = fmaf((float)sum, unit, out[d] * factor);
	}
}

/* Positions from..to-1, of one chunk. */
static void reference_chunk(const struct case_data *a, uint32_t token, uint32_t head, uint32_t from,
	uint32_t to, struct row *row)
{
	const float *q = a->seen_q[token][head];
	float scores[ATTENTION_CHUNK], ones[ATTENTION_CHUNK], most = row->most, factor;
	uint32_t n = to - from;

	for (uint32_t c = 0; c < n; c++) {
		const float *k = a->k[a->cells[from + c]];

		scores[c] = 0;
		for (uint32_t d = 0; d < a->k_dim; d++)
			scores[c] = fmaf(q[d], k[d], scores[c]);
		if (kv_in_blocks(a->type))
			scores[c] = blocks_score(a, a->q_blocks[token][head], a->cells[from + c]);
		scores[c] *= a->scale;
		most = fmaxf(most, scores[c]);
		ones[c] = 1;
	}
	factor = kernels_exp(row->most - most);
	row->most = most;
	for (uint32_t c = 0; c < n; c++)
		scores[c] = kernels_exp(scores[c] - most);
	row->sum = fmaf(row->sum, factor, reference_lanes(scores, ones, n));
	if (kv_in_blocks(a->type)) {
		blocks_values(a, from, to, scores, factor, row->out);
		return;
	}
	for (uint32_t d = 0; d < a->v_dim; d++) {
		float value = row->out[d] * factor;

		for (uint32_t c = 0; c < n; c++)
			value = fmaf(scores[c], a->v[a->cells[from + c]][d], value);
		row->out[d] = value;
	}
}

static void reference_join(const struct case_data *a, struct row *into, const struct row *part)
{
	float most = fmaxf(into->most, part->most);
	float x = kernels_exp(into->most - most), y = kernels_exp(part->most - most);

	into->most = most;
	into->sum = fmaf(part->sum, y, into->sum * x);
	for (uint32_t d = 0; d < a->v_dim; d++)
		into->out[d] = fmaf(part->out[d], y, into->out[d] * x);
}

/* The order of numerics.md, a token and a head at a time, everything else sequential. */
static void reference_attention(
	const struct case_data *a, uint32_t token, uint32_t head, float *out)
{
	struct row all = {.most = a->used_sinks ? a->used_sinks[head] : -INFINITY,
		.sum = a->used_sinks ? 1 : 0};

	for (uint32_t at = a->first[token]; at < a->last[token];) {
		uint32_t split = at / ATTENTION_SPLIT;
		struct row part = {.most = -INFINITY};

		while (at < a->last[token] && at / ATTENTION_SPLIT == split) {
			uint32_t end = (at / ATTENTION_CHUNK + 1) * ATTENTION_CHUNK;

			end = end < a->last[token] ? end : a->last[token];
			reference_chunk(a, token, head, at, end, &part);
			at = end;
		}
		reference_join(a, &all, &part);
	}
	for (uint32_t d = 0; d < a->v_dim; d++)
		out[d] = all.out[d] * (1 / all.sum);
}

static void expect(struct case_data *a)
{
	see_queries(a);
	for (uint32_t t = 0; t < a->n_tokens; t++)
		for (uint32_t h = 0; h < a->n_heads; h++)
			reference_attention(a, t, h, a->expected[t][h]);
}

/* Weights are rounded to integers where values are. */
static double most_error(enum kv_type type)
{
	return kv_in_blocks(type) ? 5e-4 : 4e-6;
}

static void check_exact(const struct case_data *a, uint32_t token, uint32_t head)
{
	double p[POSITIONS_MAX], most = a->used_sinks ? (double)a->sinks[head] : -INFINITY, sum;

	for (uint32_t c = a->first[token]; c < a->last[token]; c++) {
		p[c] = 0;
		for (uint32_t d = 0; d < a->k_dim; d++)
			p[c] += (double)a->seen_q[token][head][d] * (double)a->k[a->cells[c]][d];
		p[c] *= (double)a->scale;
		most = fmax(most, p[c]);
	}
	sum = a->used_sinks ? exp((double)a->sinks[head] - most) : 0;
	for (uint32_t c = a->first[token]; c < a->last[token]; c++)
		sum += p[c] = exp(p[c] - most);
	for (uint32_t d = 0; d < a->v_dim; d++) {
		double exact = 0;

		for (uint32_t c = a->first[token]; c < a->last[token]; c++)
			exact += p[c] / sum * (double)a->v[a->cells[c]][d];
		assert_true(
			fabs(exact - (double)a->expected[token][head][d]) < most_error(a->type));
	}
}

/* One split of tokens t..t+n-1 and heads h..h+m-1, joined to what they have. */
static void run_split(const struct kernels *kernels, struct case_data *a, uint32_t split,
	uint32_t t, uint32_t n, uint32_t h, uint32_t m, struct attention_state *states)
{
	uint32_t base = split * ATTENTION_SPLIT, n_cells = 0;
	struct attention_query queries[TOKENS_MAX];
	float part[ROWS_MAX * DIM_MAX], most[ROWS_MAX], sum[ROWS_MAX];
	size_t floats = kernels->attention_scratch(n * m, a->k_dim, a->v_dim);
	/* Exactly as long as promised: a sanitizer sees a write beyond it. */
	float *scratch = malloc(floats * sizeof(float));
	/* Entries that no query covers are not to be used: they are no cells. */
	uint32_t cells[ATTENTION_SPLIT];

	assert_non_null(scratch);
	memset(cells, 0xff, sizeof(cells));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t first = a->first[t + i] > base ? a->first[t + i] - base : 0;
		uint32_t last = a->last[t + i] > base ? a->last[t + i] - base : 0;

		last = last < ATTENTION_SPLIT ? last : ATTENTION_SPLIT;
		queries[i] = (struct attention_query){
			a->q[t + i] + (size_t)h * (a->k_dim + 3), first, last};
		for (uint32_t c = first; c < last; c++)
			cells[c] = a->cells[base + c];
		n_cells = last > n_cells ? last : n_cells;
	}
	const struct attention_job job = {
		.n_cells = n_cells,
		.cells = cells,
		.kv_type = a->type,
		.k = a->k_raw,
		.v = a->v_in_k ? a->k_raw : a->v_raw,
		.k_cell_bytes = kv_vector_bytes(a->type, a->k_dim),
		.v_cell_bytes = kv_vector_bytes(a->type, a->v_in_k ? a->k_dim : a->v_dim),
		.k_turned = a->k_turned,
		.v_paired = a->v_paired,
		.k_dim = a->k_dim,
		.v_dim = a->v_dim,
		.n_tokens = n,
		.n_heads = m,
		.queries = queries,
		.q_stride = a->k_dim + 3,
		.scale = a->scale,
		.part = {part, a->v_dim, most, sum},
		.scratch = scratch,
	};
	kernels->attention(&job);
	for (uint32_t i = 0; i < n; i++) {
		struct attention_state from = {
			part + (size_t)i * m * a->v_dim, a->v_dim, most + i * m, sum + i * m};

		if (queries[i].first < queries[i].last)
			kernels->attention_join(&states[t + i], &from, m, a->v_dim);
	}
	free(scratch);
}

/* Tokens t.. and heads h.. of the case as one group. */
static void run_part(const struct kernels *kernels, struct case_data *a, uint32_t t, uint32_t n,
	uint32_t h, uint32_t m)
{
	struct attention_state states[TOKENS_MAX];
	float most[ROWS_MAX] = {0}, sum[ROWS_MAX] = {0};
	size_t stride = a->v_dim + 5;

	for (uint32_t i = t; i < t + n; i++) {
		states[i] = (struct attention_state){
			a->out[i] + h * stride, stride, most + i * m, sum + i * m};
		for (uint32_t j = 0; j < m; j++) {
			states[i].most[j] = a->used_sinks ? a->used_sinks[h + j] : -INFINITY;
			states[i].sum[j] = a->used_sinks ? 1 : 0;
			memset(a->out[i] + (h + j) * stride, 0, a->v_dim * sizeof(float));
		}
	}
	for (uint32_t split = 0; split * ATTENTION_SPLIT < POSITIONS_MAX; split++)
		run_split(kernels, a, split, t, n, h, m, states);
	for (uint32_t i = t; i < t + n; i++)
		kernels->attention_finish(&states[i], m, a->v_dim);
}

static void run_backends(struct case_data *a)
{
	size_t stride = a->v_dim + 5;

	for (size_t k = 0; backend(k); k++) {
		memset(a->out, 0x7f, sizeof(a->out));
		run_part(backend(k), a, 0, a->n_tokens, 0, a->n_heads);
		for (uint32_t t = 0; t < a->n_tokens; t++)
			for (uint32_t h = 0; h < a->n_heads; h++) {
				assert_same_floats(a->out[t] + h * stride, a->expected[t][h],
					a->v_dim, backend(k)->name);
				assert_int_equal(
					bits_from(a->out[t][h * stride + a->v_dim]), 0x7f7f7f7f);
			}
	}
}

/* v_dim 0: the values lie in the keys, all but the last few of them. The tokens are the last ones of n_cells positions, each
 * behind the one before, or with a window, those of the last `window` positions. */
static void random_case(struct case_data *a, uint32_t k_dim, uint32_t v_dim, uint32_t heads,
	uint32_t tokens, uint32_t n_cells, uint32_t window, enum kv_type type, uint64_t *rng)
{
	a->k_raw = malloc(CELLS_MAX * kv_vector_bytes(type, k_dim));
	a->v_raw = v_dim ? malloc(CELLS_MAX * kv_vector_bytes(type, v_dim)) : NULL;
	assert_true(a->k_raw && (a->v_raw || !v_dim));
	a->k_turned = v_dim && random_below(rng, 4);
	a->v_paired = v_dim && kv_in_blocks(type) && random_below(rng, 4);
	put_cells(a->k, a->k_blocks, k_dim, type, a->k_turned ? TURNED : ALONE, a->k_raw, rng);
	if (v_dim)
		put_cells(a->v, a->v_blocks, v_dim, type, a->v_paired ? PAIRED : ALONE, a->v_raw,
			rng);
	else
		memcpy(a->v, a->k, sizeof(a->v));
	place_cells(a, n_cells, rng);
	for (uint32_t t = 0; t < TOKENS_MAX; t++)
		for (size_t i = 0; i < sizeof(a->q[0]) / sizeof(a->q[0][0]); i++)
			a->q[t][i] = random_float(rng) * 3;
	for (size_t i = 0; i < HEADS_MAX; i++)
		a->sinks[i] = random_float(rng) * 6;
	a->n_heads = heads;
	a->n_tokens = tokens < n_cells ? tokens : n_cells;
	for (uint32_t t = 0; t < a->n_tokens; t++) {
		a->last[t] = n_cells - a->n_tokens + t + 1;
		a->first[t] = a->last[t] > window ? a->last[t] - window : 0;
	}
	a->type = type;
	a->k_dim = k_dim;
	a->v_dim = v_dim ? v_dim : k_dim > 8 ? k_dim - 8 : k_dim;
	a->v_in_k = v_dim == 0;
	a->scale = 1 / sqrtf((float)k_dim);
	a->used_sinks = random_below(rng, 2) ? a->sinks : NULL;
	expect(a);
}

static void free_case(struct case_data *a)
{
	free(a->k_raw);
	free(a->v_raw);
}

static void sweep(enum kv_type type)
{
	static const uint32_t dims[] = {2, 14, 16, 30, 32, 64, 66, 80, 128, 256, 258};
	static const uint32_t counts[] = {1, 2, 63, 64, 65, 200, 256, 257, 600};
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = (uint64_t)type + 1;

	assert_non_null(a);
	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
			/* As long as the keys, of another length, and part of the keys. */
			const uint32_t v_dims[] = {dims[i], dims[(i + j + 1) % 11], 0};
			uint32_t window =
				random_below(&rng, 3) ? POSITIONS_MAX : 1 + random_below(&rng, 300);

			random_case(a, dims[i], v_dims[(i + j) % 3],
				1 + random_below(&rng, HEADS_MAX),
				1 + random_below(&rng, TOKENS_MAX), counts[j], window, type, &rng);
			run_backends(a);
			for (uint32_t h = 0; h < a->n_heads; h++)
				check_exact(a, a->n_tokens - 1, h);
			free_case(a);
		}
	free(a);
}

static void attention_over_float32_cells_is_the_definition(void **state)
{
	(void)state;
	sweep(KV_F32);
}

static void attention_over_float16_cells_is_the_definition(void **state)
{
	(void)state;
	sweep(KV_F16);
}

static void attention_over_8_bit_cells_is_the_definition(void **state)
{
	(void)state;
	sweep(KV_Q8_0);
}

static void attention_over_16_bit_cells_is_the_definition(void **state)
{
	(void)state;
	sweep(KV_Q16_0);
}

/* A group's heads and tokens may be computed in any parts: the bits are a row's own. */
static void check_parts(enum kv_type type)
{
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 12;

	assert_non_null(a);
	random_case(a, 80, 64, HEADS_MAX, TOKENS_MAX, 300, POSITIONS_MAX, type, &rng);
	for (uint32_t heads = 1; heads < HEADS_MAX; heads += 5)
		for (uint32_t tokens = 1; tokens < TOKENS_MAX; tokens++) {
			memset(a->out, 0x7f, sizeof(a->out));
			for (uint32_t t = 0; t < TOKENS_MAX; t += tokens)
				for (uint32_t h = 0; h < HEADS_MAX; h += heads)
					run_part(backend(0), a, t,
						TOKENS_MAX - t < tokens ? TOKENS_MAX - t : tokens,
						h, HEADS_MAX - h < heads ? HEADS_MAX - h : heads);
			for (uint32_t t = 0; t < TOKENS_MAX; t++)
				for (uint32_t h = 0; h < HEADS_MAX; h++)
					assert_same_floats(a->out[t] + (size_t)h * (64 + 5),
						a->expected[t][h], 64, backend(0)->name);
		}
	free_case(a);
	free(a);
}

/* The root of the mean squared difference that storing a case of float32 cells as `type` makes. */
static double error_of(const struct case_data *exact, enum kv_type type)
{
	struct case_data *a = malloc(sizeof(*a));
	double sum = 0;

	assert_non_null(a);
	*a = *exact;
	a->type = type;
	a->k_turned = true;
	a->v_paired = kv_in_blocks(type);
	a->k_raw = malloc(CELLS_MAX * kv_vector_bytes(type, a->k_dim));
	a->v_raw = malloc(CELLS_MAX * kv_vector_bytes(type, a->v_dim));
	assert_true(a->k_raw && a->v_raw);
	for (uint32_t c = 0; c < CELLS_MAX; c++) {
		put_cell(a->k[c], a->k_dim, type, TURNED, a->k_raw, c);
		put_cell(a->v[c], a->v_dim, type, a->v_paired ? PAIRED : ALONE, a->v_raw, c);
	}
	run_part(backend(0), a, 0, a->n_tokens, 0, a->n_heads);
	for (uint32_t h = 0; h < a->n_heads; h++)
		for (uint32_t d = 0; d < a->v_dim; d++) {
			double error = (double)a->out[0][h * (a->v_dim + 5) + d] -
				       (double)exact->expected[0][h][d];

			sum += error * error;
		}
	free_case(a);
	sum /= a->n_heads * a->v_dim;
	free(a);
	return sqrt(sum);
}

/* Whether attention is spread over many cells, or rests on few of them. */
static void blocks_of_16_bits_are_as_exact_as_float16(void **state)
{
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 17;

	(void)state;
	assert_non_null(a);
	for (int i = 0; i < 12; i++) {
		const int sharp = i % 6;
		double half, blocks;

		random_case(a, 128, 128, HEADS_MAX, 1, 600, POSITIONS_MAX, KV_F32, &rng);
		for (size_t j = 0; j < sizeof(a->q[0]) / sizeof(a->q[0][0]); j++)
			a->q[0][j] *= 0.25f * (float)(1 << sharp);
		/* Some channels of keys are far larger than others in many models. */
		for (uint32_t c = 0; i >= 6 && c < CELLS_MAX; c++)
			for (uint32_t d = 0; d < 128; d += 64)
				a->k[c][d] = 8 + random_float(&rng);
		expect(a);
		half = error_of(a, KV_F16);
		blocks = error_of(a, KV_Q16_0);
		print_message(
			"# sharp %d%s: float16 %.2e, blocks of 16 bits %.2e, of 8 bits %.2e\n",
			sharp, i < 6 ? "" : ", large channels", half, blocks, error_of(a, KV_Q8_0));
		assert_true(blocks < half);
		free_case(a);
	}
	free(a);
}

static void rows_do_not_depend_on_their_neighbours(void **state)
{
	(void)state;
	for (int type = KV_F32; type <= KV_Q16_0; type++)
		check_parts((enum kv_type)type);
}

/* A sink far above all scores leaves next to nothing, one far below changes nothing. */
static void a_sink_takes_its_share(void **state)
{
	struct case_data *a = malloc(sizeof(*a));
	float without[64];
	uint64_t rng = 13;

	(void)state;
	assert_non_null(a);
	random_case(a, 64, 64, 1, 1, 270, POSITIONS_MAX, KV_F32, &rng);
	a->used_sinks = NULL;
	reference_attention(a, 0, 0, without);
	a->used_sinks = a->sinks;
	a->sinks[0] = 60;
	expect(a);
	run_backends(a);
	for (int d = 0; d < 64; d++)
		assert_true(fabsf(a->out[0][d]) < 1e-20f);
	a->sinks[0] = -80;
	expect(a);
	run_backends(a);
	for (int d = 0; d < 64; d++)
		assert_true(fabsf(a->out[0][d] - without[d]) < 1e-5f);
	free_case(a);
	free(a);
}

/* Whole blocks are what quantising activations gives; a short last block is one with zeros behind it. */
static void stored_8_bit_vectors_are_quantised_blocks(void **state)
{
	float x[160], wide[160];
	uint8_t raw[200], expected[200];
	uint64_t rng = 14;

	(void)state;
	for (uint32_t n = 1; n <= 160; n++) {
		size_t bytes = kv_vector_bytes(KV_Q8_0, n);
		struct q8_block blocks[5];

		assert_int_equal(bytes, n + 2 * ((n + 31) / 32));
		memset(x, 0, sizeof(x));
		for (uint32_t i = 0; i < n; i++)
			x[i] = random_float(&rng) * ldexpf(1, (int)random_below(&rng, 12) - 6);
		scalar_backend()->quantise_q8(x, 160, blocks);
		scalar_backend()->kv_store(x, n, KV_Q8_0, expected);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(
				(int8_t)expected[2 + i + 2 * (i / 32)], blocks[i / 32].q[i % 32]);
		widen(expected, n, KV_Q8_0, wide);
		for (uint32_t i = 0; i < n; i++)
			assert_true(fabsf(wide[i] - x[i]) <= 0.57f * blocks[i / 32].d);
		for (size_t k = 0; backend(k); k++) {
			raw[bytes] = 0xa5;
			backend(k)->kv_store(x, n, KV_Q8_0, raw);
			assert_memory_equal(raw, expected, bytes);
			assert_int_equal(raw[bytes], 0xa5);
		}
	}
}

/* Where numerics.md says that byte `i` of block b of a vector of n values lies, of cell `lane` among 16 of them. */
static size_t place_of(
	enum kv_type type, bool pairs, uint32_t n, uint32_t b, uint32_t i, uint32_t lane)
{
	uint32_t value = (uint32_t)kv_value_bytes(type), some = n - b * 32 < 32 ? n - b * 32 : 32;
	uint32_t four = i / 4 * 4, unit = some * value - four < 4 ? some * value - four : 4;
	size_t begin = (size_t)(n + 31) / 32 * 32 + (size_t)b * 32 * 16 * value;

	if (pairs)
		return begin + lane / 2 * some * 2 * value + i / value * 2 * value +
		       lane % 2 * value + i % value;
	return begin + four * 16 + lane * unit + i % 4;
}

static void place_vector(
	enum kv_type type, bool pairs, uint32_t n, const uint8_t *own, uint8_t *turn, uint32_t lane)
{
	uint32_t value = (uint32_t)kv_value_bytes(type);

	for (uint32_t d = 0; d < n; d++)
		if (!kv_in_blocks(type)) {
			memcpy(turn + (d * 16 + lane) * value, own + d * value, value);
		} else {
			uint32_t b = d / 32;
			const uint8_t *block = own + b * (2 + 32 * value);

			memcpy(turn + b * 32 + lane * 2, block, 2);
			for (uint32_t i = d % 32 * value; i < (d % 32 + 1) * value; i++)
				turn[place_of(type, pairs, n, b, i, lane)] = block[2 + i];
		}
}

/* Each value where numerics.md says, and no byte of another cell's. */
static void vectors_that_lie_together_have_the_same_values_and_touch_no_other(void **state)
{
	static const uint32_t dims[] = {1, 7, 32, 33, 64, 100, 128};
	uint8_t raw[2 * KV_TURN * 128 * 4], expected[sizeof(raw)], own[128 * 4];
	uint64_t rng = 15;
	float x[128];

	(void)state;
	for (int i = 0; i < 7 * 4 * 2 * 20; i++) {
		uint32_t n = dims[i % 7], cell = random_below(&rng, 2 * KV_TURN);
		enum kv_type type = (enum kv_type)(i / 7 % 4);
		bool pairs = i / 28 % 2 && kv_in_blocks(type);

		for (uint32_t d = 0; d < n; d++)
			x[d] = random_float(&rng) * 3;
		memset(expected, i & 0xff, sizeof(expected));
		scalar_backend()->kv_store(x, n, type, own);
		place_vector(type, pairs, n, own,
			expected + cell / KV_TURN * KV_TURN * kv_vector_bytes(type, n),
			cell % KV_TURN);
		for (size_t k = 0; backend(k); k++) {
			memset(raw, i & 0xff, sizeof(raw));
			if (pairs)
				backend(k)->kv_store_paired(x, n, type, raw, cell);
			else
				backend(k)->kv_store_turned(x, n, type, raw, cell);
			assert_memory_equal(raw, expected, sizeof(raw));
		}
	}
}

/* A block's greatest value is KV_Q16_MOST or a little less, as its scale is rounded up. */
static void stored_16_bit_vectors_are_blocks_of_their_greatest_value(void **state)
{
	static const float odd[] = {0, 0x1p-111f, 0x1p-109f, 0x1p-20f, 3e38f, INFINITY, NAN};
	float x[160], wide[160], amax = 0;
	uint8_t raw[400], expected[400];
	struct block blocks[BLOCKS_MAX];
	uint64_t rng = 16;

	(void)state;
	for (uint32_t i = 0; i < 600; i++) {
		uint32_t n = 1 + i % 160;
		size_t bytes = kv_vector_bytes(KV_Q16_0, n);
		float size = ldexpf(1, (int)random_below(&rng, 60) - 30);

		assert_int_equal(bytes, 2 * n + 2 * ((n + 31) / 32));
		for (uint32_t d = 0; d < n; d++)
			x[d] = random_float(&rng) * size;
		if (i % 3 == 0)
			x[random_below(&rng, n)] = odd[i / 3 % 7];
		scalar_backend()->kv_store(x, n, KV_Q16_0, expected);
		read_blocks(expected, n, KV_Q16_0, blocks);
		widen(expected, n, KV_Q16_0, wide);
		for (uint32_t d = 0; d < n; d++) {
			bool finite = true;

			amax = d % 32 ? amax : 0;
			for (uint32_t j = d / 32 * 32; j < n && j < d / 32 * 32 + 32; j++) {
				finite = finite && isfinite(x[j]);
				amax = fmaxf(amax, fabsf(x[j]));
			}
			assert_true(finite == (isfinite(blocks[d / 32].d) != 0));
			assert_true(abs(blocks[d / 32].q[d % 32]) <= 8191);
			if (!finite) {
				assert_int_equal(blocks[d / 32].q[d % 32], 0);
				continue;
			}
			assert_true(blocks[d / 32].d <= amax / 8191 * 1.0079f);
			/* Half a step, which is a scale, and what float32 loses. */
			assert_true(fabsf(wide[d] - x[d]) <=
				    (amax < 0x1p-110f ? amax : blocks[d / 32].d * 0.502f));
		}
		for (size_t k = 0; backend(k); k++) {
			raw[bytes] = 0xa5;
			backend(k)->kv_store(x, n, KV_Q16_0, raw);
			assert_memory_equal(raw, expected, bytes);
			assert_int_equal(raw[bytes], 0xa5);
		}
	}
}

/* A cell's key, or its value, as it is now. */
static void store_again(struct case_data *a, bool key, uint32_t cell)
{
	float *values = key ? a->k[cell] : a->v[cell];
	uint32_t dim = key ? a->k_dim : a->v_dim;
	uint8_t own[DIM_MAX * sizeof(float)];

	scalar_backend()->kv_store(values, dim, a->type, own);
	if (kv_in_blocks(a->type))
		read_blocks(own, dim, a->type, key ? a->k_blocks[cell] : a->v_blocks[cell]);
	if (key)
		put_cell(values, dim, a->type, a->k_turned ? TURNED : ALONE, a->k_raw, cell);
	else
		put_cell(values, dim, a->type, a->v_paired ? PAIRED : ALONE, a->v_raw, cell);
}

static void infinite_and_nan_values_give_the_same_bits_everywhere(void **state)
{
	static const uint16_t odd[] = {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x7bff};
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 9;

	(void)state;
	assert_non_null(a);
	for (int i = 0; i < 180; i++) {
		static const enum kv_type types[] = {KV_F16, KV_Q8_0, KV_Q16_0};

		random_case(
			a, 34, 34, 3 + (uint32_t)i % 8, 2, 100, POSITIONS_MAX, types[i % 3], &rng);
		for (int j = 0; j < 2; j++) {
			uint32_t cell = random_below(&rng, CELLS_MAX), d = random_below(&rng, 34);
			float value = reference_half(odd[random_below(&rng, 6)]);
			bool key = random_below(&rng, 2);

			(key ? a->k : a->v)[cell][d] = value;
			store_again(a, key, cell);
		}
		expect(a);
		run_backends(a);
		free_case(a);
	}
	free(a);
}

/* The next token's cell may hold anything: rows of the same group that do not attend to it stay what they are. */
static void cells_of_later_tokens_are_not_touched(void **state)
{
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 21;

	(void)state;
	assert_non_null(a);
	for (uint32_t i = 0; i < 4 * 7; i++) {
		const uint32_t heads = 1 + i / 4 * 3;

		random_case(a, 48, 48, heads, TOKENS_MAX, 70, POSITIONS_MAX, (enum kv_type)(i % 4),
			&rng);
		for (uint32_t c = 0; c < 70; c++)
			a->cells[c] = c;
		for (uint32_t d = 0; d < 48; d++) {
			a->k[69][d] = NAN;
			a->v[69][d] = INFINITY;
		}
		store_again(a, true, 69);
		store_again(a, false, 69);
		expect(a);
		run_backends(a);
		for (uint32_t d = 0; d < 48; d++) {
			assert_true(isfinite(a->expected[TOKENS_MAX - 2][heads - 1][d]));
			assert_true(isnan(a->expected[TOKENS_MAX - 1][heads - 1][d]));
		}
		free_case(a);
	}
	free(a);
}

/* One row over 48 positions of one chunk, of which all scores are 0. */
static void even_case(struct case_data *a, enum kv_type type, uint64_t *rng)
{
	random_case(a, 32, 32, 1, 1, 48, POSITIONS_MAX, type, rng);
	a->used_sinks = NULL;
	a->scale = 1;
	for (uint32_t c = 0; c < 48; c++) {
		a->cells[c] = c;
		memset(a->k[c], 0, sizeof(a->k[c]));
		store_again(a, true, c);
	}
	for (uint32_t d = 0; d < 32; d++)
		a->q[0][d] = 1;
}

/* A score that is NaN can hide a greater one from the maximum, whose weight is then infinite. The row comes to NaN in the end, but
 * until then it has the same bits everywhere. */
static void a_row_with_a_hidden_maximum_has_the_same_bits_everywhere(void **state)
{
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 23;

	(void)state;
	assert_non_null(a);
	for (int i = 0; i < 40; i++) {
		float expected[DIM_MAX];

		even_case(a, i % 2 ? KV_Q8_0 : KV_Q16_0, &rng);
		a->k[0][0] = 30 + 5 * (float)i; /* the first lane's greatest, before a NaN in it */
		a->k[16][0] = NAN;
		for (uint32_t d = 0; d < 32; d++) /* down to scales that are 0 */
			a->v[0][d] = ldexpf(random_float(&rng), -i);
		store_again(a, true, 0);
		store_again(a, true, 16);
		store_again(a, false, 0);
		for (size_t k = 0; backend(k); k++) {
			float most = -INFINITY, sum = 0;
			struct attention_state row = {a->out[0], a->v_dim + 5, &most, &sum};

			memset(a->out[0], 0, sizeof(a->out[0]));
			run_split(backend(k), a, 0, 0, 1, 0, 1, &row);
			assert_true(isnan(sum));
			if (k == 0)
				memcpy(expected, a->out[0], a->v_dim * sizeof(float));
			assert_same_floats(a->out[0], expected, a->v_dim, backend(k)->name);
		}
		free_case(a);
	}
	free(a);
}

/* A value whose scale is infinite or NaN makes a NaN of each row in which it has a weight, but not where that comes to 0. */
static void an_infinite_scale_counts_where_its_value_has_a_weight(void **state)
{
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 24;

	(void)state;
	assert_non_null(a);
	for (int i = 0; i < 8; i++) {
		even_case(a, i % 2 ? KV_Q8_0 : KV_Q16_0, &rng);
		a->k[5][0] = i < 4 ? -200 : -60;
		a->v[5][i] = i & 2 ? INFINITY : NAN;
		store_again(a, true, 5);
		store_again(a, false, 5);
		expect(a);
		run_backends(a);
		for (uint32_t d = 0; d < 32; d++)
			assert_true(isnan(a->expected[0][0][d]) == (i >= 4));
		free_case(a);
	}
	free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attention_over_float32_cells_is_the_definition),
		cmocka_unit_test(attention_over_float16_cells_is_the_definition),
		cmocka_unit_test(attention_over_8_bit_cells_is_the_definition),
		cmocka_unit_test(attention_over_16_bit_cells_is_the_definition),
		cmocka_unit_test(blocks_of_16_bits_are_as_exact_as_float16),
		cmocka_unit_test(rows_do_not_depend_on_their_neighbours),
		cmocka_unit_test(a_sink_takes_its_share),
		cmocka_unit_test(cells_of_later_tokens_are_not_touched),
		cmocka_unit_test(stored_8_bit_vectors_are_quantised_blocks),
		cmocka_unit_test(stored_16_bit_vectors_are_blocks_of_their_greatest_value),
		cmocka_unit_test(vectors_that_lie_together_have_the_same_values_and_touch_no_other),
		cmocka_unit_test(infinite_and_nan_values_give_the_same_bits_everywhere),
		cmocka_unit_test(a_row_with_a_hidden_maximum_has_the_same_bits_everywhere),
		cmocka_unit_test(an_infinite_scale_counts_where_its_value_has_a_weight),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
