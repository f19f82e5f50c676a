/* The steps products and logits on the emulated GPU, against the scalar CPU: every type, in rows and
 * in tiles, few rows of inputs and many. */
#include "tests/gpu/rig.h"

RIG_STEP(products)
RIG_STEP(logits)

enum { LONG_COLS = 2304 /* three segments, the last of them short */ };

static bool thorough(void)
{
	return getenv("OUTRIDER_TEST_LONG") != NULL;
}

static void check_product(struct rig *rig, enum tensor_type type, uint32_t rows, uint32_t cols,
	uint32_t n, enum matrix_layout layout)
{
	struct step_product product = {.w = rig_matrix(rig, type, rows, cols, layout)};
	const struct step_products step = {.of = &product, .n = 1};
	char what[128];

	product.w.scaled = n % 3 == 0;
	product.w.scale = 1.7f;
	product.x = rig_inputs(rig, n, cols);
	product.y = rig_rows(rig, n, rows * sizeof(float));
	if (n % 2) {
		product.keep = rig_place(rig, n * sizeof(uint32_t));
		product.kept = rig_rows(rig, n, rows * sizeof(float));
		for (uint32_t i = 0; i < n; i++)
			((uint32_t *)rig_at(rig, product.keep))[i] = i % 2 ? UINT32_MAX : n - 1 - i;
	}
	snprintf(what, sizeof(what), "%s %ux%u times %u rows, layout %d",
		tensor_type_info((uint32_t)type)->name, rows, cols, n, layout);
	rig_check(rig, what, run_products, &step);
	rig_clear(rig);
}

/* Columns for a type: one block or a few; and several segments. */
static uint32_t cols_of(enum tensor_type type, bool many)
{
	uint32_t block = tensor_type_info((uint32_t)type)->block_weights;

	return many ? LONG_COLS : block > 32 ? 5 * block : 288;
}

static void products_are_the_cpus(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 128};
	static const uint32_t counts[] = {1, 5, 8, 9, 33, 70};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 11);
	for (size_t i = 0; i < RIG_TYPES; i++) {
		for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
			if (counts[n] > 9 && i % 5 && !thorough())
				continue;
			check_product(&rig, rig_types[i], 32, cols_of(rig_types[i], false),
				counts[n], LAYOUT_TILES);
		}
		check_product(&rig, rig_types[i], 16, cols_of(rig_types[i], true), 3, LAYOUT_TILES);
		check_product(&rig, rig_types[i], 9, cols_of(rig_types[i], false), 2, LAYOUT_ROWS);
		check_product(
			&rig, rig_types[i], 37, cols_of(rig_types[i], false), 7, LAYOUT_TILES);
		check_product(&rig, rig_types[i], 3, cols_of(rig_types[i], true), 12, LAYOUT_ROWS);
	}
	rig_close(&rig);
}

/* More segments than warps of a block, so that they take turns. */
static void long_rows_are_the_cpus(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 128};
	const enum tensor_type types[] = {TENSOR_Q4_0, TENSOR_Q6_K, TENSOR_NVFP4};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 12);
	for (size_t i = 0; i < 3; i++)
		check_product(&rig, types[i], 16, 5 * 1024 + 256, 9, LAYOUT_TILES);
	rig_close(&rig);
}

/* The kernel for many rows of inputs: tiles that do not fill the last block of its grid, rows behind
 * the tiles, a short last segment, and more tokens than a block has. */
static void prompts_are_the_cpus(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 160};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 15);
	for (size_t i = 3; i < RIG_TYPES; i++) {
		check_product(
			&rig, rig_types[i], 22, cols_of(rig_types[i], false), 65, LAYOUT_TILES);
		if (i % 5 == 0 || thorough())
			check_product(&rig, rig_types[i], 86, cols_of(rig_types[i], true), 130,
				LAYOUT_TILES);
	}
	rig_close(&rig);
}

