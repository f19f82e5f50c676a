/* shared/base: sizes and times as they are shown and read, and texts in columns. */
#include "shared/base/columns.h"
#include "shared/base/units.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GIB ((uint64_t)1 << 30)
#define SECOND UINT64_C(1000000000)

static void a_size_is_in_gib_from_ten_on(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {{0, "0.0 MiB"}, {1572864, "1.5 MiB"}, {10 * GIB - 1, "10240.0 MiB"},
		{10 * GIB, "10.0 GiB"}, {31 * GIB / 2, "15.5 GiB"},
		{UINT64_MAX, "17179869184.0 GiB"}};
	char text[UNITS_BYTES];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_string_equal(units_size(cases[i].bytes, text), cases[i].text);
}

/* What it says is never more than there is. */
static void a_size_as_a_setting_has_the_same_unit_and_is_not_rounded_up(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {{0, "0M"}, {3 * GIB - 1, "3071M"}, {10 * GIB - 1, "10239M"},
		{10 * GIB, "10.0G"}, {24 * GIB - 1, "23.9G"}, {31 * GIB / 2, "15.5G"},
		{UINT64_MAX, "17179869183.9G"}};
	char text[UNITS_BYTES];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_string_equal(units_setting(cases[i].bytes, text), cases[i].text);
}

static void a_period_has_the_two_units_that_tell_most(void **state)
{
	static const struct {
		uint64_t ns;
		const char *text;
	} cases[] = {{0, "0.0s"}, {7500000000, "7.5s"}, {9940000000, "9.9s"}, {9960000000, "10s"},
		{59 * SECOND, "59s"}, {59600000000, "1m"}, {599 * SECOND, "9m59s"},
		{3600 * SECOND, "1h"}, {11100 * SECOND, "3h5m"}, {86400 * SECOND, "1d"},
		{187200 * SECOND, "2d4h"}, {UINT64_MAX, "213503d23h"}};
	char text[UNITS_BYTES];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_string_equal(units_period(cases[i].ns, text), cases[i].text);
}

static void a_time_is_read_with_its_unit_or_as_seconds(void **state)
{
	static const struct {
		const char *text;
		int code;
		uint64_t ns;
	} cases[] = {{"3", 0, 3 * SECOND}, {"0.25", 0, SECOND / 4}, {"500ms", 0, SECOND / 2},
		{"2m", 0, 120 * SECOND}, {"1D", 0, 86400 * SECOND}, {"", -EINVAL, 7},
		{"s", -EINVAL, 7}, {"3 s", -EINVAL, 7}, {"3x", -EINVAL, 7}, {"nan", -EINVAL, 7},
		{"inf", -EINVAL, 7}, {"0x10", -EINVAL, 7}, {"-0X1p3", -EINVAL, 7},
		{".5", 0, SECOND / 2}, {"-1s", -ERANGE, 7}, {"36501d", -ERANGE, 7}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t ns = 7;

		assert_int_equal(units_read_time(cases[i].text, &ns), cases[i].code);
		assert_true(ns == cases[i].ns);
	}
}

static void text_is_folded_at_its_spaces(void **state)
{
	char *text = NULL, word[COLUMNS_LINE + 8];
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes);

	(void)state;
	assert_int_equal(columns_fit("one two", 7), 7);
	assert_int_equal(columns_fit("one two", 6), 3);
	assert_int_equal(columns_fit("one two", 3), 3);
	/* A word that is too long stays whole. */
	assert_int_equal(columns_fit("three four", 2), 5);
	assert_int_equal(columns_fit("\u00e4\u00e4\u00e4 b", 3), 6);
	memset(word, 'w', sizeof(word));
	word[sizeof(word) - 1] = '\0';
	columns_fold(to, "a b", 0, 4);
	columns_fold(to, "a b", COLUMNS_LINE - 2, 4);
	columns_fold(to, word, 2, 4);
	columns_fold(to, "", 0, 4);
	fclose(to);
	assert_true(strncmp(text, "a b\na\n    b\nwww", 15) == 0);
	assert_string_equal(text + 12 + strlen(word), "\n\n");
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_size_is_in_gib_from_ten_on),
		cmocka_unit_test(a_size_as_a_setting_has_the_same_unit_and_is_not_rounded_up),
		cmocka_unit_test(a_period_has_the_two_units_that_tell_most),
		cmocka_unit_test(a_time_is_read_with_its_unit_or_as_seconds),
		cmocka_unit_test(text_is_folded_at_its_spaces),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
