/* The steps experts and dense_ffn on the emulated GPU, against the scalar CPU: every type of
 * weights, in both layouts; without an adapter, and with one that some rows take. */
#include "tests/gpu/rig.h"

RIG_STEP(dense_ffn)

enum { PAIRS = 160, WIDTH = 1536, EXPERTS = 4, USED = 2 };
static const struct queue_limits limits = {.products = EXPERTS,
	.pairs = PAIRS,
	.ffn_pairs = PAIRS,
	.ffn_width = WIDTH,
	.ffn_plain = true,
	.adapt_rank = 20};

/* A step, and the memory in which its experts lie. */
struct case_of_experts {
	struct step_experts step;
	struct step_expert of[EXPERTS];
	struct matrix w[EXPERTS][3];
	struct ffn_adapt adapt[EXPERTS];
};

/* Each back end makes buffers of the experts' memory. */
static void run_experts(const struct backend_ops *ops, struct queue *q, const void *arg)
{
	struct case_of_experts c = *(const struct case_of_experts *)arg;
	struct buffer memory[EXPERTS][3];
	struct error err;

	for (uint32_t e = 0; e < c.step.n; e++) {
		struct place *at[3] = {&c.of[e].gate, &c.of[e].up, &c.of[e].down};

		for (uint32_t m = 0; m < 3; m++) {
			const struct matrix *w = &c.w[e][m];

			assert_int_equal(ops->wrap_weights(q->backend, w->data,
						 w->rows * w->row_bytes, &memory[e][m], &err),
				0);
			*at[m] = (struct place){&memory[e][m], 0};
		}
	}
	c.step.of = c.of;
	ops->experts(q, &c.step);
	assert_int_equal(ops->wait(q, ops->ticket(q)), 0);
	for (uint32_t i = 0; i < 3 * c.step.n; i++)
		ops->free(&memory[i / 3][i % 3]);
}

static uint32_t below(struct rig *rig, uint32_t n)
{
	return rig_random(rig) % n;
}

/* A feed-forward's types and sizes. */
struct shape {
	enum tensor_type gate, up, down;
	uint32_t cols, hidden, rows;
	enum matrix_layout layout;
	bool scaled, biased;
	uint32_t rank; /* of an adapter; 0: there is none */
};

static struct matrix matrix_of(
	struct rig *rig, const struct shape *s, enum tensor_type type, uint32_t rows, uint32_t cols)
{
	struct matrix w = rig_matrix(rig, type, rows, cols, s->layout);

	w.scaled = s->scaled;
	w.scale = 0.5f + rig_float(rig) / 4;
	return w;
}

static struct ffn random_ffn(struct rig *rig, const struct shape *s)
{
	struct ffn ffn = {
		.gate = matrix_of(rig, s, s->gate, s->hidden, s->cols),
		.up = matrix_of(rig, s, s->up, s->hidden, s->cols),
		.down = matrix_of(rig, s, s->down, s->rows, s->hidden),
		.activation = s->biased ? ACTIVATION_SWIGLU_OAI : ACTIVATION_SILU,
	};

	if (s->biased) {
		ffn.gate_bias = rig_vector(rig, s->hidden, 1);
		ffn.up_bias = rig_vector(rig, s->hidden, 1);
	}
	return ffn;
}

/* Additions to some of the three products, of a random plain type. */
static struct ffn_adapt random_adapt(struct rig *rig, const struct shape *s)
{
	enum tensor_type type = rig_types[below(rig, 3)];
	uint32_t which = 1 + below(rig, 7);
	struct ffn_adapt out = {0};

	if (which & 1)
		out.gate = rig_low_rank(rig, type, s->hidden, s->cols, s->rank);
	if (which & 2)
		out.up = rig_low_rank(rig, type, s->hidden, s->cols, 1 + below(rig, s->rank));
	if (which & 4)
		out.down = rig_low_rank(rig, type, s->rows, s->hidden, s->rank);
	return out;
}

