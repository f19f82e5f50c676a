/* The golden blocks of tests/data/golden/blocks (README.md there): values equal to the bit, dot products within bounds. */
#include "tests/kernels/reference.h"

#include <jansson.h>

#define FOLDER "tests/data/golden/blocks/"
#define COLS 1024
#define ROWS 4

static void *read_file(const char *type, const char *suffix, size_t *size)
{
	char path[128];
	FILE *f;
	void *data;
	long length;

	snprintf(path, sizeof(path), FOLDER "%s%s", type, suffix);
	f = fopen(path, "rb");
	if (!f)
		fail_msg("cannot open %s (run from the top of the tree)", path);
	assert_int_equal(fseek(f, 0, SEEK_END), 0);
	length = ftell(f);
	assert_true(length > 0);
	rewind(f);
	data = malloc((size_t)length);
	assert_non_null(data);
	assert_int_equal(fread(data, 1, (size_t)length, f), (size_t)length);
	fclose(f);
	*size = (size_t)length;
	return data;
}

/* Every row of the file, in every backend. */
static void check_values(
	const struct tensor_type_info *info, const char *suffix, uint32_t rows, uint32_t cols)
{
	char values[32];
	size_t size, expected_size;
	uint8_t *data = read_file(info->name, suffix, &size);
	float *expected, *got = malloc(cols * sizeof(float));
	struct matrix w = matrix_of(info->type, data, rows, cols);

	snprintf(values, sizeof(values), "%s.f32", strcmp(suffix, ".rows") == 0 ? ".rows" : "");
	expected = read_file(info->name, values, &expected_size);
	assert_int_equal(size, rows * w.row_bytes);
	assert_int_equal(expected_size, (size_t)rows * cols * sizeof(float));
	for (size_t k = 0; backend(k); k++)
		for (uint32_t r = 0; r < rows; r++) {
			backend(k)->dequantise_row(&w, r, got);
			assert_memory_equal(got, expected + (size_t)r * cols, cols * sizeof(float));
		}
	free(data);
	free(expected);
	free(got);
}

/* A plain float32 product of the dequantised row, and for quantised types the product with 8-bit activations:
 * each differs from its own float64 value by rounding alone, the second from the golden one by at most half a
 * step of each activation. */
static void check_dots(const struct tensor_type_info *info, json_t *golden)
{
	size_t size;
	uint8_t *data = read_file(info->name, ".rows", &size);
	float *x = read_file("activation", ".f32", &size), wide[COLS], result[ROWS], *y = result;
	struct q8_block q8[COLS / 32];
	struct activation in = {x, q8};
	struct matrix w = matrix_of(info->type, data, ROWS, COLS);

	assert_int_equal(size, COLS * sizeof(float));
	for (size_t k = 0; backend(k); k++) {
		backend(k)->quantise_q8(x, COLS, q8);
		for (uint32_t r = 0; r < ROWS; r++) {
			/* A string, so that no JSON reader rounds it. */
			double exact = strtod(json_string_value(json_array_get(
						      json_object_get(golden, "dot_float64"), r)),
				NULL);
			double terms = json_number_value(json_array_get(
				json_object_get(golden, "dot_sum_of_absolute_terms"), r));
			struct matrix plain = matrix_of(TENSOR_F32, wide, 1, COLS);
			double rounded = 0, step = 0;

			backend(k)->dequantise_row(&w, r, wide);
			backend(k)->matmul(&plain, 0, 1, &in, 1, &y);
			assert_true(terms > 0 && fabs((double)result[0] - exact) <= 1e-6 * terms);
			backend(k)->matmul(&w, r, r + 1, &in, 1, &y);
			if (!info->quantised || is_reference(backend(k))) {
				assert_true(fabs((double)result[r] - exact) <= 1e-6 * terms);
				continue;
			}
			for (uint32_t i = 0; i < COLS; i++) {
				const struct q8_block *b = &q8[i / 32];

				rounded += (double)wide[i] * (double)b->d * b->q[i % 32];
				step += fabs((double)wide[i]) * (double)b->d / 2;
			}
			assert_true(fabs((double)result[r] - rounded) <= 1e-6 * terms);
			assert_true(fabs((double)result[r] - exact) <= 1.001 * step);
		}
	}
	free(data);
	free(x);
}

