/* Latent attention of the GPU's back end: random batches with both forms of the matrix to the latent
 * space, whose bytes must be the scalar CPU's. OUTRIDER_TEST_SEED repeats other batches,
 * OUTRIDER_TEST_ROUNDS makes more. */
#include "tests/gpu/rig.h"

enum { CELLS = 1024, TOKENS = 70, HEADS = 20, NOPE = 64, RANK = 96, ROPE = 32, VALUES = 64 };

struct batch {
	struct step_mla s;
	struct buffer map;
	const struct buffer *maps[1];
	struct rows map_rows;
};

static uint32_t upto(struct rig *rig, uint32_t n)
{
	return rig_random(rig) % n;
}

static void run_mla(const struct backend_ops *ops, struct queue *q, const void *arg)
{
	struct batch run = *(const struct batch *)arg;

	run.map = *run.map_rows.buffer;
	run.map.host += run.map_rows.offset;
	run.map.device += run.map_rows.offset;
	run.maps[0] = &run.map;
	run.s.batch.maps = run.maps;
	ops->mla(q, &run.s);
}

/* A sequence of `length` cells, with latents in them, and a chain of n tokens behind it. */
static void make_tokens(struct rig *rig, struct batch *b, uint32_t length, uint32_t n)
{
	struct kv_cells *c = &b->s.cells;
	uint32_t width = b->s.kv_rank + b->s.rope, odd = upto(rig, 2);
	uint32_t *map;

	c->buffer = &rig->memory;
	c->k_bytes = c->v_bytes = kv_vector_bytes(c->type, width);
	c->k = c->v = rig_place(rig, CELLS * c->k_bytes).offset;
	/* What nobody has written is not read: as numbers it would be NaNs. */
	memset(rig->begin + c->k, 0xff, CELLS * c->k_bytes);
	b->map_rows = rig_rows(rig, 1, CELLS * sizeof(*map));
	map = rig_row(rig, &b->map_rows, 0);
	b->s.batch.tokens = rig_rows(rig, n, sizeof(struct step_token));
	for (uint32_t i = 0; i < length + n; i++) {
		float latent[RANK + ROPE];

		map[i] = odd ? CELLS - 1 - i : i;
		for (uint32_t d = 0; d < width; d++)
			latent[d] = rig_float(rig) * 2;
		if (i < length)
			rig->kernels->kv_store(
				latent, width, c->type, rig->begin + c->k + map[i] * c->k_bytes);
	}
	for (uint32_t t = 0; t < n; t++)
		*(struct step_token *)rig_row(rig, &b->s.batch.tokens, t) =
			(struct step_token){.position = length + t,
				.parent = (int32_t)t - 1,
				.cell = map[length + t],
				.shared = length + t + 1};
}

/* The heads' matrices, one behind the other. */
static void make_matrices(struct rig *rig, struct batch *b, enum tensor_type type)
{
	struct step_mla *s = &b->s;
	uint32_t rows = s->k_b_transposed ? s->nope : s->kv_rank;

	s->k_b = rig_matrix(rig, type, rows * s->n_heads, s->k_b_transposed ? s->kv_rank : s->nope,
		LAYOUT_ROWS);
	s->k_b_head_bytes = rows * s->k_b.row_bytes;
	s->k_b.rows = rows;
	s->v_b = rig_matrix(rig, type, s->v * s->n_heads, s->kv_rank, LAYOUT_ROWS);
	s->v_b_head_bytes = s->v * s->v_b.row_bytes;
	s->v_b.rows = s->v;
}

static void make_values(struct rig *rig, struct batch *b, uint32_t n)
{
	struct step_mla *s = &b->s;
	uint32_t q_width = s->n_heads * (s->nope + s->rope), kv_width = s->kv_rank + s->rope;

	s->batch.cos_sin = rig_floats(rig, n, s->rope, 1);
	s->batch.n_rot = s->rope;
	s->eps = 1e-6f;
	s->scale = 0.125f;
	s->kv_norm = rig_vector(rig, s->kv_rank, 1);
	if (upto(rig, 2)) {
		s->q_bias = rig_vector(rig, q_width, 1);
		s->kv_bias = rig_vector(rig, kv_width, 1);
	}
	s->q = rig_floats(rig, n, q_width, 1);
	s->kv = rig_floats(rig, n, kv_width, 1);
	rig_ignore(rig, &s->q, q_width * sizeof(float));
	rig_ignore(rig, &s->kv, kv_width * sizeof(float));
	s->out = rig_rows(rig, n, s->n_heads * s->v * sizeof(float));
	if (upto(rig, 3))
		s->out_q8 = rig_q8_rows(rig, n, s->n_heads * s->v);
}

static void check_batch(struct rig *rig, enum kv_type type, bool transposed, uint32_t round)
{
	static const enum tensor_type types[] = {TENSOR_Q8_0, TENSOR_F16, TENSOR_Q4_0, TENSOR_F32};
	struct batch b = {.s = {.k_b_transposed = transposed}};
	uint32_t n = round % 4 == 3 ? TOKENS : 1 + upto(rig, 5);
	uint32_t length = round % 4 == 1 ? 300 + upto(rig, 300) : upto(rig, 80);
	char what[128];

	b.s.n_heads = round % 4 == 2 ? HEADS : 1 + upto(rig, 6);
	b.s.nope = 32 * (1 + upto(rig, NOPE / 32));
	b.s.rope = ROPE / (1 + upto(rig, 2));
	b.s.kv_rank = 32 * (1 + upto(rig, RANK / 32));
	b.s.v = 32 * (1 + upto(rig, VALUES / 32));
	b.s.cells.type = type;
	make_tokens(rig, &b, length, n);
	make_matrices(rig, &b, types[(round + (uint32_t)type) % 4]);
	make_values(rig, &b, n);
	snprintf(what, sizeof(what), "round %u, type %d, %s, %u tokens behind %u, %u heads", round,
		(int)type, transposed ? "transposed" : "in rows", n, length, b.s.n_heads);
	rig_check(rig, what, run_mla, &b);
	rig_clear(rig);
}

static uint32_t number_of(const char *name, uint32_t otherwise)
{
	const char *text = getenv(name);

	return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void check_form(bool transposed)
{
	const struct queue_limits limits = {.products = HEADS,
		.pairs = HEADS * TOKENS,
		.n_tokens = TOKENS,
		.n_kv_heads = 1,
		.n_heads = HEADS,
		.k_dim = RANK + ROPE,
		.v_dim = RANK,
		.mla_nope = NOPE};
	uint32_t rounds = number_of("OUTRIDER_TEST_ROUNDS", 4);
	struct rig rig;

	rig_open(&rig, &limits, number_of("OUTRIDER_TEST_SEED", 1) + transposed);
	for (int type = KV_F32; type <= KV_Q16_0; type++)
		for (uint32_t i = 0; i < rounds; i++)
			check_batch(&rig, (enum kv_type)type, transposed, i);
	rig_close(&rig);
}

static void latent_attention_is_the_cpus(void **state)
{
	(void)state;
	check_form(false);
}

static void latent_attention_with_a_transposed_matrix_is_the_cpus(void **state)
{
	(void)state;
	check_form(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(latent_attention_is_the_cpus),
		cmocka_unit_test(latent_attention_with_a_transposed_matrix_is_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu mla", tests, NULL, NULL);
}
