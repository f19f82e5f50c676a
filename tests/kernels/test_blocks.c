/* The golden blocks of tests/data/blocks (README.md there): values equal to the bit, dot products within bounds. */
#include "tests/kernels/reference.h"

#include <jansson.h>

#define FOLDER "tests/data/blocks/"
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

static struct matrix matrix_of(
	const struct tensor_type_info *info, const void *data, uint32_t rows, uint32_t cols)
{
	return (struct matrix){info->type, rows, cols,
		(size_t)cols / info->block_weights * info->block_bytes, data};
}

/* Every row of the file, in every backend. */
static void check_values(
	const struct tensor_type_info *info, const char *suffix, uint32_t rows, uint32_t cols)
{
	char values[32];
	size_t size, expected_size;
	uint8_t *data = read_file(info->name, suffix, &size);
	float *expected, *got = malloc(cols * sizeof(float));
	struct matrix w = matrix_of(info, data, rows, cols);

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
	struct matrix w = matrix_of(info, data, ROWS, COLS);

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
			struct matrix plain = {TENSOR_F32, 1, COLS, sizeof(wide), wide};
			double rounded = 0, step = 0;

			backend(k)->dequantise_row(&w, r, wide);
			backend(k)->matmul(&plain, 0, 1, &in, 1, &y);
			assert_true(terms > 0 && fabs((double)result[0] - exact) <= 1e-6 * terms);
			backend(k)->matmul(&w, r, r + 1, &in, 1, &y);
			if (!info->quantised) {
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
	assert_int_equal(checked, 5);
	json_decref(golden);
}

static void check_blocks(const struct tensor_type_info *info, json_t *golden)
{
	uint32_t blocks = (uint32_t)json_integer_value(json_object_get(golden, "n_blocks"));

	check_values(info, ".blocks", blocks, info->block_weights);
	check_values(info, ".blocks", 1, blocks * info->block_weights);
	check_values(info, ".rows", ROWS, COLS);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dequantised_values_equal_the_golden_ones_to_the_bit),
		cmocka_unit_test(dot_products_are_within_the_golden_tolerance),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