static void each_type(void (*check)(const struct tensor_type_info *info, json_t *golden))
{
	json_error_t error;
	json_t *golden = json_load_file(FOLDER "blocks.json", 0, &error), *entry;
	size_t i, checked = 0;

	if (!golden)
		fail_msg("%sblocks.json: %s", FOLDER, error.text);
	json_array_foreach(json_object_get(golden, "types"), i, entry)
	{
		uint32_t id = (uint32_t)json_integer_value(json_object_get(entry, "id"));
		const struct tensor_type_info *info = tensor_type_info(id);

		assert_non_null(info);
		assert_string_equal(info->name, json_string_value(json_object_get(entry, "type")));
		assert_int_equal(info->block_bytes,
			json_integer_value(json_object_get(entry, "bytes_per_block")));
		assert_int_equal(info->block_weights,
			json_integer_value(json_object_get(entry, "weights_per_block")));
		check(info, entry);
		checked++;
	}
	assert_int_equal(checked, 25);
	json_decref(golden);
}

static void check_blocks(const struct tensor_type_info *info, json_t *golden)
{
	uint32_t blocks = (uint32_t)json_integer_value(json_object_get(golden, "n_blocks"));

	check_values(info, ".blocks", blocks, info->block_weights);
	check_values(info, ".blocks", 1, blocks * info->block_weights);
	check_values(info, ".rows", ROWS, COLS);
}

/* Every block as a row of its own, the edge cases with the random ones, times activations. */
static void check_products(const struct tensor_type_info *info, json_t *golden)
{
	enum { TOKENS = 3 };
	uint32_t rows = (uint32_t)json_integer_value(json_object_get(golden, "n_blocks"));
	uint32_t cols = info->block_weights;
	struct q8_block q8[TOKENS][8];
	struct activation in[TOKENS];
	size_t size;
	uint8_t *data = read_file(info->name, ".blocks", &size);
	float *x = read_file("activation", ".f32", &size), *y[TOKENS];
	struct matrix w = matrix_of(info->type, data, rows, cols);

	for (uint32_t t = 0; t < TOKENS; t++) {
		in[t].f32 = x + (size_t)t * cols;
		in[t].q8 = q8[t];
		y[t] = malloc(rows * sizeof(float));
		assert_non_null(y[t]);
		if (info->quantised)
			scalar_backend()->quantise_q8(in[t].f32, cols, q8[t]);
	}
	for (size_t k = 0; backend(k); k++) {
		backend(k)->matmul(&w, 0, rows, in, TOKENS, y);
		for (uint32_t i = 0; i < TOKENS * rows; i++) {
			const uint8_t *row = data + (i / TOKENS) * w.row_bytes;
			const struct activation *a = &in[i % TOKENS];
			float expected = is_reference(backend(k))
						 ? reference_product_f32(info->type, row, cols, a)
						 : reference_product(info->type, row, cols, a);

			assert_same_floats(&y[i % TOKENS][i / TOKENS], &expected, 1, info->name);
		}
	}
	for (uint32_t t = 0; t < TOKENS; t++)
		free(y[t]);
	free(data);
	free(x);
}

