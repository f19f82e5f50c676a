/* Cutting attention for threads: one token and one thread give what batches on many threads give, to the bit, with
 * windows, sinks and branches, whether the splits of a row are handed out or not. */
#include "tests/kernels/reference.h"

#include "kernels/cpu/steps/attention_split.h"

enum {
	POSITIONS = 2100,
	TOKENS = 40,
	DIM = 40,
	V_DIM = 24,
	KV_HEADS = 3,
	HEADS_MAX = 140,
	BRANCH = 6, /* the last positions, where branches have cells of their own */
};

struct rig {
	uint32_t n_heads, window;
	bool branches, sinks;
	uint32_t cells[POSITIONS], cell_of[2 * POSITIONS];
	float *k, *v, *q, *out, *expected, *sink;
	uint32_t first, n; /* of the batch */
	unsigned prepared[TOKENS][KV_HEADS], done[TOKENS][KV_HEADS];
	struct attention_token tokens[TOKENS];
};

static float *random_floats(size_t n, float most, uint64_t *rng)
{
	float *x = malloc(n * sizeof(*x));

	assert_non_null(x);
	for (size_t i = 0; i < n; i++)
		x[i] = random_float(rng) * most;
	return x;
}

/* A branch's own cell at a position. */
static uint32_t branch_cell(uint32_t token, uint32_t position)
{
	return POSITIONS + (token * BRANCH + position) % POSITIONS;
}

static void tail(void *arg, uint32_t token, uint32_t from, uint32_t to, uint32_t *cells)
{
	struct rig *r = arg;

	assert_true(r->branches && from >= POSITIONS - BRANCH && to <= POSITIONS && from < to);
	for (uint32_t i = from; i < to; i++)
		cells[i - from] = branch_cell(token, i);
}

static void prepare(void *arg, uint32_t token, uint32_t kv_head)
{
	struct rig *r = arg;

	r->prepared[token][kv_head]++;
}

static void prepare_all(void *arg)
{
	struct rig *r = arg;

	for (uint32_t t = r->first; t < r->first + r->n; t++)
		for (uint32_t h = 0; h < KV_HEADS; h++)
			prepare(r, t, h);
}

/* When a token is done, the keys and values of all were there. */
static void done(void *arg, uint32_t token, uint32_t kv_head)
{
	struct rig *r = arg;

	for (uint32_t t = r->first; t < r->first + r->n; t++)
		assert_int_equal(r->prepared[t][kv_head], 1);
	r->done[token][kv_head]++;
}

/* Tokens first..first+n-1 of the rig as one batch. */
static void run(
	struct rig *r, struct attention_memory *m, struct pool *pool, uint32_t first, uint32_t n)
{
	size_t cell = DIM * sizeof(float), v_cell = V_DIM * sizeof(float);
	const struct attention_step step = {
		.kernels = kernels_select("auto", NULL),
		.pool = pool,
		.tokens = r->tokens + first,
		.n_tokens = n,
		.first = first,
		.kv_type = KV_F32,
		.k = (const unsigned char *)r->k,
		.v = (const unsigned char *)r->v,
		.k_head_bytes = cell * 2 * POSITIONS,
		.v_head_bytes = v_cell * 2 * POSITIONS,
		.k_cell_bytes = cell,
		.v_cell_bytes = v_cell,
		.k_dim = DIM,
		.v_dim = V_DIM,
		.n_kv_heads = KV_HEADS,
		.n_heads = r->n_heads,
		.q_stride = DIM,
		.out_stride = V_DIM,
		.scale = 0.2f,
		.sinks = r->sinks ? r->sink : NULL,
		.cell_of = r->window ? r->cell_of : NULL,
		.tail = tail,
		.tail_arg = r,
		.prepare = prepare,
		.prepare_all = prepare_all,
		.done = done,
		.arg = r,
	};
	r->first = first;
	r->n = n;
	memset(r->prepared, 0, sizeof(r->prepared));
	memset(r->done, 0, sizeof(r->done));
	attention_run(&step, m);
	for (uint32_t t = first; t < first + n; t++)
		for (uint32_t h = 0; h < KV_HEADS; h++)
			assert_int_equal(r->done[t][h], 1);
}

static void setup(
	struct rig *r, uint32_t n_heads, uint32_t window, bool branches, bool sinks, uint64_t *rng)
{
	size_t heads = (size_t)KV_HEADS * n_heads;

