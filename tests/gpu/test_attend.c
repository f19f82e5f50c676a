/* Attention of the GPU's back end: random batches of several sequences, trees, windows, layouts and
 * types, whose bytes must be the scalar CPU's. OUTRIDER_TEST_SEED repeats other batches,
 * OUTRIDER_TEST_ROUNDS makes more. */
#include "tests/gpu/rig.h"

#include <math.h>

enum { CELLS = 4096, PAGES = CELLS / KV_TURN, SEQUENCES = 3, TOKENS = 96, HEADS = 20, DIM = 256 };

RIG_STEP(attend)

static uint32_t upto(struct rig *rig, uint32_t n)
{
	return rig_random(rig) % n;
}

/* One batch: its step, and what the step's descriptor points to. */
struct batch {
	struct step_attend s;
	struct buffer maps[SEQUENCES];
	const struct buffer *map[SEQUENCES];
	struct rows map_rows;
	uint32_t length[SEQUENCES], n_seqs; /* length: before the batch */
	uint32_t cells[CELLS], n_cells; /* in the order in which they are taken */
	uint32_t own[CELLS]; /* from cell to the layer's own */
	bool of, strange; /* strange: some stored values are no numbers */
	size_t head_bytes;
};

/* Pages in random order; scattered: many cells apart from their neighbours. */
static void shuffle_cells(struct rig *rig, struct batch *b, bool scattered)
{
	uint32_t pages[PAGES];

	for (uint32_t i = 0; i < PAGES; i++)
		pages[i] = i;
	for (uint32_t i = PAGES - 1; i > 0; i--) {
		uint32_t j = upto(rig, i + 1), page = pages[i];

		pages[i] = pages[j];
		pages[j] = page;
	}
	for (uint32_t i = 0; i < CELLS; i++)
		b->cells[i] = pages[i / KV_TURN] * KV_TURN + i % KV_TURN;
	for (uint32_t i = 1; scattered && i < CELLS; i++) {
		uint32_t j = i - upto(rig, i < 40 ? i : 40), cell = b->cells[i];

		b->cells[i] = b->cells[j];
		b->cells[j] = cell;
	}
	b->n_cells = 0;
	for (uint32_t i = 0; i < CELLS; i++)
		b->own[i] = (i + CELLS / 2) % CELLS;
}

static uint32_t *map_of(struct rig *rig, struct batch *b, uint32_t seq)
{
	return rig_row(rig, &b->map_rows, seq);
}

/* Stores random keys and values of a cell in each head. */
static void fill_cell(struct rig *rig, struct batch *b, uint32_t cell)
{
	const struct kv_cells *c = &b->s.cells;
	uint32_t own = b->of ? b->own[cell] : cell, dim = b->s.dim;
	float k[DIM], v[DIM], large = upto(rig, 9) == 0 ? 100 : 1;

	for (uint32_t h = 0; h < b->s.n_kv_heads; h++) {
		unsigned char *at = rig->begin + h * b->head_bytes;

		for (uint32_t d = 0; d < dim; d++) {
			k[d] = rig_float(rig) * 3;
			v[d] = rig_float(rig) * large;
		}
		if (b->strange && upto(rig, 40) == 0)
			(upto(rig, 2) ? k : v)[upto(rig, dim)] = upto(rig, 2) ? INFINITY : NAN;
		rig->kernels->kv_store_turned(k, dim, c->type, at + c->k, own);
		if (c->v_paired)
			rig->kernels->kv_store_paired(v, dim, c->type, at + c->v, own);
		else
			rig->kernels->kv_store(v, dim, c->type, at + c->v + own * c->v_bytes);
	}
}

static void make_cells(struct rig *rig, struct batch *b)
{
	struct kv_cells *c = &b->s.cells;
	size_t vector = kv_vector_bytes(c->type, b->s.dim);

	b->head_bytes = CELLS * vector;
	c->buffer = &rig->memory;
	c->k = rig_place(rig, b->head_bytes * b->s.n_kv_heads).offset;
	c->v = rig_place(rig, b->head_bytes * b->s.n_kv_heads).offset;
	c->k_head_bytes = c->v_head_bytes = b->head_bytes;
	c->k_bytes = c->v_bytes = vector;
	c->k_turned = true;
	/* What nobody has written is not read: as numbers it would be NaNs. */
	memset(rig->begin + c->k, 0xff, b->head_bytes * b->s.n_kv_heads);
	memset(rig->begin + c->v, 0xff, b->head_bytes * b->s.n_kv_heads);
	if (b->of) {
		c->of = rig_place(rig, sizeof(b->own));
		memcpy(rig_at(rig, c->of), b->own, sizeof(b->own));
	}
}

