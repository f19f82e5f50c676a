/* Limits for each layer, as people write them. */
#include "shared/base/layer_limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 28
#define EXPERTS 32

static void texts_say_what_each_layer_may_use(void **state)
{
	static const struct {
		const char *text, *written; /* NULL: as it was given */
		uint16_t first, fourth, last; /* of layers 0, 3 and 27 */
	} cases[] = {
		{"all", NULL, 0, 0, 0},
		{"12", NULL, 12, 12, 12},
		{"0-3:16,4-:8", NULL, 16, 16, 8},
		{"4-:8,0-3:16", "0-3:16,4-:8", 16, 16, 8},
		{"3:1", NULL, 0, 1, 0},
		{"27-:7", "27:7", 0, 0, 7},
		{"0-:9", "9", 9, 9, 9},
		{"0:9,1:9,2:9,3:9", "0-3:9", 9, 9, 0},
		{"32", "all", 0, 0, 0}, /* all experts are no limit */
		{"0-3:32,4-:8", "4-:8", 0, 0, 8},
		{"0-2:5,4-26:6", NULL, 5, 0, 0},
	};
	char text[LAYER_LIMITS_TEXT];
	uint16_t limits[LIMIT_LAYERS], again[LIMIT_LAYERS];
	struct error err;
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		memset(limits, 0xFF, sizeof(limits));
		assert_int_equal(
			layer_limits_read("b", cases[i].text, LAYERS, EXPERTS, limits, &err), 0);
		assert_int_equal(limits[0], cases[i].first);
		assert_int_equal(limits[3], cases[i].fourth);
		assert_int_equal(limits[27], cases[i].last);
		assert_int_equal(limits[28], 0);
		layer_limits_text(limits, LAYERS, text);
		assert_string_equal(text, cases[i].written ? cases[i].written : cases[i].text);
		assert_int_equal(layer_limits_any(limits, LAYERS), strcmp(text, "all") != 0);
		assert_int_equal(layer_limits_read("b", text, LAYERS, EXPERTS, again, &err), 0);
		assert_memory_equal(limits, again, sizeof(limits));
	}
}

static void errors_name_layer_and_value(void **state)
{
	static const struct {
		const char *text, *says[2];
	} cases[] = {
		{"0", {"b: 0 is not 1..32"}},
		{"33", {"b: 33 is not 1..32"}},
		{"3:0", {"layer 3: 0 is not 1..32"}},
		{"2-5:40", {"layers 2 to 5: 40 is not 1..32"}},
		{"28:4", {"layer 28 does not exist", "0..27"}},
		{"20-28:4", {"layer 28 does not exist"}},
		{"28-:4", {"layer 28 does not exist"}},
		{"0-5:4,3-:8", {"layer 3 is named twice", "4 and 8"}},
		{"3:4,3:4", {"layer 3 is named twice"}},
		{"5-3:4", {"layers 5 to 3"}},
		{"4294967296:4", {"expected"}},
		{"", {"expected"}},
		{"few", {"\"few\""}},
		{"12,", {"\"12,\""}},
		{"3:4,", {"expected"}},
		{"3:4;4:5", {"expected"}},
		{"3", {NULL}}, /* a number alone is for every layer */
		{"-3:4", {"expected"}},
		{"3:", {"expected"}},
		{"3:-4", {"expected"}},
		{"3-", {"expected"}},
		{" 3:4", {"expected"}},
		{"3:4 ", {"expected"}},
		{"all,3:4", {"expected"}},
		{"12,3:4", {"expected"}},
	};
	uint16_t limits[LIMIT_LAYERS];
	struct error err;
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		memset(limits, 0xFF, sizeof(limits));
		int rc = layer_limits_read("b", cases[i].text, LAYERS, EXPERTS, limits, &err);
		assert_int_equal(rc < 0, cases[i].says[0] != NULL);
		for (size_t s = 0; s < 2 && cases[i].says[s]; s++)
			if (!strstr(err.text, cases[i].says[s]))
				fail_msg("\"%s\": %s", cases[i].text, err.text);
		if (rc < 0)
			for (size_t l = 0; l < LIMIT_LAYERS; l++)
				assert_int_equal(limits[l], 0xFFFF);
	}
}

static void a_form_is_checked_without_a_model(void **state)
{
	static const char *const right[] = {"all", "0", "12", "100000", "3:0", "999:4",
		"0-3:16,4-:8"},
				 *const wrong[] = {"", "few", "4,0-3:4", "3:", "5-3:4", "3:4,"};
	struct error err;
	(void)state;
	for (size_t i = 0; i < sizeof(right) / sizeof(*right); i++)
		assert_int_equal(layer_limits_form("b", right[i], &err), 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		assert_true(layer_limits_form("b", wrong[i], &err) < 0);
}

/* The longest text: each layer has another limit than its neighbours. */
static void the_longest_text_has_room(void **state)
{
	uint16_t limits[LIMIT_LAYERS], again[LIMIT_LAYERS];
	char text[LAYER_LIMITS_TEXT];
	struct error err;
	(void)state;
	for (uint32_t l = 0; l < LIMIT_LAYERS; l++)
		limits[l] = (uint16_t)(LIMIT_EXPERTS - 1 - l % 2);
	layer_limits_text(limits, LIMIT_LAYERS, text);
	assert_true(strlen(text) > 2000);
	assert_int_equal(layer_limits_read("b", text, LIMIT_LAYERS, LIMIT_EXPERTS, again, &err), 0);
	assert_memory_equal(limits, again, sizeof(limits));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_say_what_each_layer_may_use),
		cmocka_unit_test(errors_name_layer_and_value),
		cmocka_unit_test(a_form_is_checked_without_a_model),
		cmocka_unit_test(the_longest_text_has_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
