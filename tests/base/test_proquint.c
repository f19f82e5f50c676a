/* shared/base/proquint: names of numbers. */
#include "shared/base/proquint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void names_are_those_of_the_proposal(void **state)
{
	char name[PROQUINT_BYTES];

	(void)state;
	/* Its examples are IPv4 addresses, highest word first: 127.0.0.1 is lusab-babad, 63.84.220.193 gutih-tugad. */
	assert_string_equal(proquint(UINT64_C(0x7f00) | UINT64_C(0x0001) << 16 |
					     UINT64_C(0x3f54) << 32 | UINT64_C(0xdcc1) << 48,
				    name),
		"lusab-babad-gutih-tugad");
	assert_string_equal(proquint(0, name), "babab-babab-babab-babab");
	assert_string_equal(PROQUINT(UINT64_MAX), "zuzuz-zuzuz");
}

static void prefixes_are_told_from_other_texts(void **state)
{
	(void)state;
	assert_true(proquint_is_prefix("l"));
	assert_true(proquint_is_prefix("lusab-"));
	assert_true(proquint_is_prefix("lusab-babad-gutih-tugad"));
	assert_false(proquint_is_prefix(""));
	assert_false(proquint_is_prefix("7"));
	assert_false(proquint_is_prefix("lusabb"));
	assert_false(proquint_is_prefix("lusab-babad-gutih-tugad-"));
	assert_true(proquint_begins(0x7f00, "lusab"));
	assert_true(proquint_begins(0x7f00, "lusab-babab-b"));
	assert_false(proquint_begins(0x7f01, "lusab"));
}

static void different_numbers_have_different_names(void **state)
{
	char a[PROQUINT_BYTES], b[PROQUINT_BYTES];

	(void)state;
	for (uint32_t bit = 0; bit < 64; bit++)
		assert_string_not_equal(proquint(UINT64_C(1) << bit, a), proquint(0, b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_those_of_the_proposal),
		cmocka_unit_test(prefixes_are_told_from_other_texts),
		cmocka_unit_test(different_numbers_have_different_names),
	};

	return cmocka_run_group_tests_name("proquint", tests, NULL, NULL);
}