	*r = (struct rig){
		.n_heads = n_heads, .window = window, .branches = branches, .sinks = sinks};
	r->k = random_floats((size_t)KV_HEADS * 2 * POSITIONS * DIM, 2, rng);
	r->v = random_floats((size_t)KV_HEADS * 2 * POSITIONS * V_DIM, 2, rng);
	r->q = random_floats(TOKENS * heads * DIM, 3, rng);
	r->sink = random_floats(heads, 4, rng);
	r->out = random_floats(TOKENS * heads * V_DIM, 1, rng);
	r->expected = random_floats(TOKENS * heads * V_DIM, 1, rng);
	for (uint32_t i = 0; i < POSITIONS; i++)
		r->cells[i] = random_below(rng, POSITIONS);
	for (uint32_t i = 0; i < 2 * POSITIONS; i++)
		r->cell_of[i] = random_below(rng, 2 * POSITIONS);
	for (uint32_t t = 0; t < TOKENS; t++) {
		bool branch = branches && t % 3;
		uint32_t last = branch ? POSITIONS - t % BRANCH : POSITIONS - TOKENS + t + 1;

		r->tokens[t] = (struct attention_token){
			.q = r->q + t * heads * DIM,
			.out = r->out + t * heads * V_DIM,
			.first = window && last > window ? last - window : 0,
			.last = last,
			.cells = r->cells,
			.shared = branch ? POSITIONS - BRANCH : last,
		};
	}
}

static void teardown(struct rig *r)
{
	free(r->k);
	free(r->v);
	free(r->q);
	free(r->sink);
	free(r->out);
	free(r->expected);
}

/* In batches of `n`, with memory for just that many. */
static void check_batches(struct rig *r, uint32_t n, uint32_t threads)
{
	size_t floats = (size_t)TOKENS * KV_HEADS * r->n_heads * V_DIM;
	struct attention_memory m;
	struct pool *pool;

	const struct attention_limits limits = {
		kernels_select("auto", NULL), threads, n, KV_HEADS, r->n_heads, DIM, V_DIM};

	assert_int_equal(pool_create(threads, 0, 0, &pool, NULL), 0);
	assert_int_equal(attention_memory_get(&m, &limits, NULL), 0);
	memset(r->out, 0x7f, floats * sizeof(*r->out));
	for (uint32_t t = 0; t < TOKENS; t += n)
		run(r, &m, pool, t, TOKENS - t < n ? TOKENS - t : n);
	assert_same_floats(r->out, r->expected, floats, "batches");
	attention_memory_put(&m);
	pool_destroy(&pool);
}

static void check(uint32_t n_heads, uint32_t window, bool branches, bool sinks)
{
	static const uint32_t counts[] = {1, 3, 16, TOKENS};
	uint64_t rng = n_heads + window;
	struct attention_memory m;
	struct pool *pool;
	struct rig *r = malloc(sizeof(*r));

	assert_non_null(r);
	setup(r, n_heads, window, branches, sinks, &rng);
	const struct attention_limits limits = {
		kernels_select("auto", NULL), 1, 1, KV_HEADS, n_heads, DIM, V_DIM};
	assert_int_equal(pool_create(1, 0, 0, &pool, NULL), 0);
	assert_int_equal(attention_memory_get(&m, &limits, NULL), 0);
	for (uint32_t t = 0; t < TOKENS; t++)
		run(r, &m, pool, t, 1);
	attention_memory_put(&m);
	pool_destroy(&pool);
	memcpy(r->expected, r->out, (size_t)TOKENS * KV_HEADS * n_heads * V_DIM * sizeof(float));
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		for (uint32_t threads = 1; threads <= 4; threads++)
			check_batches(r, counts[i], threads);
	teardown(r);
	free(r);
}

static void neither_batches_nor_threads_change_a_bit(void **state)
{
	(void)state;
	check(1, 0, false, false);
	check(8, 0, false, false);
	check(5, 0, false, true);
}

static void windows_change_no_bit(void **state)
{
	(void)state;
	check(4, 128, false, true);
	check(2, 700, false, false);
}

static void branches_change_no_bit(void **state)
{
	(void)state;
	check(8, 0, true, false);
	check(3, 300, true, true);
}

static void more_heads_than_a_job_takes_change_no_bit(void **state)
{
	(void)state;
	check(HEADS_MAX, 0, true, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(neither_batches_nor_threads_change_a_bit),
		cmocka_unit_test(windows_change_no_bit),
		cmocka_unit_test(branches_change_no_bit),
		cmocka_unit_test(more_heads_than_a_job_takes_change_no_bit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