/* Sequences of up to `context` cells; some begin with the cells of the first. */
static void make_sequences(struct rig *rig, struct batch *b, uint32_t context)
{
	b->map_rows = rig_rows(rig, SEQUENCES, CELLS * sizeof(uint32_t));
	for (uint32_t i = 0; i < b->n_seqs; i++) {
		uint32_t *map = map_of(rig, b, i);
		bool shares = i > 0 && upto(rig, 3) == 0;

		memset(map, 0xff, CELLS * sizeof(*map));
		b->length[i] = upto(rig, context);
		b->n_cells = (b->n_cells + KV_TURN - 1) / KV_TURN * KV_TURN;
		for (uint32_t p = 0; p < b->length[i]; p++) {
			if (shares && p < b->length[0]) {
				map[p] = map_of(rig, b, 0)[p];
				continue;
			}
			map[p] = b->cells[b->n_cells++];
			fill_cell(rig, b, map[p]);
		}
	}
	b->s.batch.maps = b->map;
}

/* Tokens of a sequence, rows first..first+n-1: a chain, or a tree in which each token's parent is
 * random now and then. The main chain's cells are in the map. */
static void make_tokens(
	struct rig *rig, struct batch *b, uint32_t seq, uint32_t first, uint32_t n, bool tree)
{
	bool on_main[TOKENS] = {false}, has_child[TOKENS] = {false};

	for (uint32_t i = 0; i < n; i++) {
		struct step_token *t = rig_row(rig, &b->s.batch.tokens, first + i), *parent = NULL;
		int32_t from =
			tree && upto(rig, 3) == 0 ? (int32_t)upto(rig, i + 1) - 1 : (int32_t)i - 1;

		*t = (struct step_token){.map = seq, .cell = b->cells[b->n_cells++], .parent = -1};
		if (from >= 0)
			parent = rig_row(rig, &b->s.batch.tokens, first + (uint32_t)from);
		t->parent = parent ? (int32_t)first + from : -1;
		t->position = parent ? parent->position + 1 : b->length[seq];
		t->shared = parent ? parent->shared : b->length[seq];
		on_main[i] = parent ? on_main[from] && !has_child[from] : i == 0;
		if (!on_main[i])
			continue;
		if (parent)
			has_child[from] = true;
		map_of(rig, b, seq)[t->position] = t->cell;
		t->shared = t->position + 1;
	}
}

/* What the step computes with, in random variants. */
static void make_values(struct rig *rig, struct batch *b, uint32_t n)
{
	struct step_attend *s = &b->s;
	uint32_t q_width = s->n_heads * (s->gated ? 2 : 1) * s->dim, kv = s->n_kv_heads * s->dim;

	s->batch.n_rot = upto(rig, 3) ? s->dim : s->dim / 2;
	s->batch.cos_sin = rig_floats(rig, n, s->batch.n_rot, 1);
	s->rope_neox = upto(rig, 2);
	s->norm_vectors = upto(rig, 4) == 0;
	s->eps = 1e-5f;
	s->scale = 1.0f / sqrtf((float)s->dim);
	if (upto(rig, 2)) {
		s->q_bias = rig_vector(rig, q_width, 1);
		s->k_bias = rig_vector(rig, kv, 1);
		s->v_bias = rig_vector(rig, kv, 1);
	}
	if (upto(rig, 2)) {
		s->q_norm = rig_vector(rig, q_width, 1);
		s->k_norm = rig_vector(rig, kv, 1);
	}
	if (upto(rig, 3) == 0)
		s->sinks = rig_vector(rig, s->n_heads, 3);
	s->q = rig_floats(rig, n, q_width, 3);
	s->k = rig_floats(rig, n, kv, 1);
	s->v = rig_floats(rig, n, kv, 1);
	rig_ignore(rig, &s->q, q_width * sizeof(float));
	rig_ignore(rig, &s->k, kv * sizeof(float));
	rig_ignore(rig, &s->v, kv * sizeof(float));
	s->out = rig_rows(rig, n, s->n_heads * s->dim * sizeof(float));
	if (s->n_heads * s->dim % Q8_BLOCK == 0 && !b->strange && upto(rig, 3))
		s->out_q8 = rig_q8_rows(rig, n, s->n_heads * s->dim);
}