/* One byte for each of n rows: a third of them take additions. */
static struct place random_gates(struct rig *rig, uint32_t n)
{
	struct place gated = rig_place(rig, n);

	for (uint32_t t = 0; t < n; t++)
		((uint8_t *)rig_at(rig, gated))[t] = below(rig, 3) == 0;
	return gated;
}

/* Each row chooses two of the experts; fills in their pairs, by expert. Returns how many were
 * chosen, which come first. */
static uint32_t choose(struct rig *rig, uint32_t n, struct step_expert *of, struct place pairs)
{
	uint32_t *to = rig_at(rig, pairs), at = 0, used = 0, first[PAIRS], second[PAIRS];

	for (uint32_t t = 0; t < n; t++) {
		first[t] = below(rig, EXPERTS);
		second[t] = (first[t] + 1 + below(rig, EXPERTS - 1)) % EXPERTS;
	}
	for (uint32_t e = 0; e < EXPERTS; e++) {
		struct step_expert *expert = &of[used];

		expert->first = at;
		for (uint32_t t = 0; t < n; t++)
			if (first[t] == e || second[t] == e)
				to[at++] = t * USED + (second[t] == e);
		expert->n = at - expert->first;
		used += expert->n > 0;
	}
	return used;
}

static void check_experts(struct rig *rig, const struct shape *s, uint32_t n)
{
	struct case_of_experts c = {.step = {.n_used = USED}};
	char what[160];

	for (uint32_t e = 0; e < EXPERTS; e++) {
		struct ffn ffn = random_ffn(rig, s);
		struct step_expert *of = &c.of[e];

		c.w[e][0] = ffn.gate;
		c.w[e][1] = ffn.up;
		c.w[e][2] = ffn.down;
		of->layout = s->layout;
		of->gate_scale = ffn.gate.scale;
		of->up_scale = ffn.up.scale;
		of->down_scale = ffn.down.scale;
		of->gate_bias = ffn.gate_bias;
		of->up_bias = ffn.up_bias;
		c.step.shape = ffn;
		/* One expert has none. */
		c.adapt[e] = s->rank ? random_adapt(rig, s) : (struct ffn_adapt){0};
		of->adapt = s->rank && e != 1 ? &c.adapt[e] : NULL;
	}
	c.step.gated = random_gates(rig, n);
	c.step.pairs = rig_place(rig, (size_t)n * USED * sizeof(uint32_t));
	c.step.n = choose(rig, n, c.of, c.step.pairs);
	c.step.in = rig_inputs(rig, n, s->cols);
	c.step.y = rig_rows(rig, n * USED, s->rows * sizeof(float));
	snprintf(what, sizeof(what), "experts of %s, %s, %s, %u to %u to %u, layout %d, %u rows",
		tensor_type_info(s->gate)->name, tensor_type_info(s->up)->name,
		tensor_type_info(s->down)->name, s->cols, s->hidden, s->rows, s->layout, n);
	rig_check(rig, what, run_experts, &c);
	rig_clear(rig);
}

static void experts_of_every_type_are_the_cpus(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 1);
	for (size_t i = 0; i < RIG_TYPES; i++)
		for (uint32_t round = 0; round < 4; round++) {
			const struct shape s = {rig_types[i], rig_types[i], rig_types[i], 256, 256,
				round % 2 ? 40 : 32, round < 2 ? LAYOUT_TILES : LAYOUT_ROWS,
				round == 1, round == 3, 0};

			check_experts(&rig, &s, round == 0 ? 12 : 1 + below(&rig, 3));
		}
	rig_close(&rig);
}

