/* Attention: the chunked order of kernels.h to the bit, and softmax(q k / sqrt(d)) v in float64, with values of their
 * own or in the keys, with sinks and without, over every type of stored cells. */
#include "tests/kernels/reference.h"

#define CELLS_MAX 208 /* whole turns of them */
#define POSITIONS_MAX 600
#define DIM_MAX 260
#define BLOCKS_MAX 9
#define HEADS_MAX 19
#define TOKENS_MAX 5
#define ROWS_MAX (HEADS_MAX * TOKENS_MAX)

struct case_data {
	uint32_t n_heads, n_tokens;
	uint32_t first[TOKENS_MAX], last[TOKENS_MAX]; /* positions first..last-1 are attended to */
	uint32_t cells[POSITIONS_MAX]; /* by position */
	enum kv_type type;
	uint32_t k_dim, v_dim;
	bool v_in_k, k_turned;
	float scale;
	const float *used_sinks; /* sinks or NULL */
	float sinks[HEADS_MAX];
	float q[TOKENS_MAX][HEADS_MAX * (DIM_MAX + 3)];
	float out[TOKENS_MAX][HEADS_MAX * (DIM_MAX + 5)], expected[TOKENS_MAX][HEADS_MAX][DIM_MAX];
	float k[CELLS_MAX][DIM_MAX], v[CELLS_MAX][DIM_MAX]; /* as the kernel sees them, widened */
	float seen_q[TOKENS_MAX][HEADS_MAX][DIM_MAX]; /* the same; and the blocks of q */
	float k_scales[CELLS_MAX][BLOCKS_MAX]; /* of keys of blocks */
	struct q8_block q8[TOKENS_MAX][HEADS_MAX][BLOCKS_MAX];
	uint8_t *k_raw, *v_raw;
};

/* What a stored vector says, by the definition of its type. */
static void widen(const uint8_t *raw, uint32_t dim, enum kv_type type, float *values)
{
	for (uint32_t d = 0; type == KV_F16 && d < dim; d++)
		values[d] = reference_half(u16_at(raw + (size_t)2 * d));
	for (uint32_t d = 0; type == KV_Q8_0 && d < dim; d++) {
		const uint8_t *block = raw + (size_t)(d / 32) * 34;

		values[d] = reference_half(u16_at(block)) * (float)(int8_t)block[2 + d % 32];
	}
}

/* A cell's values as they are stored, and as the kernel sees them then. */
static void put_cell(
	float *values, uint32_t dim, enum kv_type type, bool turned, uint8_t *raw, uint32_t cell)
{
	size_t cell_bytes = kv_vector_bytes(type, dim);
	uint8_t own[DIM_MAX * sizeof(float)];

	scalar_backend()->kv_store(values, dim, type, own);
	if (turned)
		scalar_backend()->kv_store_turned(values, dim, type, raw, cell);
	else
		memcpy(raw + cell * cell_bytes, own, cell_bytes);
	widen(own, dim, type, values);
}

static void put_cells(float (*values)[DIM_MAX], uint32_t dim, enum kv_type type, bool turned,
	uint8_t *raw, uint64_t *rng)
{
	for (uint32_t c = 0; c < CELLS_MAX; c++) {
		for (uint32_t d = 0; d < dim; d++)
			values[c][d] = random_float(rng) * 2;
		put_cell(values[c], dim, type, turned, raw, c);
	}
}