static void run_batch(const struct backend_ops *ops, struct queue *q, const void *arg)
{
	const struct batch *b = arg;
	struct batch run = *b;

	for (uint32_t i = 0; i < b->n_seqs; i++) {
		run.maps[i] = *b->map_rows.buffer;
		run.maps[i].host += b->map_rows.offset + i * b->map_rows.stride;
		run.maps[i].device += b->map_rows.offset + i * b->map_rows.stride;
		run.map[i] = &run.maps[i];
	}
	run.s.batch.maps = run.map;
	run_attend(ops, q, &run.s);
}

static void check_batch(struct rig *rig, enum kv_type type, uint32_t round, bool strange)
{
	static const uint32_t dims[] = {64, 128, 32, 80, 96, 72, 40, 256};
	static const uint32_t contexts[] = {700, 300, 70, 70, 70};
	struct batch b = {.strange = strange, .of = upto(rig, 4) == 0};
	uint32_t group = 1 + upto(rig, round % 7 == 3 ? HEADS : 5), n, first = 0;
	char what[160];

	n = round % 6 == 5 ? 64 + upto(rig, TOKENS - 64) : 1 + upto(rig, 12);
	b.s.dim = dims[upto(rig, 8)];
	b.s.n_kv_heads = 1 + upto(rig, 2);
	b.s.n_heads = b.s.n_kv_heads * group;
	b.s.gated = upto(rig, 4) == 0;
	b.s.cells.type = type;
	b.s.cells.v_paired = kv_in_blocks(type) && upto(rig, 4);
	b.s.batch.window = upto(rig, 3) ? 0 : 1 + upto(rig, 300);
	b.n_seqs = 1 + upto(rig, SEQUENCES);
	b.n_seqs = b.n_seqs < n ? b.n_seqs : n;
	shuffle_cells(rig, &b, upto(rig, 3) == 0);
	make_cells(rig, &b);
	make_sequences(rig, &b, contexts[round % 5]);
	b.n_cells += KV_TURN;
	b.s.batch.tokens = rig_rows(rig, n, sizeof(struct step_token));
	bool tree = upto(rig, 2);
	for (uint32_t i = 0; i < b.n_seqs; i++) {
		uint32_t left = n - first - (b.n_seqs - 1 - i);
		uint32_t mine = i + 1 == b.n_seqs ? left : 1 + upto(rig, left);

		make_tokens(rig, &b, i, first, mine, tree);
		first += mine;
	}
	make_values(rig, &b, n);
	snprintf(what, sizeof(what),
		"round %u, type %d, %u tokens of %u sequences, %u x %u heads of %u, window %u",
		round, (int)type, n, b.n_seqs, b.s.n_kv_heads, group, b.s.dim, b.s.batch.window);
	rig_check(rig, what, run_batch, &b);
	rig_clear(rig);
}

static uint32_t number_of(const char *name, uint32_t otherwise)
{
	const char *text = getenv(name);

	return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void check_type(enum kv_type type)
{
	const struct queue_limits limits = {.products = 1,
		.pairs = 1,
		.n_tokens = TOKENS,
		.n_kv_heads = 2,
		.n_heads = HEADS,
		.k_dim = DIM,
		.v_dim = DIM};
	uint32_t rounds = number_of("OUTRIDER_TEST_ROUNDS", 12);
	struct rig rig;

	rig_open(&rig, &limits, number_of("OUTRIDER_TEST_SEED", 1) + (uint64_t)type);
	for (uint32_t i = 0; i < rounds; i++)
		check_batch(&rig, type, i, i % 6 == 2);
	rig_close(&rig);
}

static void attention_with_f32_cells_is_the_cpus(void **state)
{
	(void)state;
	check_type(KV_F32);
}

static void attention_with_f16_cells_is_the_cpus(void **state)
{
	(void)state;
	check_type(KV_F16);
}

static void attention_with_q8_0_cells_is_the_cpus(void **state)
{
	(void)state;
	check_type(KV_Q8_0);
}

static void attention_with_q16_0_cells_is_the_cpus(void **state)
{
	(void)state;
	check_type(KV_Q16_0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attention_with_f32_cells_is_the_cpus),
		cmocka_unit_test(attention_with_f16_cells_is_the_cpus),
		cmocka_unit_test(attention_with_q8_0_cells_is_the_cpus),
		cmocka_unit_test(attention_with_q16_0_cells_is_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu attend", tests, NULL, NULL);
}
