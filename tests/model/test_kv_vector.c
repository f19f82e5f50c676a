/* Vectors of single cells, read and written as the kernels store them. */
#include "shared/model/kv/kv_vector.h"
#include "kernels/cpu/simd.h"
#include "tests/model/rig.h"

enum { DIM_MOST = 128, BYTES = 2 * KV_TURN * DIM_MOST * 4 };

static void vectors_are_what_the_kernels_store(void **state)
{
	static const uint32_t dims[] = {1, 7, 32, 33, 64, 100, DIM_MOST};
	const struct kernels *kernels = kernels_select("scalar", NULL);
	unsigned char stored[BYTES], written[BYTES], own[DIM_MOST * 4], row[sizeof(own)];
	uint64_t random = 5;
	float x[DIM_MOST];

	(void)state;
	for (uint32_t i = 0; i < 7 * 4 * 3 * 20; i++) {
		struct kv_vector vector = {i / 7 % 4, dims[i % 7], i / 28 % 3};
		size_t bytes = kv_vector_bytes(vector.type, vector.n);
		uint32_t cell = (uint32_t)(rig_random(&random) % (2 * KV_TURN));
		size_t turn = cell / KV_TURN * KV_TURN * bytes;

		if (vector.form == KV_VECTOR_PAIRED && !kv_in_blocks(vector.type))
			continue;
		for (uint32_t d = 0; d < vector.n; d++)
			x[d] = (float)(int64_t)rig_random(&random) * 0x1p-60f;
		memset(stored, 0x5a, BYTES);
		memset(written, 0x5a, BYTES);
		kernels->kv_store(x, vector.n, vector.type, own);
		if (vector.form == KV_VECTOR_PLAIN)
			memcpy(stored + cell * bytes, own, bytes);
		else if (vector.form == KV_VECTOR_TURNED)
			kernels->kv_store_turned(x, vector.n, vector.type, stored, cell);
		else
			kernels->kv_store_paired(x, vector.n, vector.type, stored, cell);
		kv_vector_read(&vector, stored + turn, cell % KV_TURN, row);
		assert_memory_equal(row, own, bytes);
		kv_vector_write(&vector, written + turn, cell % KV_TURN, own);
		assert_memory_equal(written, stored, BYTES);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(vectors_are_what_the_kernels_store)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