/* The golden blocks are finite, and stop being so with a scale that is not. */
static void check_finite(const struct tensor_type_info *info, json_t *golden)
{
	static const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01};
	uint32_t rows = (uint32_t)json_integer_value(json_object_get(golden, "n_blocks"));
	size_t size;
	uint8_t *data = read_file(info->name, ".blocks", &size);
	struct matrix w = matrix_of(info->type, data, rows, info->block_weights);
	struct matrix one = matrix_of(info->type, data, 1, rows * info->block_weights);
	static const struct {
		enum tensor_type type;
		uint32_t at;
	} scales[] = {{TENSOR_F16, 0}, {TENSOR_Q8_0, 0}, {TENSOR_Q4_0, 0}, {TENSOR_Q4_1, 0},
		{TENSOR_Q4_1, 2}, {TENSOR_Q5_0, 0}, {TENSOR_Q5_1, 0}, {TENSOR_Q5_1, 2},
		{TENSOR_Q2_K, 80}, {TENSOR_Q2_K, 82}, {TENSOR_Q3_K, 108}, {TENSOR_Q4_K, 0},
		{TENSOR_Q4_K, 2}, {TENSOR_Q5_K, 0}, {TENSOR_Q5_K, 2}, {TENSOR_Q6_K, 208},
		{TENSOR_IQ4_NL, 0}, {TENSOR_IQ4_XS, 0}, {TENSOR_IQ1_S, 0}, {TENSOR_IQ2_XXS, 0},
		{TENSOR_IQ2_XS, 0}, {TENSOR_IQ2_S, 0}, {TENSOR_IQ3_XXS, 0}, {TENSOR_IQ3_S, 0},
		{TENSOR_TQ1_0, 52}, {TENSOR_TQ2_0, 64}};

	assert_true(tensor_row_finite(&one, 0));
	for (uint32_t r = 0; r < rows; r++)
		assert_true(tensor_row_finite(&w, r));
	for (size_t i = 0; i < 4 * sizeof(scales) / sizeof(scales[0]); i++) {
		uint8_t *at = data + (rows - 1) * w.row_bytes + scales[i / 4].at;
		uint16_t good;

		if (scales[i / 4].type != info->type)
			continue;
		memcpy(&good, at, 2);
		memcpy(at, &halves[i % 4], 2);
		assert_false(tensor_row_finite(&w, rows - 1));
		assert_false(tensor_row_finite(&one, 0));
		assert_true(tensor_row_finite(&w, rows - 2));
		memcpy(at, &good, 2);
	}
	free(data);
}

static void mxfp4_exponents_that_overflow_are_not_finite(void **state)
{
	uint8_t block[17] = {0};
	struct matrix w = matrix_of(TENSOR_MXFP4, block, 1, 32);

	(void)state;
	block[0] = 255;
	assert_false(tensor_row_finite(&w, 0));
	block[0] = 254; /* zeros times 2^126 */
	assert_true(tensor_row_finite(&w, 0));
	block[9] = 0x60; /* 2 * 4 * 2^126 = 2^129 */
	assert_false(tensor_row_finite(&w, 0));
	block[0] = 252;
	block[9] = 0x70; /* 2 * 6 * 2^124 = 1.5 * 2^127 */
	assert_true(tensor_row_finite(&w, 0));
}

/* The two that are NaN in E4M3, whatever place they have among the four. */
static void nvfp4_scales_that_are_nan_are_not_finite(void **state)
{
	uint8_t blocks[2 * 36];
	float values[128];
	struct matrix w = matrix_of(TENSOR_NVFP4, blocks, 1, 128);

	(void)state;
	for (uint32_t place = 0; place < 8; place++)
		for (uint32_t scale = 0; scale < 256; scale++) {
			uint8_t *at = blocks + place / 4 * 36 + place % 4;

			memset(blocks, 0x22, sizeof(blocks));
			*at = (uint8_t)scale;
			assert_int_equal(tensor_row_finite(&w, 0), (scale & 127) != 127);
			kernels_all[0]->dequantise_row(&w, 0, values);
			/* 0x22: twice the FP4 number 1. */
			assert_true(values[16 * place] == 2 * reference_e4m3_half((uint8_t)scale));
		}
	assert_true(reference_e4m3_half(0x7e) == 224 && reference_e4m3_half(0x38) == 0.5f);
	assert_true(reference_e4m3_half(0x7f) == 0 && reference_e4m3_half(0xff) == 240);
	assert_true(reference_e4m3_half(1) == 0x1p-10f && reference_e4m3_half(0x88) == 0x1p-7f);
}