/* Mixed types, odd sizes, several segments, many rows. */
static void experts_of_any_shape_are_the_cpus(void **state)
{
	static const struct shape shapes[] = {
		{TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q8_0, 512, 96, 17, LAYOUT_TILES, true, true, 0},
		{TENSOR_Q4_K, TENSOR_F16, TENSOR_F32, 256, 51, 21, LAYOUT_TILES, false, false, 0},
		{TENSOR_F32, TENSOR_F32, TENSOR_Q4_0, 96, 64, 5, LAYOUT_ROWS, false, true, 0},
		{TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_BF16, 96, 64, 33, LAYOUT_TILES, true, false, 0},
		{TENSOR_Q4_0, TENSOR_Q4_0, TENSOR_Q8_0, 2080, 1312, 32, LAYOUT_TILES, false, false,
			0},
		{TENSOR_MXFP4, TENSOR_MXFP4, TENSOR_MXFP4, 2880, 32, 48, LAYOUT_TILES, false, true,
			0},
	};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 2);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		check_experts(&rig, &shapes[i], 1 + below(&rig, 9));
	check_experts(&rig, &shapes[0], 70);
	check_experts(&rig, &shapes[3], 70);
	rig_close(&rig);
}

static void additions_to_experts_are_the_cpus(void **state)
{
	static const struct shape shapes[] = {
		{TENSOR_Q4_0, TENSOR_Q4_0, TENSOR_Q8_0, 256, 64, 32, LAYOUT_TILES, false, false, 4},
		{TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q8_0, 512, 96, 17, LAYOUT_TILES, true, true, 20},
		{TENSOR_Q4_K, TENSOR_F16, TENSOR_F32, 256, 51, 21, LAYOUT_TILES, false, false, 16},
		{TENSOR_F32, TENSOR_F32, TENSOR_Q4_0, 96, 64, 5, LAYOUT_ROWS, false, true, 1},
	};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 4);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (uint32_t n = 1; n < 80; n += 1 + 8 * n)
			check_experts(&rig, &shapes[i], n);
	rig_close(&rig);
}

static void check_dense(struct rig *rig, const struct shape *s, uint32_t n, bool residual)
{
	struct step_dense_ffn step = {.ffn = random_ffn(rig, s)};
	char what[160];

	step.in = rig_inputs(rig, n, s->cols);
	step.y = rig_rows(rig, n, s->rows * sizeof(float));
	const struct ffn_adapt adapt = s->rank ? random_adapt(rig, s) : (struct ffn_adapt){0};
	step.adapt = s->rank ? &adapt : NULL;
	step.gated = random_gates(rig, n);
	if (residual) {
		step.x = rig_floats(rig, n, s->rows, 2);
		step.bias = s->biased ? rig_vector(rig, s->rows, 1) : NULL;
		/* The CPU adds the bias in place. */
		rig_ignore(rig, &step.y, s->rows * sizeof(float));
	}
	snprintf(what, sizeof(what), "dense_ffn of %s and %s, %u rows, residual %d",
		tensor_type_info(s->gate)->name, tensor_type_info(s->down)->name, n, residual);
	rig_check(rig, what, run_dense_ffn, &step);
	rig_clear(rig);
}

static void dense_ones_are_the_cpus(void **state)
{
	static const struct shape shapes[] = {
		{TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_Q8_0, 256, 96, 64, LAYOUT_TILES, false, true, 0},
		{TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K, 1280, 256, 80, LAYOUT_TILES, true, false,
			0},
		{TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_F16, 64, 70, 64, LAYOUT_ROWS, false, false, 0},
		{TENSOR_BF16, TENSOR_BF16, TENSOR_BF16, 64, 70, 100, LAYOUT_ROWS, false, true, 0},
		{TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_Q8_0, 256, 96, 64, LAYOUT_TILES, false, true, 8},
		{TENSOR_BF16, TENSOR_BF16, TENSOR_BF16, 64, 70, 100, LAYOUT_ROWS, false, true, 20},
	};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 3);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (uint32_t n = 1; n < 100; n += 1 + 8 * n) {
			check_dense(&rig, &shapes[i], n, true);
			check_dense(&rig, &shapes[i], n, false);
		}
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(experts_of_every_type_are_the_cpus),
		cmocka_unit_test(experts_of_any_shape_are_the_cpus),
		cmocka_unit_test(additions_to_experts_are_the_cpus),
		cmocka_unit_test(dense_ones_are_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu experts", tests, NULL, NULL);
}