/* Blocks of any bytes: scales may be infinite or NaN. */
static void any_bytes_give_the_cpus_results(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 128};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 13);
	for (size_t i = 3; i < RIG_TYPES; i++) {
		uint32_t cols = cols_of(rig_types[i], false);
		struct step_product product = {
			.w = rig_matrix(&rig, rig_types[i], 16, cols, LAYOUT_ROWS)};
		const struct step_products step = {.of = &product, .n = 1};
		uint8_t *bytes = rig.kept[0];

		for (size_t b = 0; b < 16 * product.w.row_bytes; b++)
			bytes[b] = (uint8_t)rig_random(&rig);
		product.x = rig_inputs(&rig, 2, cols);
		product.y = rig_rows(&rig, 2, 16 * sizeof(float));
		rig_check(
			&rig, tensor_type_info((uint32_t)rig_types[i])->name, run_products, &step);
		rig_clear(&rig);
	}
	rig_close(&rig);
}

static void several_products_are_one_step(void **state)
{
	const struct queue_limits limits = {.products = 3, .pairs = 128};
	struct step_product of[3] = {{.w = {.rows = 0}}};
	const struct step_products step = {.of = of, .n = 3};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 14);
	for (uint32_t i = 0; i < 3; i++) {
		of[i].w =
			rig_matrix(&rig, i == 1 ? TENSOR_F16 : TENSOR_Q4_K, 32, 256, LAYOUT_TILES);
		of[i].x = rig_inputs(&rig, i + 1, 256);
		of[i].y = rig_rows(&rig, i + 1, 32 * sizeof(float));
	}
	rig_check(&rig, "three products", run_products, &step);
	rig_close(&rig);
}

static void check_logits(struct rig *rig, enum tensor_type type, uint32_t n, bool bias)
{
	enum { TOKENS = 7, COLS = 256, VOCAB = 83 };
	struct step_logits step = {.eps = 1e-6f};
	bool quantised = tensor_type_info((uint32_t)type)->quantised;

	step.x = rig_floats(rig, TOKENS, COLS, 2);
	step.which = rig_rows(rig, n, sizeof(uint32_t));
	for (uint32_t i = 0; i < n; i++)
		*(uint32_t *)rig_row(rig, &step.which, i) = rig_random(rig) % TOKENS;
	step.w = rig_vector(rig, COLS, 1);
	if (bias) {
		step.bias = rig_vector(rig, COLS, 1);
		step.output_bias = rig_vector(rig, VOCAB, 1);
	}
	step.h.f32 = rig_rows(rig, n, COLS * sizeof(float));
	if (quantised)
		step.h.q8 = rig_q8_rows(rig, n, COLS);
	step.output = rig_matrix(rig, type, VOCAB, COLS, LAYOUT_TILES);
	step.output.scaled = bias;
	step.output.scale = 0.3f;
	step.logits = rig_rows(rig, n, VOCAB * sizeof(float));
	rig_check(rig, tensor_type_info((uint32_t)type)->name, run_logits, &step);
	rig_clear(rig);
}

static void logits_are_the_cpus(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 128};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 15);
	for (uint32_t n = 1; n < 12; n += 5)
		for (int bias = 0; bias < 2; bias++) {
			check_logits(&rig, TENSOR_F32, n, bias);
			check_logits(&rig, TENSOR_Q6_K, n, bias);
		}
	rig_close(&rig);
}

static void requantising_is_the_cpus(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 1};
	struct error err = {""};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 16);
	struct matrix w = rig_matrix(&rig, TENSOR_Q5_K, 20, 512, LAYOUT_TILES);
	size_t bytes = w.rows * kv_vector_bytes(KV_Q8_0, w.cols);
	void *want = rig_keep(&rig, bytes), *got = rig_keep(&rig, bytes);
	const struct backend *cpu = rig.cpu.backend, *gpu = rig.gpu[0].backend;

	assert_int_equal(cpu->ops->requantise(rig.cpu.backend, &w, want, &err), 0);
	assert_int_equal(gpu->ops->requantise(rig.gpu[0].backend, &w, got, &err), 0);
	assert_memory_equal(want, got, bytes);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(products_are_the_cpus),
		cmocka_unit_test(long_rows_are_the_cpus),
		cmocka_unit_test(prompts_are_the_cpus),
		cmocka_unit_test(any_bytes_give_the_cpus_results),
		cmocka_unit_test(several_products_are_one_step),
		cmocka_unit_test(logits_are_the_cpus),
		cmocka_unit_test(requantising_is_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu products", tests, NULL, NULL);
}