/* The scales of a key that is already what its stored form says: storing it again changes nothing. */
static void key_scales(const float *key, uint32_t dim, float *scales)
{
	uint8_t own[DIM_MAX * sizeof(float)];

	scalar_backend()->kv_store(key, dim, KV_Q8_0, own);
	for (uint32_t d = 0; d < dim; d += Q8_BLOCK)
		scales[d / Q8_BLOCK] = reference_half(u16_at(own + (size_t)d / Q8_BLOCK * 34));
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

/* The queries as scores take them: in blocks where the keys are. */
static void see_queries(struct case_data *a)
{
	for (uint32_t t = 0; t < a->n_tokens; t++)
		for (uint32_t h = 0; h < a->n_heads; h++) {
			float padded[BLOCKS_MAX * Q8_BLOCK] = {0};
			struct q8_block *blocks = a->q8[t][h];

			memcpy(padded, a->q[t] + (size_t)h * (a->k_dim + 3),
				a->k_dim * sizeof(float));
			scalar_backend()->quantise_q8(padded, BLOCKS_MAX * Q8_BLOCK, blocks);
			for (uint32_t d = 0; d < a->k_dim; d++)
				a->seen_q[t][h][d] =
					a->type != KV_Q8_0
						? padded[d]
						: blocks[d / 32].d *
							  (float)blocks[d / 32].q[d % 32];
		}
}

/* Blocks: the integers of a key are its values over its scale, exactly. */
static float blocks_score(const struct case_data *a, const struct q8_block *q, uint32_t cell)
{
	float s = 0;

	for (uint32_t b = 0; b * Q8_BLOCK < a->k_dim; b++) {
		float scale = a->k_scales[cell][b];
		int sum = 0;

		for (uint32_t d = b * Q8_BLOCK; d < a->k_dim && d < (b + 1) * Q8_BLOCK; d++)
			sum += q[b].q[d % 32] * (scale > 0 ? (int)(a->k[cell][d] / scale) : 0);
		s = fmaf(scale * q[b].d, (float)sum, s);
	}
	return s;
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
		if (a->type == KV_Q8_0)
			scores[c] = blocks_score(a, a->q8[token][head], a->cells[from + c]);
		scores[c] *= a->scale;
		most = fmaxf(most, scores[c]);
		ones[c] = 1;
	}
	factor = kernels_exp(row->most - most);
	row->most = most;
	for (uint32_t c = 0; c < n; c++)
		scores[c] = kernels_exp(scores[c] - most);
	row->sum = fmaf(row->sum, factor, reference_lanes(scores, ones, n));
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

/* The order of kernels.h, a token and a head at a time, everything else sequential. */
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
		assert_true(fabs(exact - (double)a->expected[token][head][d]) < 4e-6);
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
	put_cells(a->k, k_dim, type, a->k_turned, a->k_raw, rng);
	for (uint32_t c = 0; type == KV_Q8_0 && c < CELLS_MAX; c++)
		key_scales(a->k[c], k_dim, a->k_scales[c]);
	if (v_dim)
		put_cells(a->v, v_dim, type, false, a->v_raw, rng);
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

/* A group's heads and tokens may be computed in any parts: the bits are a row's own. */
static void rows_do_not_depend_on_their_neighbours(void **state)
{
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 12;

	(void)state;
	assert_non_null(a);
	random_case(a, 80, 64, HEADS_MAX, TOKENS_MAX, 300, POSITIONS_MAX, KV_F16, &rng);
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

/* Each value where kernels.h says, and no byte of another cell's. */
static void turned_vectors_have_the_same_values_and_touch_no_other(void **state)
{
	static const uint32_t dims[] = {1, 7, 32, 33, 64, 100, 128};
	uint8_t raw[2 * KV_TURN * 128 * 4], expected[sizeof(raw)], own[128 * 4];
	uint64_t rng = 15;
	float x[128];

	(void)state;
	for (int i = 0; i < 7 * 3 * 20; i++) {
		uint32_t n = dims[i % 7], cell = random_below(&rng, 2 * KV_TURN);
		enum kv_type type = (enum kv_type)(i / 7 % 3);
		uint32_t value_bytes = type == KV_F32 ? 4 : type == KV_F16 ? 2 : 1;
		size_t base = cell / KV_TURN * KV_TURN * kv_vector_bytes(type, n), from = 0;

		for (uint32_t d = 0; d < n; d++)
			x[d] = random_float(&rng) * 3;
		memset(expected, i & 0xff, sizeof(expected));
		scalar_backend()->kv_store(x, n, type, own);
		for (uint32_t d = 0, some; d < n; d += some) {
			if (type == KV_Q8_0 && d % Q8_BLOCK == 0) {
				memcpy(expected + base + cell % KV_TURN * 2, own + from, 2);
				base += (size_t)2 * KV_TURN;
				from += 2;
			}
			some = type == KV_Q8_0 ? (n - d < 4 ? n - d : 4) : 1;
			memcpy(expected + base + cell % KV_TURN * some * value_bytes, own + from,
				some * value_bytes);
			base += (size_t)KV_TURN * some * value_bytes;
			from += (size_t)some * value_bytes;
		}
		for (size_t k = 0; backend(k); k++) {
			memset(raw, i & 0xff, sizeof(raw));
			backend(k)->kv_store_turned(x, n, type, raw, cell);
			assert_memory_equal(raw, expected, sizeof(raw));
		}
	}
}

static void infinite_and_nan_values_give_the_same_bits_everywhere(void **state)
{
	static const uint16_t odd[] = {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x7bff};
	struct case_data *a = malloc(sizeof(*a));
	uint64_t rng = 9;

	(void)state;
	assert_non_null(a);
	for (int i = 0; i < 60; i++) {
		random_case(a, 34, 34, 3 + (uint32_t)i % 8, 2, 100, POSITIONS_MAX, KV_F16, &rng);
		for (int j = 0; j < 2; j++) {
			uint32_t cell = random_below(&rng, CELLS_MAX), d = random_below(&rng, 34);
			float value = reference_half(odd[random_below(&rng, 6)]);

			if (random_below(&rng, 2)) {
				a->k[cell][d] = value;
				put_cell(a->k[cell], 34, KV_F16, a->k_turned, a->k_raw, cell);
			} else {
				a->v[cell][d] = value;
				put_cell(a->v[cell], 34, KV_F16, false, a->v_raw, cell);
			}
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
	for (uint32_t heads = 1; heads <= HEADS_MAX; heads += 3) {
		random_case(a, 48, 48, heads, TOKENS_MAX, 70, POSITIONS_MAX, KV_F32, &rng);
		for (uint32_t c = 0; c < 70; c++)
			a->cells[c] = c;
		for (uint32_t d = 0; d < 48; d++) {
			a->k[69][d] = NAN;
			a->v[69][d] = INFINITY;
		}
		put_cell(a->k[69], 48, KV_F32, a->k_turned, a->k_raw, 69);
		put_cell(a->v[69], 48, KV_F32, false, a->v_raw, 69);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attention_over_float32_cells_is_the_definition),
		cmocka_unit_test(attention_over_float16_cells_is_the_definition),
		cmocka_unit_test(attention_over_8_bit_cells_is_the_definition),
		cmocka_unit_test(rows_do_not_depend_on_their_neighbours),
		cmocka_unit_test(a_sink_takes_its_share),
		cmocka_unit_test(cells_of_later_tokens_are_not_touched),
		cmocka_unit_test(stored_8_bit_vectors_are_quantised_blocks),
		cmocka_unit_test(turned_vectors_have_the_same_values_and_touch_no_other),
		cmocka_unit_test(infinite_and_nan_values_give_the_same_bits_everywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
