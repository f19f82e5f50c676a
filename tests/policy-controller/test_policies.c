/* The names of policies: what is one, and which K and shape it stands for. */
#include "services/policy-controller/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void a_number_is_a_k(void **state)
{
	static const struct {
		const char *text;
		uint32_t k;
	} good[] = {{"static:0", 0}, {"static:3", 3}, {"static:63", 63}, {"static:07", 7}};
	static const char *const bad[] = {"static", "static:", "static:64", "static:100",
		"static:-1", "static:+1", "static: 3", "static:3 ", "Static:3", "statics:3",
		"static:3.0", ""};
	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		uint8_t shape[DRAFT_SHAPE];
		uint32_t k = 99;
		assert_ptr_equal(policy_parse(good[i].text, &k), &policy_static);
		assert_int_equal(k, good[i].k);
		assert_int_equal(policy_shape(good[i].text, shape), 0);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		uint32_t k = 99;
		if (policy_parse(bad[i], &k))
			fail_msg("\"%s\" is a policy", bad[i]);
	}
}

static void numbers_with_an_x_between_are_a_shape(void **state)
{
	static const struct {
		const char *text;
		uint32_t depth;
		uint8_t shape[DRAFT_SHAPE];
	} good[] = {{"static:1x1", 2, {1, 1}}, {"static:4x2x1", 3, {4, 2, 1}},
		{"static:02x3", 2, {2, 3}}, {"static:2x2x2x2x2x2x2x2", 8, {2, 2, 2, 2, 2, 2, 2, 2}},
		{"static:1x1x1x1x1x1x1x1", 8, {1, 1, 1, 1, 1, 1, 1, 1}},
		{"static:20x20", 2, {20, 20}}};
	/* Nine levels; more than 511 nodes; no width; a level of none; what is no number. */
	static const char *const bad[] = {"static:1x1x1x1x1x1x1x1x1", "static:30x30",
		"static:8x8x8", "static:x", "static:2x", "static:x2", "static:2xx2", "static:2x0",
		"static:0x2", "static:2x-1", "static:2x+1", "static:2x1 ", "static:2x 1",
		"static:2X2", "static:2x1a", "static:2x100", "static:99999999999999999999x1"};
	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		uint8_t shape[DRAFT_SHAPE];
		uint32_t k = 99;
		assert_int_equal(policy_shape(good[i].text, shape), good[i].depth);
		assert_memory_equal(shape, good[i].shape, sizeof(shape));
		assert_ptr_equal(policy_parse(good[i].text, &k), &policy_static);
		assert_int_equal(k, good[i].depth);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		uint8_t shape[DRAFT_SHAPE];
		uint32_t k = 99;
		if (policy_shape(bad[i], shape) || policy_parse(bad[i], &k))
			fail_msg("\"%s\" is a shape", bad[i]);
	}
}

/* The widest level that the name can say, and the next wider one. */
static void a_level_has_its_bound(void **state)
{
	char text[32];
	uint8_t shape[DRAFT_SHAPE];
	(void)state;
	snprintf(text, sizeof(text), "static:%dx1", POLICY_SHAPE_WIDTH);
	assert_int_equal(policy_shape(text, shape), 2);
	assert_int_equal(shape[0], POLICY_SHAPE_WIDTH);
	snprintf(text, sizeof(text), "static:%dx1", POLICY_SHAPE_WIDTH + 1);
	assert_int_equal(policy_shape(text, shape), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_number_is_a_k),
		cmocka_unit_test(numbers_with_an_x_between_are_a_shape),
		cmocka_unit_test(a_level_has_its_bound),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