/* Its scale is in four pieces. */
static void an_iq1_m_scale_that_is_infinite_or_nan_is_found(void **state)
{
	static const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x7bff, 0xfbff, 0x0400};
	uint8_t blocks[2 * 56];
	struct matrix w = matrix_of(TENSOR_IQ1_M, blocks, 1, 512);

	(void)state;
	for (uint32_t i = 0; i < 2 * sizeof(halves) / sizeof(halves[0]); i++) {
		uint16_t half = halves[i / 2];

		memset(blocks, 0x0f, sizeof(blocks));
		for (uint32_t k = 0; k < 4; k++)
			blocks[i % 2 * 56 + 49 + 2 * k] =
				(uint8_t)(0x0f | (half >> 4 * k & 15) << 4);
		assert_int_equal(tensor_row_finite(&w, 0), i / 2 >= 4);
	}
}

static void float_rows_with_an_infinity_or_a_nan_are_not_finite(void **state)
{
	float row[3] = {1, -0x1.fffffep127f, 0x1p-149f};
	uint16_t brain[3] = {0x3f80, 0x7f7f, 1};
	struct matrix f32 = matrix_of(TENSOR_F32, row, 1, 3);
	struct matrix bf16 = matrix_of(TENSOR_BF16, brain, 1, 3);

	(void)state;
	assert_true(tensor_row_finite(&f32, 0) && tensor_row_finite(&bf16, 0));
	row[2] = NAN;
	assert_false(tensor_row_finite(&f32, 0));
	row[2] = -INFINITY;
	assert_false(tensor_row_finite(&f32, 0));
	brain[2] = 0x7f80;
	assert_false(tensor_row_finite(&bf16, 0));
	brain[2] = 0xffc0;
	assert_false(tensor_row_finite(&bf16, 0));
}

static void the_list_of_types_names_each_and_is_cut_to_fit(void **state)
{
	char all[TENSOR_TYPE_NAMES], some[8];

	(void)state;
	assert_true(tensor_type_names(all, sizeof(all)) < sizeof(all));
	assert_non_null(strstr(all, "F32, F16, Q4_0, Q4_1"));
	assert_non_null(strstr(all, "IQ1_M, BF16, TQ1_0, TQ2_0, MXFP4, NVFP4"));
	assert_non_null(strstr(all, "TQ2_0"));
	assert_int_equal(tensor_type_names(some, sizeof(some)), strlen(all));
	assert_string_equal(some, "F32, F1");
}

static void dequantised_values_equal_the_golden_ones_to_the_bit(void **state)
{
	(void)state;
	each_type(check_blocks);
}

static void dot_products_are_within_the_golden_tolerance(void **state)
{
	(void)state;
	each_type(check_dots);
}

static void golden_blocks_give_the_same_products_everywhere(void **state)
{
	(void)state;
	each_type(check_products);
}

static void a_scale_that_is_infinite_or_nan_is_found(void **state)
{
	(void)state;
	each_type(check_finite);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dequantised_values_equal_the_golden_ones_to_the_bit),
		cmocka_unit_test(dot_products_are_within_the_golden_tolerance),
		cmocka_unit_test(golden_blocks_give_the_same_products_everywhere),
		cmocka_unit_test(a_scale_that_is_infinite_or_nan_is_found),
		cmocka_unit_test(mxfp4_exponents_that_overflow_are_not_finite),
		cmocka_unit_test(nvfp4_scales_that_are_nan_are_not_finite),
		cmocka_unit_test(an_iq1_m_scale_that_is_infinite_or_nan_is_found),
		cmocka_unit_test(float_rows_with_an_infinity_or_a_nan_are_not_finite),
		cmocka_unit_test(the_list_of_types_names_each_and_is_cut_to_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
