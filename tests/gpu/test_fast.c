/* Products by the device's library: they are near to the exact ones and have other bits, each run is
 * computed alone, and rows outside runs keep the exact bits. */
#include "tests/gpu/rig.h"

#include "kernels/arithmetic.h"

#include <math.h>

enum { N = 150, COLS = 160, ROWS = 70, FIRST = 9, RUN = 128 };

struct bed {
	struct backend *backend;
	const struct backend_ops *ops;
	struct queue *q;
	struct buffer memory;
	uint64_t random;
	uint16_t w[3][ROWS * COLS];
	float *x;
	struct rows in, out[2];
};

static const struct queue_limits limits = {.products = 1,
	.pairs = N,
	.ffn_pairs = N,
	.ffn_width = 96,
	.ffn_plain = true,
	.fast_rows = RUN,
	.fast_cols = COLS,
	.fast_outputs = COLS};

static float draw(struct bed *b)
{
	struct rig rig = {.random = b->random};
	float x = rig_float(&rig);

	b->random = rig.random;
	return x;
}

static void open_bed(struct bed *b, enum tensor_type type, float scale)
{
	const struct backend_gpu_options options = {.seed = 0};
	char name[BACKEND_FAST_NAME];
	struct error err = {""};

	memset(b, 0, sizeof(*b));
	b->random = 5;
	if (rig_create(&options, &b->backend, &err) < 0)
		fail_msg("%s", err.text);
	b->ops = b->backend->ops;
	if (b->ops->fast(b->backend, name, &err) < 0 ||
		b->ops->queue(b->backend, &limits, &b->q, &err) < 0 ||
		b->ops->alloc(b->backend, 1 << 20, BUFFER_HOST, &b->memory, &err) < 0)
		fail_msg("%s", err.text);
	assert_true(strlen(name) > 0 && arithmetic_fast(name) >= ARITHMETIC_FAST);
	for (size_t m = 0; m < 3; m++) {
		for (size_t i = 0; i < ROWS * COLS; i++) {
			uint32_t bits = bits_of_float(draw(b));

			b->w[m][i] = type == TENSOR_F16 ? half_of_float(float_of_bits(bits))
							: (uint16_t)(bits >> 16);
		}
		assert_int_equal(b->ops->place(b->backend, b->w[m], sizeof(b->w[m]), &err), 0);
	}
	b->x = (float *)(void *)b->memory.host;
	for (size_t i = 0; i < N * COLS; i++)
		b->x[i] = draw(b) * scale;
	b->in = (struct rows){&b->memory, 0, COLS * sizeof(float), N};
	for (size_t i = 0; i < 2; i++)
		b->out[i] =
			(struct rows){&b->memory, (i + 1) * 200000, (COLS + 3) * sizeof(float), N};
}

static void close_bed(struct bed *b)
{
	b->ops->queue_free(b->q);
	for (size_t m = 0; m < 3; m++)
		b->ops->forget(b->backend, b->w[m], sizeof(b->w[m]));
	b->ops->free(&b->memory);
	b->ops->destroy(b->backend);
}

static struct matrix matrix_of(
	const struct bed *b, size_t m, enum tensor_type type, uint32_t rows, uint32_t cols)
{
	return (struct matrix){.type = type,
		.rows = rows,
		.cols = cols,
		.row_bytes = cols * sizeof(uint16_t),
		.data = b->w[m]};
}

static const float *row_of(const struct bed *b, size_t out, uint32_t i)
{
	return (const float *)(const void *)(b->memory.host + b->out[out].offset +
					     i * b->out[out].stride);
}

static void multiply(struct bed *b, enum tensor_type type, size_t out, struct step_fast fast)
{
	const struct step_product product = {
		.w = matrix_of(b, 0, type, ROWS, COLS), .x = {.f32 = b->in}, .y = b->out[out]};

	b->ops->products(b->q, &(struct step_products){.of = &product, .n = 1, .fast = fast});
	assert_int_equal(b->ops->wait(b->q, b->ops->ticket(b->q)), 0);
}

static void feed(struct bed *b, enum tensor_type type, size_t out, struct step_fast fast)
{
	const struct step_dense_ffn step = {
		.ffn = {.gate = matrix_of(b, 0, type, 64, COLS),
			.up = matrix_of(b, 1, type, 64, COLS),
			.down = matrix_of(b, 2, type, ROWS, 64),
			.activation = ACTIVATION_SILU},
		.in = {.f32 = b->in},
		.y = b->out[out],
		.fast = fast,
	};

	b->ops->dense_ffn(b->q, &step);
	assert_int_equal(b->ops->wait(b->q, b->ops->ticket(b->q)), 0);
}

