/* What `check` and loading say of scales is what the kernels say of them, whatever the type. */
#include "kernels/tensor.h"
#include "shared/model/gguf/gguf_scan.h"
#include "shared/model/gguf/gguf_tensors.h"
#include "tests/kernels/reference.h"

enum { ROWS = 4000, COLS = 256 };

/* Random bytes: one float16 of 32 is an infinity or a NaN, and one E4M3 number of 128 a NaN. */
static void rows_of_random_bytes(void **state)
{
	uint64_t rng = 11;
	uint32_t types = 0;

	(void)state;
	for (uint32_t id = 0; id < 256; id++) {
		const struct tensor_type_info *type = tensor_type_info(id);
		uint32_t bad = 0, row_bytes;
		struct gguf_scan scan;

		if (!type)
			continue;
		types++;
		assert_string_equal(type->name, gguf_tensor_type_name(id));
		row_bytes = COLS / type->block_weights * type->block_bytes;
		unsigned char row[4 * COLS];
		const struct matrix w = matrix_of(type->type, row, 1, COLS);

		for (uint32_t r = 0; r < ROWS; r++) {
			for (uint32_t i = 0; i < row_bytes; i++)
				row[i] = (unsigned char)random_bits(&rng);
			/* Of MXFP4's scales just below its NaN the scan does not ask which weights they are of. */
			for (uint32_t i = 0; type->type == TENSOR_MXFP4 && i < row_bytes; i += 17)
				row[i] = random_below(&rng, 99) ? 127 : 255;
			/* Every other row of a plain type is finite. */
			for (uint32_t i = 0; !type->quantised && i < row_bytes; i++)
				row[i] &= 0x3b;
			if (!type->quantised && r % 2)
				memset(row + random_below(&rng, COLS) * type->block_bytes, 0xff,
					type->block_bytes);
			assert_true(gguf_scan_rows(id, COLS, row, 1, false, &scan));
			assert_int_equal(scan.n == 0, tensor_row_finite(&w, 0));
			bad += scan.n > 0;
		}
		if (bad == 0 || bad == ROWS)
			fail_msg("%s: %u of %u rows are bad", type->name, bad, ROWS);
	}
	assert_true(types >= 26);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_random_bytes)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
