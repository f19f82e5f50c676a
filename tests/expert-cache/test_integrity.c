/* Checksums of experts that are loaded again. */
#include "services/expert-cache/store/integrity.h"

#include <errno.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PART_BYTES = 40000, SMALL_BYTES = 500, SLOT_BYTES = 144 << 10 };

static struct slots_geometry geometry;
static struct integrity integrity;
static unsigned char slot[SLOT_BYTES];

static int begin(void **state)
{
	(void)state;
	static const uint64_t bytes[EXPERT_PARTS] = {PART_BYTES, SMALL_BYTES, PART_BYTES};
	geometry = (struct slots_geometry){.n_layers = 2, .n_experts = 3, .slot_bytes = SLOT_BYTES};
	for (uint32_t l = 0; l < 2; l++)
		for (int p = 0; p < EXPERT_PARTS; p++)
			geometry.layers[l].part[p] = (struct slots_part){
				.file_offset = 32 + 1000 * (uint64_t)p,
				.bytes = bytes[p],
				.stride = bytes[p],
				.area = (uint64_t)p * (48 << 10),
			};
	for (size_t i = 0; i < sizeof(slot); i++)
		slot[i] = (unsigned char)(i * 7 + i / 251);
	return integrity_init(&integrity, &geometry, NULL);
}

static int end(void **state)
{
	(void)state;
	integrity_exit(&integrity);
	return 0;
}

static int check(uint32_t layer, uint32_t expert)
{
	struct error err = {.text = ""};
	int status = integrity_check(&integrity, &geometry, layer, expert, slot, &err);
	assert_int_equal(status != 0, err.text[0] != '\0');
	return status;
}

static void the_same_bytes_pass_as_often_as_they_come(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++)
		for (uint32_t e = 0; e < 3; e++)
			assert_int_equal(check(1, e), 0);
}

static void what_lies_around_an_expert_does_not_count(void **state)
{
	(void)state;
	assert_int_equal(check(0, 1), 0);
	unsigned char *first = slot + slots_part_place(&geometry.layers[0].part[0], 1);
	first[-1] ^= 1;
	first[PART_BYTES] ^= 1;
	assert_int_equal(check(0, 1), 0);
}

static void every_part_is_looked_at_from_its_first_byte_to_its_last(void **state)
{
	(void)state;
	assert_int_equal(check(0, 2), 0);
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const struct slots_part *part = &geometry.layers[0].part[p];
		unsigned char *at = slot + slots_part_place(part, 2);
		/* The last word of a part that is no whole number of them is not looked at. */
		size_t last = (size_t)part->bytes - 8;
		at[0] ^= 4;
		assert_int_equal(check(0, 2), -ESTALE);
		at[0] ^= 4;
		at[last] ^= 128;
		assert_int_equal(check(0, 2), -ESTALE);
		at[last] ^= 128;
		assert_int_equal(check(0, 2), 0);
	}
}

static void another_file_in_its_place_is_noticed(void **state)
{
	(void)state;
	assert_int_equal(check(1, 0), 0);
	memset(slot + 20000, 0, 12000); /* a quarter of a part, somewhere */
	assert_int_equal(check(1, 0), -ESTALE);
	/* The first is what counts. */
	assert_int_equal(check(1, 0), -ESTALE);
}

static void experts_are_told_apart(void **state)
{
	(void)state;
	assert_int_equal(check(0, 0), 0);
	memset(slot, 1, sizeof(slot));
	assert_int_equal(check(1, 0), 0);
	assert_int_equal(check(0, 1), 0);
	assert_int_equal(check(0, 0), -ESTALE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			the_same_bytes_pass_as_often_as_they_come, begin, end),
		cmocka_unit_test_setup_teardown(
			what_lies_around_an_expert_does_not_count, begin, end),
		cmocka_unit_test_setup_teardown(
			every_part_is_looked_at_from_its_first_byte_to_its_last, begin, end),
		cmocka_unit_test_setup_teardown(another_file_in_its_place_is_noticed, begin, end),
		cmocka_unit_test_setup_teardown(experts_are_told_apart, begin, end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