typedef void step_fn(struct bed *b, enum tensor_type type, size_t out, struct step_fast fast);

/* The greatest difference of a row of both results, as a part of its greatest value. */
static double distance(const struct bed *b, uint32_t i)
{
	double most = 0, apart = 0;

	for (uint32_t k = 0; k < ROWS; k++) {
		double exact = (double)row_of(b, 0, i)[k], other = (double)row_of(b, 1, i)[k];

		assert_true(isfinite(other));
		most = fmax(most, fabs(exact));
		apart = fmax(apart, fabs(exact - other));
	}
	return apart / most;
}

static void check_step(step_fn *run, enum tensor_type type, float scale)
{
	static const struct step_run one = {FIRST, RUN};
	struct bed b;
	uint32_t n_other = 0;

	open_bed(&b, type, scale);
	run(&b, type, 0, (struct step_fast){0});
	run(&b, type, 1, (struct step_fast){&one, 1});
	for (uint32_t i = 0; i < N; i++) {
		bool fast = i >= FIRST && i < FIRST + RUN;
		double apart = distance(&b, i);

		if (!fast)
			assert_memory_equal(
				row_of(&b, 0, i), row_of(&b, 1, i), ROWS * sizeof(float));
		assert_true(apart < (type == TENSOR_F16 ? 2e-3 : 2e-2));
		n_other += fast && apart > 0;
	}
	assert_true(n_other > RUN / 2);
	close_bed(&b);
}

static void fast_products_are_near_the_exact_ones(void **state)
{
	(void)state;
	check_step(multiply, TENSOR_F16, 1);
	check_step(multiply, TENSOR_BF16, 1);
	check_step(feed, TENSOR_F16, 1);
	check_step(feed, TENSOR_BF16, 1);
}

/* Activations beyond what float16 holds, and such as it holds badly. */
static void their_inputs_may_be_of_any_size(void **state)
{
	(void)state;
	check_step(multiply, TENSOR_F16, 1e7f);
	check_step(multiply, TENSOR_F16, 1e-9f);
	check_step(multiply, TENSOR_BF16, 1e20f);
}

/* Moves the inputs of a run to other places among others, and cuts it. */
static void a_run_is_computed_alone(void **state)
{
	const enum tensor_type types[] = {TENSOR_F16, TENSOR_BF16};
	const struct step_run one = {0, RUN}, moved = {11, RUN};
	const struct step_run pieces[] = {{0, RUN / 2}, {RUN / 2, RUN / 2}};

	(void)state;
	for (size_t t = 0; t < 2; t++) {
		struct bed b;

		open_bed(&b, types[t], 1);
		multiply(&b, types[t], 0, (struct step_fast){&one, 1});
		multiply(&b, types[t], 1, (struct step_fast){pieces, 2});
		/* The emulation's own promise: otherwise no test could see who cuts a run. */
		if (strcmp(b.ops->name, "simt") == 0)
			assert_memory_not_equal(row_of(&b, 0, RUN - 1), row_of(&b, 1, RUN - 1),
				ROWS * sizeof(float));
		memmove(b.x + 11 * COLS, b.x, RUN * COLS * sizeof(float));
		for (size_t i = 0; i < 11 * COLS; i++)
			b.x[i] = draw(&b);
		multiply(&b, types[t], 1, (struct step_fast){&moved, 1});
		for (uint32_t i = 0; i < RUN; i++)
			assert_memory_equal(
				row_of(&b, 0, i), row_of(&b, 1, i + 11), ROWS * sizeof(float));
		close_bed(&b);
	}
}

static void who_has_no_library_says_so(void **state)
{
	struct error err = {""};
	char name[BACKEND_FAST_NAME];
	struct rig rig;

	(void)state;
	rig_open(&rig, &(struct queue_limits){.products = 1}, 1);
	assert_int_equal(rig.cpu.backend->ops->fast(rig.cpu.backend, name, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "exact arithmetic alone"));
	setenv("OUTRIDER_SIMT_LIBRARY", "missing", 1);
	if (strcmp(rig.gpu[0].backend->ops->name, "simt") == 0) {
		assert_int_equal(
			rig.gpu[0].backend->ops->fast(rig.gpu[0].backend, name, &err), -ENOENT);
		assert_non_null(strstr(err.text, "is missing"));
	}
	unsetenv("OUTRIDER_SIMT_LIBRARY");
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fast_products_are_near_the_exact_ones),
		cmocka_unit_test(their_inputs_may_be_of_any_size),
		cmocka_unit_test(a_run_is_computed_alone),
		cmocka_unit_test(who_has_no_library_says_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
